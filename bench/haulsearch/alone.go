package main

import (
	"fmt"
	"math/rand/v2"
)

var (
	boundStuck = &bound{name: "stuck", says: "goodput ÷ capacity, second half", atLeast: true, allowed: never}
	boundSlow  = &bound{name: "slow", says: "arrived ÷ capacity, second half", atLeast: true, allowed: seldom}
	// Of one haul on a path of its own.
	boundNeedless = &bound{name: "needless", says: "sent × (1 − loss) ÷ delivered after 10 s", allowed: seldom}
	boundQueue    = &bound{name: "queue", says: "queue p95 from 30 s on", unit: "ms", allowed: seldom}
)

// alone is one haul on a path of its own that stays as it is.
var alone = kind{
	name:   "alone",
	says:   "one haul, nobody else, a path that stays",
	bounds: []*bound{boundStuck, boundNeedless, boundQueue},
	draw:   drawAlone,
	holds: func(p path) error {
		rtt := p.rttMs()
		return all(haulFirst(p), checkFlows(p, "haul", 1, 1), checkStays(p),
			within("rate", p.rateMbps(), 0.1, 1000), within("rtt", rtt, 2, 600), checkQueue(p, 0.03, 8, 4),
			within("loss", p.loss(), 0, 0.2), within("jitter", p.settings.or("jitter", 0), 0, min(5, rtt/20)),
			within("ackloss", p.settings.or("ackloss", 0), 0, 0.05), within("aggregate", p.settings.or("aggregate", 0), 0, 10),
			checkTime(p, aloneTime(p)))
	},
	judge: func(p path, run simulate) ([]figure, error) { return judgeAlone(p, run, boundStuck) },
}

func checkStays(p path) error {
	if len(p.changes) > 0 || len(p.flows[0].settings) > 0 || p.flows[0].beginS > 0 {
		return fmt.Errorf("a path of one haul that stays has no changes")
	}
	return nil
}

func aloneTime(p path) float64 { return max(20, 60*p.rttMs()/1e3) }

func drawAlone(r *rand.Rand) path {
	var p path
	p.settings.set("rate", drawRate(r, 0.1, 200, 1000))
	p.settings.set("rtt", logUniform(r, 2, 600))
	p.settings.set("queue", drawQueue(r, p, 0.03, 8, 4))
	if r.IntN(2) == 0 {
		p.settings.set("loss", logUniform(r, 1e-4, 0.2))
		if r.IntN(3) == 0 {
			p.settings.set("place", placeAfter)
		}
	}
	if r.IntN(4) == 0 {
		p.settings.set("jitter", uniform(r, 0, min(5, p.rttMs()/20)))
	}
	if r.IntN(4) == 0 {
		p.settings.set("ackloss", uniform(r, 0, 0.05))
	}
	if r.IntN(5) == 0 {
		p.settings.set("aggregate", logUniform(r, 0.5, 10))
	}
	p.settings.set("time", simulatedTime(p, aloneTime(p), 90, 150e3))
	p.withSeed(r)
	p.flows = []flow{{control: "haul"}}
	return p
}

// judgeAlone judges one haul on a path of its own by what it gets and what it
// costs.
func judgeAlone(p path, run simulate, gets *bound) ([]figure, error) {
	end := p.timeS()
	half, started, settled := secondHalf(p), window{10, end}, window{30, end}
	over := []window{half, started}
	limit := queueLimitMs(p)
	queueMatters := end >= 40 && queueMs(p, p) > limit
	if queueMatters {
		over = append(over, settled)
	}
	o, err := run(p, over...)
	if err != nil {
		return nil, err
	}
	got := figure{bound: gets, value: shareOf(o.over[0].flows[0].goodputBps, o.over[0].capacityBps), limit: 0.5, over: half}
	if gets == boundSlow {
		got.value, got.limit = shareOf(o.over[0].flows[0].arrivedBps, o.over[0].capacityBps), 0.9
	}
	f := o.over[1].flows[0]
	figures := []figure{got,
		{bound: boundNeedless, value: needless(f.sent, f.delivered, p.loss()), limit: 1.05, over: started}}
	if queueMatters {
		figures = append(figures, figure{bound: boundQueue, value: o.over[2].queueP95Ms, limit: limit, over: settled})
	}
	return figures, nil
}

// slow is one haul at 0.1 to 10 Mb/s. What has arrived is judged, in any order: a
// window of some hundred packets would otherwise be judged by its last hole.
var slow = kind{
	name:   "slow",
	says:   "one haul at 0.1 to 10 Mb/s, nobody else",
	bounds: []*bound{boundSlow, boundNeedless, boundQueue},
	draw: func(r *rand.Rand) path {
		var p path
		p.settings.set("rate", logUniform(r, 0.1, 10))
		p.settings.set("rtt", logUniform(r, 20, 600))
		p.settings.set("queue", drawQueue(r, p, 1, 8, 20))
		if r.IntN(2) == 0 {
			p.settings.set("loss", 0.05)
		}
		p.settings.set("time", simulatedTime(p, slowTime(p), 200, 50e3))
		p.withSeed(r)
		p.flows = []flow{{control: "haul"}}
		return p
	},
	holds: func(p path) error {
		err := all(haulFirst(p), checkFlows(p, "haul", 1, 1), checkStays(p),
			within("rate", p.rateMbps(), 0.1, 10), within("rtt", p.rttMs(), 20, 600), checkQueue(p, 1, 8, 20),
			checkTime(p, slowTime(p)))
		if err == nil && p.loss() != 0 && p.loss() != 0.05 {
			return fmt.Errorf("loss of %s is neither 0 nor 0.05", number(p.loss()))
		}
		return err
	},
	judge: func(p path, run simulate) ([]figure, error) { return judgeAlone(p, run, boundSlow) },
}

func slowTime(p path) float64 { return 60 + 100*p.rttMs()/1e3 }
