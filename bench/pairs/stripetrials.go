package main

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"longhaul/lab"
	"longhaul/lab/experiment"
)

// stripeTrials are the cases of stripes, in the order of the table.
func stripeTrials() []trial {
	ways := []string{WayDirect, WayPlain, WayPair, WayLanes, WayMPTCP}
	programs := []string{WayPlain, WayPair, WayLanes, WayClear, WayClearLanes}
	return []trial{
		{name: "policed", about: "400 Mb/s, 63 ms, and 50 Mb/s for each connection", ways: ways, run: policed},
		{name: "hashed", about: "four links of 100 Mb/s, 63 ms; each connection stays on one of them", ways: ways, run: hashed},
		{name: "two-paths", about: "two WANs: 100 Mb/s at 20 ms, and 50 Mb/s at 80 ms with 0.5 % loss", ways: []string{WayPair}, run: twoPaths},
		{name: "path-dies", about: "one of two WANs is away for 10 s", ways: []string{WayPair}, run: pathDies},
		{name: "standby", about: "the ordinary WAN is away for 10 s, and one for standby stands by", ways: []string{WayPair}, run: standby},
		{name: "memory", about: "memory of one bulk flow on the policed path, and of 1000 at once under memory_limit", ways: []string{WayPair, WayLanes}, run: memory},
		{name: "cpu", about: "CPU time of the programs at both sites, one flow over a cable", ways: programs, run: stripeCPU},
		{name: "cpu-wan", about: "the same over a WAN of 1 Gb/s and 10 ms", ways: programs, run: stripeCPUOfWAN},
	}
}

func stripesSuite() suite { return suite{"stripes", "memory", stripeTrials()} }

func stripesEntry() experiment.Experiment {
	s := stripesSuite()
	return experiment.Experiment{
		Name:    s.name,
		Summary: "one flow over many connections, beside other ways to do that",
		Source:  "no report: the figures are those of many lanes",
		Cases:   s.cases(),
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
		New: func() experiment.Run { return &command{suite: s, Options: Options{Repeat: 1, Seed: 1}} },
	}
}

// The path of the stripes.
const (
	stripeRTT     = 63 * time.Millisecond
	stripeRateBps = 400e6
	stripeBurst   = 64 << 10 // of the policer
	stripeMembers = 4        // of case hashed
)

// stripeRate is the rate of the path: a machine with two busy cores emulates a quarter.
func stripeRate(o Options) int64 { return pick(o, int64(stripeRateBps), int64(stripeRateBps)/4) }

// The bounds of the stripes.
const (
	stripeShare       = 0.95
	stripeCold        = 6 * time.Second
	stripeKnown       = time.Second
	stripeHashedShare = 0.9
	stripeUnlimited   = 2    // lanes where one connection gets everything
	stripeEchoFactor  = 1.1  // of the echoes beside a flow with one lane
	stripeStallFactor = 1.3  // of the transfers without stalls
	stripeMemoryBDPs  = 2.0  // of the path
	stripeCost        = 0.45 // CPU s/GB of both sites
	stripeCores       = 1.0  // at 1 Gb/s
)

// policed measures flows where each connection has an eighth of the path.
func policed(ctx context.Context, o Options, way string, _ int, note func(measured)) error {
	c := conditions(stripeRTT, stripeRate(o))
	c.Policer = perConnection(c.RateBps / 8)
	return twoFlows(ctx, o, lab.TwoSites(c), way, func(run string, f striped) {
		share := measured{name: run + ": last 4 s, of the limit", value: f.last * 8 / c.LimitBps()}
		soon := measured{name: run + ": 95 % for a second, after", unit: "s", value: f.reached(stripeShare * c.LimitBps() / 8).Seconds()}
		if way == WayLanes {
			share.bound = atLeast(stripeShare)
			soon.bound = atMost(map[string]time.Duration{runCold: stripeCold, runKnown: stripeKnown}[run].Seconds())
		}
		note(share)
		note(soon)
		noteLanes(way, run, f, note, nil)
	})
}

// hashed measures them over a group of links that keeps each connection on one.
func hashed(ctx context.Context, o Options, way string, _ int, note func(measured)) error {
	c := conditions(stripeRTT, stripeRate(o)/stripeMembers)
	limit := stripeMembers * c.LimitBps()
	return twoFlows(ctx, o, lab.HashedSites(c, stripeMembers), way, func(run string, f striped) {
		share := measured{name: run + ": last 4 s, of all links", value: f.last * 8 / limit}
		if way == WayLanes {
			share.bound = atLeast(stripeHashedShare)
		}
		note(share)
		noteLanes(way, run, f, note, nil)
	})
}

// noteLanes notes what relays tell of a flow.
func noteLanes(way, run string, f striped, note func(measured), lanes *Bound) {
	if ours(way) {
		note(measured{name: run + ": lanes", value: float64(f.lanes), bound: lanes})
	}
	if f.cpuPerGB > 0 {
		note(measured{name: run + ": " + figureCost, value: f.cpuPerGB})
	}
}

// The two flows of a world.
const (
	runCold  = "cold"
	runKnown = "known"
)

// twoFlows sends twice, one flow after the other: the second finds what the first has
// learnt.
func twoFlows(ctx context.Context, o Options, t lab.Topology, way string, done func(run string, f striped)) error {
	var received atomic.Int64
	w, err := buildWorld(ctx, o, t, way, func(conn net.Conn) { countAll(conn, &received) }, settings{})
	if err != nil {
		return err
	}
	defer w.close()
	for _, run := range []string{runCold, runKnown} {
		f, err := w.stripe(ctx, &received, pick(o, 20*time.Second, 12*time.Second))
		if err != nil {
			return err
		}
		done(run, f)
		if f.lanesWhy != "" {
			o.Report.Linef("  %s: %s", run, f.lanesWhy)
		}
	}
	return nil
}

// stripeCPU measures the CPU time over a cable.
func stripeCPU(ctx context.Context, o Options, way string, _ int, note func(measured)) error {
	return costOver(ctx, o, cabled(lab.TwoSites(lab.MitreConditions())), way, bounding(way, figureCost, stripeCost, note))
}

// stripeCPUOfWAN does the same over a WAN.
func stripeCPUOfWAN(ctx context.Context, o Options, way string, _ int, note func(measured)) error {
	return costOver(ctx, o, lab.TwoSites(conditions(costRTT, costRateBps)), way, bounding(way, figureCores, stripeCores, note))
}

// bounding gives a figure of ways with many lanes its bound.
func bounding(way, figure string, most float64, note func(measured)) func(measured) {
	return func(m measured) {
		if m.name == figure && (way == WayLanes || way == WayClearLanes) {
			m.bound = atMost(most)
		}
		note(m)
	}
}
