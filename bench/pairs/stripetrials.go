package main

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"longhaul/bench/kit"
	"longhaul/lab"
	"longhaul/lab/experiment"
)

// stripeTrials are the cases of stripes, in the order of the table.
func stripeTrials() []kit.Trial {
	ways := []string{WayDirect, WayPlain, WayPair, WayLanes, WayMPTCP}
	programs := []string{WayPlain, WayPair, WayLanes, WayClear, WayClearLanes}
	return []kit.Trial{
		{Name: "policed", About: "400 Mb/s, 63 ms, and 50 Mb/s for each connection", Ways: ways, Run: policed},
		{Name: "hashed", About: "four links of 100 Mb/s, 63 ms; each connection stays on one of them", Ways: ways, Run: hashed},
		{Name: "two-paths", About: "two WANs: 100 Mb/s at 20 ms, and 50 Mb/s at 80 ms with 0.5 % loss", Ways: []string{WayPair}, Run: twoPaths},
		{Name: "path-dies", About: "one of two WANs is away for 10 s", Ways: []string{WayPair}, Run: pathDies},
		{Name: "standby", About: "the ordinary WAN is away for 10 s, and one for standby stands by", Ways: []string{WayPair}, Run: standby},
		{Name: "memory", About: "memory of one bulk flow on the policed path, and of 1000 at once under memory_limit", Ways: []string{WayPair, WayLanes}, Run: memory},
		{Name: "cpu", About: "CPU time of the programs at both sites, one flow over a cable", Ways: programs, Run: stripeCPU},
		{Name: "cpu-wan", About: "the same over a WAN of 1 Gb/s and 10 ms", Ways: programs, Run: stripeCPUOfWAN},
	}
}

func stripesSuite() kit.Suite {
	return kit.Suite{Crowds: "memory", Missing: missing, Bounded: ours, Trials: stripeTrials(), Usual: kit.Options{Repeat: 1, Seed: 1},
		Experiment: experiment.Experiment{
			Name:    "stripes",
			Summary: "one flow over many connections, beside other ways to do that",
			Source:  "no report: the figures are those of many lanes",
			Short:   "One flow over many connections, beside other ways to do that",
			Long: `stripes sends flows over paths that bound each connection, through pairs of
relays whose flows have one lane or eight (pair-lanes), beside direct TCP,
unpaired relays (plain) and Multipath TCP of the kernel with eight subflows
(mptcp):

  policed    each connection has an eighth of the link
  hashed     four links, and each connection on one of them
  two-paths  two WANs at once, one of them slow and lossy
  path-dies  one of two WANs is lost, and comes back
  standby    a WAN for standby takes over
  memory     what the relays hold of one flow, and of many at once
  cpu        CPU time over a cable, and with cpu-wan over a WAN of 1 Gb/s

In policed and hashed a second flow follows, which finds what the first has
left: "cold" and "known" in the result. --quick has a quarter of the rates.
mptcp needs iproute2.

Exit codes: 0 every bound was kept, 1 one was not.`,
			Example: `  go run ./bench/pairs stripes --quick
  go run ./bench/pairs stripes --case policed --repeat 3 --json > policed.json
  go run ./bench/pairs stripes --case cpu --through pair-clear-lanes`,
		}}
}

// The path of the stripes.
const (
	stripeRTT     = 63 * time.Millisecond
	stripeRateBps = 400e6
	stripeBurst   = 64 << 10 // of the policer
	stripeMembers = 4        // of case hashed
)

// stripeRate is the rate of the path: a machine with two busy cores emulates a quarter.
func stripeRate(o kit.Options) int64 {
	return kit.Pick(o, int64(stripeRateBps), int64(stripeRateBps)/4)
}

// The bounds of the stripes.
const (
	stripeShare       = 0.95
	stripeCold        = 6 * time.Second
	stripeKnown       = time.Second
	stripeHashedShare = 0.9
	stripeEchoFactor  = 1.1  // of the echoes beside a flow with one lane
	stripeMemoryBDPs  = 2.0  // of the path
	stripeCost        = 0.45 // CPU s/GB of both sites
	stripeCores       = 1.0  // at 1 Gb/s
)

// policed measures flows where each connection has an eighth of the path.
func policed(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) error {
	c := conditions(stripeRTT, stripeRate(o))
	c.Policer = perConnection(c.RateBps / 8)
	return twoFlows(ctx, o, lab.TwoSites(c), way, func(run string, f striped) {
		share := kit.Measured{Name: run + ": last 4 s, of the limit", Value: f.last * 8 / c.LimitBps()}
		soon := kit.Measured{Name: run + ": 95 % for a second, after", Unit: "s", Value: f.reached(stripeShare * c.LimitBps() / 8).Seconds()}
		if way == WayLanes {
			share.Bound = kit.AtLeast(stripeShare)
			soon.Bound = kit.AtMost(map[string]time.Duration{runCold: stripeCold, runKnown: stripeKnown}[run].Seconds())
		}
		note(share)
		note(soon)
		noteLanes(way, run, f, note)
	})
}

// hashed measures them over a group of links that keeps each connection on one.
func hashed(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) error {
	c := conditions(stripeRTT, stripeRate(o)/stripeMembers)
	limit := stripeMembers * c.LimitBps()
	return twoFlows(ctx, o, lab.HashedSites(c, stripeMembers), way, func(run string, f striped) {
		share := kit.Measured{Name: run + ": last 4 s, of all links", Value: f.last * 8 / limit}
		if way == WayLanes {
			share.Bound = kit.AtLeast(stripeHashedShare)
		}
		note(share)
		noteLanes(way, run, f, note)
	})
}

// noteLanes notes what relays tell of a flow.
func noteLanes(way, run string, f striped, note func(kit.Measured)) {
	if ours(way) {
		note(kit.Measured{Name: run + ": lanes", Value: float64(f.lanes)})
	}
	if f.cpuPerGB > 0 {
		note(kit.Measured{Name: run + ": " + figureCost, Value: f.cpuPerGB})
	}
}

// The two flows of a world.
const (
	runCold  = "cold"
	runKnown = "known"
)

// twoFlows sends twice, one flow after the other: the second finds what the first has
// learnt.
func twoFlows(ctx context.Context, o kit.Options, t lab.Topology, way string, done func(run string, f striped)) error {
	var received atomic.Int64
	w, err := buildWorld(ctx, o, t, way, func(conn net.Conn) { countAll(conn, &received) }, settings{})
	if err != nil {
		return err
	}
	defer w.close()
	for _, run := range []string{runCold, runKnown} {
		f, err := w.stripe(ctx, &received, kit.Pick(o, 20*time.Second, 12*time.Second))
		if err != nil {
			return err
		}
		done(run, f)
	}
	return nil
}

// stripeCPU measures the CPU time over a cable.
func stripeCPU(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) error {
	return costOver(ctx, o, cabled(lab.TwoSites(lab.MitreConditions())), way, bounding(way, figureCost, stripeCost, note))
}

// stripeCPUOfWAN does the same over a WAN.
func stripeCPUOfWAN(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) error {
	return costOver(ctx, o, lab.TwoSites(conditions(costRTT, costRateBps)), way, bounding(way, figureCores, stripeCores, note))
}

// bounding gives a figure of ways with many lanes its bound.
func bounding(way, figure string, most float64, note func(kit.Measured)) func(kit.Measured) {
	return func(m kit.Measured) {
		if m.Name == figure && (way == WayLanes || way == WayClearLanes) {
			m.Bound = kit.AtMost(most)
		}
		note(m)
	}
}
