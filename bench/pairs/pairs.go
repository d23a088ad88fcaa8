// Command pairs measures paired relays beside unpaired ones, direct TCP, and other
// programs that encrypt: what an outage, a forgetful NAT, an upgrade and a death cost
// the flows, how soon bytes arrive, and what it takes of the machine.
package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"longhaul/lab/progress"
	"longhaul/lab/sandbox"
)

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

// Options are the options of a run.
type Options struct {
	Program string // the longhaul binary
	Cases   []string
	Through []string      // the ways
	Repeat  int           // runs of each case
	Quick   bool          // fewer flows, less time: a first look
	Flows   int           // of case outage; 0: the usual
	Time    time.Duration // of case soak
	Seed    uint64

	Report progress.Reporter
}

// pick returns the quick choice in a quick run.
func pick[T any](o Options, usual, quick T) T {
	if o.Quick {
		return quick
	}
	return usual
}

// trial is one case: its ways, and one run of it.
type trial struct {
	name  string
	about string
	ways  []string

	// run measures one way once.
	run func(ctx context.Context, o Options, way string, run int, note func(measured)) error
	// compare adds figures that need those of several ways. It may be nil.
	compare func(*CaseResult)
}

// suite is an experiment with its cases, in the order of its table.
type suite struct {
	name   string
	crowds string // the cases with a number of flows
	trials []trial
}

func pairsSuite() suite {
	relays := []string{WayPair, WayPlain}
	all := []string{WayPair, WayPlain, WayDirect}
	programs := []string{WayPair, WayNoResume, WayClear, WayClearNoResume, WayPlain, WayHAProxy, WayStunnel, WayWireGuard}
	return suite{"pairs", "outage, parked and storm", []trial{
		{name: "outage", about: "outages of 20 s at random moments, flows that begin and end all the time", ways: all, run: outage},
		{name: "nat", about: "a NAT forgets silent connections, then all", ways: []string{WayPair}, run: nat},
		{name: "upgrade", about: "upgrades of both relays, under load and in outages of 5 s", ways: relays, run: upgrade},
		{name: "upgrade-load", about: "upgrades in turn under 2000 flows, 200 new ones a second, and a full WAN of 1 Gb/s", ways: relays, run: upgradeLoad},
		{name: "death", about: "kill -9 of the far relay, which is started again", ways: relays, run: death},
		{name: "soak", about: "outages, resets, black holes, deaths, upgrades and strangers at random moments", ways: []string{WayPair, WayClear}, run: soak},
		{name: "answer", about: "64 KiB on a new flow, after a request, at 300 ms and 100 Mb/s", ways: all, run: answer},
		{name: "start", about: "the first second of a bulk flow at 300 ms and 100 Mb/s", ways: all, run: start},
		{name: "parked", about: "flows that have been silent for half a minute", ways: relays, run: parked},
		{name: "storm", about: "5000 clients connect at once, with all CPU and with 0.5 and 0.2 cores for each relay", ways: relays, run: storm},
		{name: "compress", about: "text and random bytes at 20 Mb/s and 40 ms, as they are and with compress: auto", ways: []string{WayPair, WayClear}, run: compressed},
		{name: "cost", about: "CPU time of the programs at both sites, one flow over a cable", ways: programs, run: cost, compare: compareCosts},
		{name: "cost-wan", about: "the same over a WAN of 1 Gb/s and 10 ms", ways: programs, run: costWAN, compare: compareCosts},
	}}
}

// cases returns the names of all cases.
func (s suite) cases() []string {
	var names []string
	for _, e := range s.trials {
		names = append(names, e.name)
	}
	return names
}

// ways returns the ways of all cases.
func (s suite) ways() []string {
	var all []string
	for _, e := range s.trials {
		for _, way := range e.ways {
			if !slices.Contains(all, way) {
				all = append(all, way)
			}
		}
	}
	return all
}

// run runs the chosen cases. The process must be inside a sandbox. The runs of a case go
// through its ways in turn, so that a slow minute of the machine meets all of them.
func (s suite) run(ctx context.Context, o Options) (Result, error) {
	result := newResult(s.name, o)
	// In the sandbox's own /run, which disappears with the sandbox.
	if err := sandbox.PrivateRun(); err != nil {
		return result, err
	}
	for _, e := range s.trials {
		if !slices.Contains(o.Cases, e.name) {
			continue
		}
		c, err := e.measure(ctx, o)
		if err != nil {
			return result, err
		}
		result.Cases = append(result.Cases, c)
	}
	return result, nil
}

// measure runs a case. A way that fails is an error of the case's result, and ends
// the runs of that way alone.
func (e trial) measure(ctx context.Context, o Options) (CaseResult, error) {
	c := CaseResult{Name: e.name, About: e.about}
	ways := slices.DeleteFunc(slices.Clone(e.ways), func(way string) bool {
		if !slices.Contains(o.Through, way) {
			return true
		}
		reason := missing(way)
		if reason == "" {
			return false
		}
		o.Report.Notef("%s through %s: not run: %s", e.name, way, reason)
		c.Skipped = append(c.Skipped, Skipped{Way: way, Reason: reason})
		return true
	})
	for run := 1; run <= o.Repeat; run++ {
		for _, way := range ways {
			if c.failed(way) {
				continue
			}
			o.Report.Linef("%s through %s, %d of %d", e.name, way, run, o.Repeat)
			err := e.run(ctx, o, way, run, func(m measured) { c.add(way, m) })
			if ctx.Err() != nil {
				return c, ctx.Err()
			}
			if err != nil {
				c.Errors = append(c.Errors, Failure{Way: way, Error: err.Error()})
				o.Report.Notef("%s through %s: %v", e.name, way, err)
			}
		}
	}
	if e.compare != nil {
		e.compare(&c)
	}
	c.finish()
	return c, nil
}

// seed is that of one run: all ways of it get the same choices.
func (o Options) seed(run int) uint64 { return o.Seed + uint64(run)*1000 }
