package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

var (
	boundAbsorbing = &bound{name: "absorbing", says: "arrived ÷ capacity from 30 s after the last disturbance", atLeast: true, allowed: never}
	boundChange5   = &bound{name: "change-5s", says: "arrived ÷ capacity 5 to 15 s after a change of rate or RTT", atLeast: true, allowed: seldom}
	boundChange15  = &bound{name: "change-15s", says: "arrived ÷ capacity from 15 s after a change of rate or RTT", atLeast: true, allowed: seldom}
	boundLaterQ    = &bound{name: "queue", says: "queue p95 from 30 s after the last disturbance", unit: "ms", allowed: seldom}
	boundLaterNeed = &bound{name: "needless", says: "sent × (1 − loss) ÷ delivered from 30 s after the last disturbance", allowed: seldom}
)

// disturbed is one haul on a path that changes once or twice, or that others use
// for a while.
var disturbed = kind{
	name:   "disturbed",
	says:   "one haul, a path that changes or that others use for a while",
	bounds: []*bound{boundAbsorbing, boundChange5, boundChange15, boundLaterQ, boundLaterNeed},
	draw:   drawDisturbed,
	holds:  holdsDisturbed,
	judge:  judgeDisturbed,
}

const (
	undisturbedS = 20  // before the first disturbance
	leastChange  = 0.1 // of a rate, as a share
	judgedS      = 15  // at least, after the last disturbance has had its 30 s
)

// lastDisturbance is when the last disturbance ends, or begins if it stays.
func lastDisturbance(p path) float64 {
	end := 0.0
	for _, c := range p.changes {
		end = max(end, c.atS, c.untilS)
	}
	for _, f := range p.flows[1:] {
		end = max(end, f.beginS, f.settings.or("until", 0))
	}
	return end
}

func disturbedTime(p path) float64 {
	return lastDisturbance(p) + 30 + max(judgedS, 20*p.last().rttMs()/1e3)
}

func holdsDisturbed(p path) error {
	if share := (p.last().rateMbps() - stayingMbps(p)) / p.last().rateMbps(); share < 0.0999 {
		return fmt.Errorf("constant traffic leaves %.2g of the path", share)
	}
	if err := all(haulFirst(p), checkFlows(p, "haul", 1, 1),
		within("rate", p.rateMbps(), 0.5, 1000), within("rtt", p.rttMs(), 2, 600), checkQueue(p, 0.03, 8, 4),
		within("loss", p.loss(), 0, 0.1), within("disturbances", float64(len(p.changes)+len(p.flows)-1), 1, 2)); err != nil {
		return err
	}
	if p.flows[0].beginS > 0 || len(p.flows[0].settings) > 0 {
		return errors.New("haul is there from the beginning to the end")
	}
	for _, f := range p.flows[1:] {
		until, leaves := f.settings.get("until")
		if f.beginS < undisturbedS || leaves && until < f.beginS+1 || !leaves && f.control != "cbr" {
			return fmt.Errorf("%s does not come and leave", f)
		}
		if f.control == "cbr" {
			if err := within("share of cbr", f.settings.or("rate", 0)/p.rateMbps(), 0.2, 0.9); err != nil {
				return err
			}
		}
	}
	last := 0.0
	for _, c := range p.changes {
		if len(c.settings) != 1 || c.atS < max(undisturbedS, last) || c.untilS != 0 && c.untilS < c.atS+1 {
			return errors.New("changes are of one setting each, one after the other, of at least 1 s")
		}
		last = max(c.atS, c.untilS)
		if err := holdsChange(p, c); err != nil {
			return err
		}
	}
	return checkTime(p, disturbedTime(p))
}

// stayingMbps is the rate of constant traffic that comes and stays.
func stayingMbps(p path) float64 {
	mbps := 0.0
	for _, f := range p.flows {
		if _, leaves := f.settings.get("until"); f.control == "cbr" && !leaves {
			mbps += f.settings.or("rate", 0)
		}
	}
	return mbps
}

func holdsChange(p path, c change) error {
	s := c.settings[0]
	var err error
	stays := c.untilS == 0
	switch s.key {
	case "rate":
		err = all(within("rate", s.value, 0.1, 1000), within("change of rate", s.value/p.rateMbps(), 0.0999, 3.001))
		if err == nil && math.Abs(s.value/p.rateMbps()-1) < leastChange {
			err = errors.New("the change leaves the rate almost as it is")
		}
	case "rtt":
		by := s.value - p.rttMs()
		err = all(within("rtt", s.value, 2, 800), within("change of rtt", math.Abs(by), 1, 200))
		if err == nil && by < 0 && !stays {
			err = errors.New("a shorter rtt stays")
		}
		stays = false
	case "loss":
		err = within("loss", s.value, p.loss(), 0.5)
	case "policer":
		err = within("share of the policer", s.value/p.rateMbps(), 0.0999, 0.9001)
	case "down":
		err = all(within("down", s.value, 1, 1), within("time down", c.untilS-c.atS, 1, 10))
	default:
		err = fmt.Errorf("no disturbance changes %s", s.key)
	}
	if err == nil && stays && s.key != "rate" {
		err = fmt.Errorf("a change of %s ends", s.key)
	}
	return err
}

func drawDisturbed(r *rand.Rand) path {
	var p path
	p.settings.set("rate", drawRate(r, 0.5, 100, 500))
	p.settings.set("rtt", logUniform(r, 2, 600))
	p.settings.set("queue", drawQueue(r, p, 0.03, 8, 4))
	if r.IntN(2) == 0 {
		p.settings.set("loss", logUniform(r, 1e-4, 0.1))
		if r.IntN(4) == 0 {
			p.settings.set("place", placeAfter)
		}
	}
	p.flows = []flow{{control: "haul"}}
	// Half of the paths have nothing but changes of rate and RTT, which have bounds
	// of their own.
	pure := r.IntN(2) == 0
	from := undisturbedS + math.Floor(min(20, 20*p.rttMs()/1e3)) + float64(r.IntN(10))
	for range 1 + r.IntN(2) {
		until := from + math.Ceil(logUniform(r, 1, 20))
		lasting := r.IntN(3) == 0
		disturbances := 7
		if pure {
			disturbances = 2
		}
		change := change{atS: from, untilS: until}
		switch r.IntN(disturbances) {
		case 0:
			factor := logUniform(r, 0.1, 3)
			for math.Abs(factor-1) < 1.2*leastChange {
				factor = logUniform(r, 0.1, 3)
			}
			change.settings.set("rate", max(0.1, significant(p.rateMbps()*factor, 3)))
			if lasting {
				change.untilS = 0
			}
		case 1:
			by := logUniform(r, 1, 200)
			if lasting {
				change.untilS = 0
			}
			if lasting && r.IntN(2) == 0 && p.rttMs() >= 3 {
				by = -min(by, p.rttMs()-2)
			}
			change.settings.set("rtt", significant(p.rttMs()+by, 6))
		case 2:
			change.settings.set("loss", max(p.loss(), logUniform(r, 0.005, 0.5)))
		case 3:
			change.untilS = min(until, from+10)
			change.settings.set("down", 1)
		case 4:
			change.settings.set("policer", significant(p.rateMbps()*logUniform(r, 0.1, 0.9), 3))
		case 5:
			cbr := flow{control: "cbr", beginS: from}
			cbr.settings.set("rate", significant(p.rateMbps()*uniform(r, 0.21, 0.89), 3))
			if !lasting {
				cbr.settings.set("until", until)
			}
			p.flows = append(p.flows, cbr)
		case 6:
			until = from + float64(5+r.IntN(30))
			p.flows = append(p.flows, flow{control: "cubic", beginS: from, settings: settings{{"until", until}}})
		}
		if len(change.settings) > 0 {
			p.changes = append(p.changes, change)
			until = max(change.atS, change.untilS)
		}
		from = until + math.Floor(logUniform(r, 1, 20))
	}
	// Two disturbances together may leave too little: then one is enough.
	for (p.last().rateMbps()-stayingMbps(p))/p.last().rateMbps() < 0.0999 {
		p.flows = p.flows[:len(p.flows)-1]
	}
	p.settings.set("time", 0)
	p.settings.set("time", math.Ceil(disturbedTime(p)))
	p.withSeed(r)
	return p
}

func judgeDisturbed(p path, run simulate) ([]figure, error) {
	ended, end := lastDisturbance(p), p.timeS()
	soon, then, later := window{ended + 5, ended + 15}, window{ended + 15, end}, window{ended + 30, end}
	over := []window{later}
	onlyChanges := len(p.flows) == 1 && p.loss() <= 0.01 && !slices.ContainsFunc(p.changes, func(c change) bool {
		return c.settings[0].key != "rate" && c.settings[0].key != "rtt"
	})
	if onlyChanges {
		over = append(over, soon, then)
	}
	o, err := run(p, over...)
	if err != nil {
		return nil, err
	}
	// Constant traffic that stays leaves haul the rest.
	taken := stayingMbps(p) * 1e6 * payloadBytes / packetBytes
	share := func(i int) float64 { return shareOf(o.over[i].flows[0].arrivedBps, o.over[i].capacityBps-taken) }
	haul := o.over[0].flows[0]
	figures := []figure{
		{bound: boundAbsorbing, value: share(0), limit: 0.5, over: later},
		{bound: boundLaterNeed, value: needless(haul.sent, haul.delivered, p.loss()), limit: 1.05, over: later},
	}
	if onlyChanges {
		figures = append(figures,
			figure{bound: boundChange5, value: share(1), limit: 0.8, over: soon},
			figure{bound: boundChange15, value: share(2), limit: 0.9, over: then})
	}
	last := p.last()
	if limit := queueLimitMs(last); queueMs(p, last) > limit && taken == 0 {
		figures = append(figures, figure{bound: boundLaterQ, value: o.over[0].queueP95Ms, limit: limit, over: later})
	}
	return figures, nil
}
