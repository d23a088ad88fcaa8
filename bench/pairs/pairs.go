// Command pairs measures paired relays beside unpaired ones, direct TCP, and other
// programs that encrypt: what an outage, a forgetful NAT, an upgrade and a death cost
// the flows, how soon bytes arrive, and what it takes of the machine.
package main

import (
	"strings"
	"time"

	"longhaul/bench/kit"
	"longhaul/lab/experiment"
)

func main() { kit.Main(pairsSuite().Entry(), stripesSuite().Entry()) }

// The ways from site A to site B.
const (
	WayPair      = "pair"         // paired relays, with TLS
	WayClear     = "pair-clear"   // paired relays without encryption
	WayPlain     = "plain"        // unpaired longhaul relays
	WayDirect    = "direct"       // no relay
	WayHAProxy   = "haproxy"      // HAProxy at both sites, TLS between them
	WayStunnel   = "stunnel"      // the same with stunnel
	WayWireGuard = "wireguard-go" // a VPN between the relays' hosts, no relay

	WayNoResume      = "pair-no-resume"       // paired relays with TLS and resume: off
	WayClearNoResume = "pair-clear-no-resume" // paired relays with encrypt: off and resume: off
)

// The ways of stripes, beside direct, plain and pair with its one lane.
const (
	WayLanes      = "pair-lanes"       // paired relays with manyLanes for each flow
	WayClearLanes = "pair-clear-lanes" // WayLanes with encrypt: off
	WayMPTCP      = "mptcp"            // Multipath TCP of the kernel from end to end, no relay
)

// ours are the ways whose figures have bounds.
func ours(way string) bool { return strings.HasPrefix(way, WayPair) }

func pairsSuite() kit.Suite {
	relays := []string{WayPair, WayPlain}
	all := []string{WayPair, WayPlain, WayDirect}
	programs := []string{WayPair, WayNoResume, WayClear, WayClearNoResume, WayPlain, WayHAProxy, WayStunnel, WayWireGuard}
	return kit.Suite{Crowds: "outage, parked and storm", Missing: missing, Bounded: ours,
		Usual: kit.Options{Repeat: 1, Seed: 1, Time: 10 * time.Minute}, QuickTime: time.Minute, Experiment: experiment.Experiment{
			Name:    "pairs",
			Summary: "paired relays in outages, upgrades and deaths, and what they cost",
			Source:  "no report: every flow is compared at both ends",
			Short:   "Paired relays in outages, upgrades and deaths, and what they cost",
			Long: `pairs makes a pair of relays at the two sites and measures each of its
promises, beside unpaired relays, direct TCP and other programs:

  outage    the WAN is cut for 20 s under many flows, at random moments
  nat       a NAT forgets the connections of silent flows, then all
  upgrade   both relays are upgraded in turn, under load and in outages
  upgrade-load  the same under 2000 flows and a full WAN
  death     the far relay is killed and started again
  soak      all of that and more at random moments
  answer    64 KiB on a new flow at 300 ms
  start     the first second of a bulk flow at 300 ms
  parked    descriptors and memory of silent flows
  storm     thousands of clients at once, with little CPU for each relay
  compress  goodput of text and of random bytes, with compress: auto and off
  windows   one flow on paths that hold more than 64 MiB, and its memory
  cost      CPU time over a cable, and with cost-wan over a WAN of 1 Gb/s

In outage, upgrade, death and soak both ends of each flow compare
every byte. --through chooses the ways from site to site: pair,
plain (unpaired), direct, and for cost pair-no-resume (resume: off),
pair-clear (encrypt: off), pair-clear-no-resume (both), haproxy, stunnel and
wireguard-go (Debian's packages).

Exit codes: 0 every bound was kept, 1 one was not.`,
			Example: `  go run ./bench/pairs --quick
  go run ./bench/pairs --case cost --repeat 5 --json > cost.json
  go run ./bench/pairs --case outage --flows 5000 --through pair
  go run ./bench/pairs --case soak --time 30m
  go run ./bench/pairs --case upgrade,upgrade-load --json > upgrades.json`,
		}, Trials: []kit.Trial{
			{Name: "outage", About: "outages of 20 s at random moments, flows that begin and end all the time", Ways: all, Run: outage},
			{Name: "nat", About: "a NAT forgets silent connections, then all", Ways: []string{WayPair}, Run: nat},
			{Name: "upgrade", About: "upgrades of both relays, under load and in outages of 5 s", Ways: relays, Run: upgrade},
			{Name: "upgrade-load", About: "upgrades in turn under 2000 flows, 200 new ones a second, and a full WAN of 1 Gb/s", Ways: relays, Run: upgradeLoad},
			{Name: "death", About: "kill -9 of the far relay, which is started again", Ways: relays, Run: death},
			{Name: "soak", About: "outages, resets, black holes, deaths, upgrades and strangers at random moments", Ways: []string{WayPair, WayClear}, Run: soak},
			{Name: "answer", About: "64 KiB on a new flow, after a request, at 300 ms and 100 Mb/s", Ways: all, Run: answer},
			{Name: "start", About: "the first second of a bulk flow at 300 ms and 100 Mb/s", Ways: all, Run: start},
			{Name: "parked", About: "flows that have been silent for half a minute", Ways: relays, Run: parked},
			{Name: "storm", About: "5000 clients connect at once, with all CPU and with 0.5 and 0.2 cores for each relay", Ways: relays, Run: storm},
			{Name: "compress", About: "text and random bytes at 20 Mb/s and 40 ms, as they are and with compress: auto", Ways: []string{WayPair, WayClear}, Run: compressed},
			{Name: "windows", About: "one flow at 1 Gb/s and 1 s, and at 2 Gb/s and 500 ms, and what it takes of the memory", Ways: relays, Algorithms: []string{wideControl}, Run: windows},
			{Name: "cost", About: "CPU time of the programs at both sites, one flow over a cable", Ways: programs, Run: cost, Compare: compareCosts},
			{Name: "cost-wan", About: "the same over a WAN of 1 Gb/s and 10 ms", Ways: programs, Run: costWAN, Compare: compareCosts},
		}}
}
