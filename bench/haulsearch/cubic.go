package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

var (
	boundStarved = &bound{name: "starved", says: "goodput of the CUBIC flows ÷ theirs beside CUBIC in haul's place, second half", atLeast: true, allowed: seldom}
	boundYields  = &bound{name: "yields", says: "goodput of haul ÷ that of CUBIC in its place, second half", atLeast: true, allowed: seldom}
)

// besideCubic is haul beside CUBIC, held against CUBIC in haul's place.
var besideCubic = kind{
	name:   "cubic",
	says:   "one haul beside 1, 2 or 4 CUBIC flows, no random loss",
	bounds: []*bound{boundStarved, boundYields},
	draw: func(r *rand.Rand) path {
		var p path
		p.settings.set("rate", drawRate(r, 1, 80, 200))
		p.settings.set("rtt", logUniform(r, 5, 300))
		p.settings.set("queue", drawQueue(r, p, 0.03, 8, 4))
		if r.IntN(3) == 0 {
			p.settings.set("codel", 5)
		}
		p.settings.set("time", math.Ceil(besideCubicTime(p)))
		p.withSeed(r)
		p.flows = []flow{{control: "haul"}}
		for range []int{1, 1, 1, 1, 2, 4}[r.IntN(6)] {
			p.flows = append(p.flows, flow{control: "cubic"})
		}
		switch late := uniform(r, 0.1, 10); r.IntN(4) {
		case 0:
			p.flows[0].beginS = late
		case 1:
			for i := range p.flows[1:] {
				p.flows[1+i].beginS = late
			}
		}
		return p
	},
	holds: func(p path) error {
		if err := all(haulFirst(p), checkFlows(p, "haul", 1, 1), checkFlows(p, "cubic", 1, 4),
			within("rate", p.rateMbps(), 1, 200), within("rtt", p.rttMs(), 5, 300), checkQueue(p, 0.03, 8, 4),
			within("loss", p.loss(), 0, 0), checkTime(p, besideCubicTime(p))); err != nil {
			return err
		}
		if codel, present := p.settings.get("codel"); present && codel != 5 {
			return fmt.Errorf("codel of %s ms is not 5", number(codel))
		}
		return checkBegins(p, 10)
	},
	judge: func(p path, run simulate) ([]figure, error) {
		half := secondHalf(p)
		reference := p.clone()
		reference.flows[0].control = "cubic"
		with, err := run(p, half)
		if err != nil {
			return nil, err
		}
		without, err := run(reference, half)
		if err != nil {
			return nil, err
		}
		a, b := with.over[0].flows, without.over[0].flows
		var figures []figure
		add := func(of *bound, got, wanted float64) {
			if wanted > 0 {
				figures = append(figures, figure{bound: of, value: got / wanted, limit: 0.5, over: half, reference: &reference})
			}
		}
		add(boundStarved, totalGoodput(a[1:]), totalGoodput(b[1:]))
		add(boundYields, a[0].goodputBps, b[0].goodputBps)
		return figures, nil
	},
}

func besideCubicTime(p path) float64 { return max(60, 200*p.rttMs()/1e3) }

// checkBegins says whether flows begin in time and then stay.
func checkBegins(p path, latestS float64) error {
	if len(p.changes) > 0 {
		return errors.New("the path stays")
	}
	for _, f := range p.flows {
		if err := within("begin", f.beginS, 0, latestS); err != nil {
			return err
		}
		// A host's clock is not a setting of the path.
		if slices.ContainsFunc(f.settings, func(s setting) bool { return s.key != "clock" }) {
			return fmt.Errorf("flow %s has settings", f)
		}
	}
	return nil
}

func totalGoodput(flows []flowFigures) float64 {
	total := 0.0
	for _, f := range flows {
		total += f.goodputBps
	}
	return total
}
