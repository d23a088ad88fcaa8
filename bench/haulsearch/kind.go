package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
)

// A bound is a promise that haul makes about a kind of path.
type bound struct {
	name    string
	says    string // of the figure
	unit    string
	atLeast bool    // the limit is the least allowed; else the most
	allowed float64 // share of paths that may break it
}

// A figure is what one path showed about a bound.
type figure struct {
	bound        *bound
	value, limit float64
	over         window // where it was measured
	reference    *path  // what it was compared with, if anything
}

// excess says how far beyond the limit a value is: above 1, the bound is broken.
func (f figure) excess() float64 {
	a, b := f.value, f.limit
	if f.bound.atLeast {
		a, b = b, a
	}
	switch {
	case a <= b:
		return min(1, a/max(b, math.SmallestNonzeroFloat64))
	case b <= 0:
		return mostExcess
	}
	return min(a/b, mostExcess)
}

// mostExcess is what a share of nothing counts as.
const mostExcess = 1e6

func (f figure) broken() bool { return f.excess() > 1 }

// simulate runs a path and returns figures over the windows.
type simulate func(p path, over ...window) (outcome, error)

// A kind of path: how to draw one, which paths its bounds hold for, how to judge.
type kind struct {
	name   string
	says   string
	bounds []*bound
	draw   func(r *rand.Rand) path
	// holds says why a path is not of this kind. Every path that is drawn is, and
	// every simpler one that is tried in its place.
	holds func(p path) error
	judge func(p path, run simulate) ([]figure, error)
}

var kinds = []kind{alone, slow, disturbed, besideCubic, group, hosts, crowd, policed}

// The share of paths that may break a bound.
const (
	never  = 0
	seldom = 0.01
)

// all joins what is wrong.
func all(problems ...error) error {
	for _, err := range problems {
		if err != nil {
			return err
		}
	}
	return nil
}

// checkFlows holds the number of flows of a control against a range.
func checkFlows(p path, control string, least, most int) error {
	if n := p.count(control); n < least || n > most {
		return fmt.Errorf("%d %s flows, not %d to %d", n, control, least, most)
	}
	return nil
}

// checkTime holds the time to simulate against the least that the bounds need.
func checkTime(p path, leastS float64) error {
	if p.timeS() < leastS {
		return fmt.Errorf("time of %s s is less than %s s", number(p.timeS()), number(leastS))
	}
	return nil
}

// checkQueue says whether the queue holds at least some packets and is within a
// range of BDP, or as small as these packets allow.
func checkQueue(p path, least, most, leastPackets float64) error {
	const rounding = 1 - 1e-9
	if p.queuePackets() < leastPackets*rounding {
		return fmt.Errorf("queue of %s BDP holds fewer than %s packets", number(p.queueBDP()), number(leastPackets))
	}
	return within("queue", p.queueBDP(), least, max(most, roundUp(leastPackets/p.bdpPackets())))
}

var errNeedsHaul = errors.New("the first flow is not haul")

// haulFirst says whether the path begins with haul, which judges rely on.
func haulFirst(p path) error {
	if len(p.flows) == 0 || p.flows[0].control != "haul" {
		return errNeedsHaul
	}
	return nil
}

// shareOf is what flows got of what the path could deliver.
func shareOf(bps, capacityBps float64) float64 {
	if capacityBps <= 0 {
		return 1
	}
	return bps / capacityBps
}

// needless is sent × (1 − loss) ÷ delivered. Less counts as sent than was: four
// standard deviations of the random loss, and the packets that may be on the way
// at the end of the window and not at its beginning.
func needless(sent, delivered, loss float64) float64 {
	const packets = 6
	needed := sent*(1-loss) - 4*math.Sqrt(sent*loss*(1-loss)) - packets
	switch {
	case needed <= 0:
		return 0
	case delivered <= 0:
		return mostExcess
	}
	return needed / delivered
}

// secondHalf is when most figures are taken, from a whole second on.
func secondHalf(p path) window { return window{math.Floor(p.timeS() / 2), p.timeS()} }

// queueLimitMs is the most delay that haul may keep in a queue for 95 % of the
// packets when nobody else is there.
func queueLimitMs(p path) float64 {
	const packets = 6
	return max(25, p.rttMs()/8, packets*packetBytes*8/1e3/p.rateMbps())
}

// queueMs is the delay of the full queue, filled at the first path's BDP and
// emptied at a later path's rate.
func queueMs(first, later path) float64 {
	return first.queueBDP() * first.rttMs() * first.rateMbps() / later.rateMbps()
}
