package main

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
)

// complexity orders paths: the first number that differs decides. Every step of
// shrinking lowers it, and there are only so many steps below any path.
type complexity struct {
	changes, flows, keys, digits int
	seconds                      float64
}

func (c complexity) compare(d complexity) int {
	return cmp.Or(cmp.Compare(c.changes, d.changes), cmp.Compare(c.flows, d.flows), cmp.Compare(c.keys, d.keys),
		cmp.Compare(c.digits, d.digits), cmp.Compare(c.seconds, d.seconds))
}

func (p path) complexity() complexity {
	c := complexity{changes: len(p.changes), flows: len(p.flows)}
	count := func(v float64) { c.digits += digits(v) }
	for _, s := range p.settings {
		c.keys++
		count(s.value)
	}
	for _, f := range p.flows {
		if f.beginS > 0 {
			c.keys++
			count(f.beginS)
		}
		for _, s := range f.settings {
			c.keys++
			count(s.value)
			if s.key == "until" {
				c.seconds += s.value
			}
		}
		c.seconds += f.beginS
	}
	for _, change := range p.changes {
		count(change.atS)
		if change.untilS > 0 {
			c.keys++
			count(change.untilS)
		}
		for _, s := range change.settings {
			c.keys++
			count(s.value)
		}
		c.seconds += change.atS + change.untilS
	}
	c.seconds += p.timeS()
	return c
}

// digits says how far a number is from a round one.
func digits(v float64) int {
	if v == 0 {
		return 0
	}
	mantissa, _, _ := strings.Cut(strconv.FormatFloat(math.Abs(v), 'e', -1, 64), "e")
	switch mantissa {
	case "1", "2", "5":
		return 1
	}
	return 1 + len(strings.Replace(mantissa, ".", "", 1))
}

// rounder are numbers near to v with fewer digits, the roundest first.
func rounder(v float64) []float64 {
	if v == 0 {
		return nil
	}
	scale := math.Pow(10, math.Floor(math.Log10(math.Abs(v))))
	var candidates []float64
	for _, step := range []float64{1, 2, 5, 10} {
		candidates = append(candidates, significant(step*scale, 1))
	}
	// The nearest of these first.
	slices.SortStableFunc(candidates, func(a, b float64) int {
		return cmp.Compare(math.Abs(math.Log(a/v)), math.Abs(math.Log(b/v)))
	})
	candidates = candidates[:2]
	for n := 1; n <= 3; n++ {
		near, unit := significant(v, n), scale*math.Pow(10, float64(1-n))
		candidates = append(candidates, near, significant(near+unit, n), significant(near-unit, n))
	}
	var list []float64
	for _, c := range candidates {
		if c > 0 && digits(c) < digits(v) && !slices.Contains(list, c) {
			list = append(list, c)
		}
	}
	slices.SortStableFunc(list, func(a, b float64) int { return cmp.Compare(digits(a), digits(b)) })
	return list
}

// A path without these is another path.
var essential = []string{"rate", "rtt", "queue", "time"}

// simpler yields paths that are simpler than p, those first that save most.
func simpler(p path) func(yield func(path) bool) {
	return func(yield func(path) bool) {
		limit := p.complexity()
		try := func(c path) bool { return c.complexity().compare(limit) >= 0 || yield(c) }
		for i := range p.changes {
			c := p.clone()
			c.changes = slices.Delete(c.changes, i, i+1)
			if !try(c) {
				return
			}
		}
		for n := len(p.flows) / 2; n >= 1; n /= 2 {
			for from := len(p.flows) - n; from >= 1; from -= n {
				c := p.clone()
				c.flows = slices.Delete(c.flows, from, from+n)
				if !try(c) {
					return
				}
			}
		}
		// All flows at once, then one key at a time.
		c := p.clone()
		for i := range c.flows {
			c.flows[i].beginS = 0
		}
		if !try(c) {
			return
		}
		for i, s := range p.settings {
			if slices.Contains(essential, s.key) {
				continue
			}
			c := p.clone()
			c.settings = slices.Delete(c.settings, i, i+1)
			if !try(c) {
				return
			}
		}
		for i, f := range p.flows {
			if len(p.flows) > 5 {
				break // too many to try each
			}
			if f.beginS > 0 {
				c := p.clone()
				c.flows[i].beginS = 0
				if !try(c) {
					return
				}
			}
			for j := range f.settings {
				c := p.clone()
				c.flows[i].settings = slices.Delete(c.flows[i].settings, j, j+1)
				if !try(c) {
					return
				}
			}
		}
		for i, change := range p.changes {
			if change.untilS > 0 {
				c := p.clone()
				c.changes[i].untilS = 0
				if !try(c) {
					return
				}
			}
			for j := range change.settings {
				c := p.clone()
				c.changes[i].settings = slices.Delete(c.changes[i].settings, j, j+1)
				if !try(c) {
					return
				}
			}
		}
		for n := range p.numbers() {
			v := *p.numbers()[n]
			list := rounder(v)
			if p.isSeconds(n) {
				list = slices.DeleteFunc(list, func(r float64) bool { return r > 1.2*v })
				// Shorter times that are as round.
				for _, part := range []float64{0.5, 0.7, 0.9} {
					list = append(list, significant(v*part, 1), significant(v*part, 2))
				}
			}
			for _, r := range list {
				c := p.clone()
				*c.numbers()[n] = r
				if !try(c) {
					return
				}
				for _, c := range withRest(p, c) {
					if !try(c) {
						return
					}
				}
			}
		}
	}
}

// withRest are variants of c, a path p with another rate or RTT, in which what
// goes with the rate or RTT changes in proportion: rates and round trips of
// changes, and the queue, so that it holds as many packets.
func withRest(p, c path) []path {
	rates, rtts := c.rateMbps()/p.rateMbps(), c.rttMs()/p.rttMs()
	if rates == 1 && rtts == 1 {
		return nil
	}
	scaled := c.clone()
	scale := func(s settings) {
		for i := range s {
			switch s[i].key {
			case "rate", "policer":
				s[i].value = significant(s[i].value*rates, 2)
			case "rtt":
				s[i].value = significant(s[i].value*rtts, 2)
			}
		}
	}
	for i := range scaled.settings {
		if s := &scaled.settings[i]; s.key == "policer" {
			s.value = significant(s.value*rates, 2)
		}
	}
	for _, f := range scaled.flows {
		scale(f.settings)
	}
	for _, change := range scaled.changes {
		scale(change.settings)
	}
	deeper := scaled.clone()
	deeper.settings.set("queue", significant(p.queueBDP()/rates/rtts, 2))
	return []path{scaled, deeper}
}

// numbers are the values of a path that may be rounded.
func (p path) numbers() []*float64 {
	list, _ := p.listNumbers()
	return list
}

func (p path) isSeconds(n int) bool {
	_, seconds := p.listNumbers()
	return seconds[n]
}

func (p path) listNumbers() (list []*float64, seconds []bool) {
	add := func(v *float64, isSeconds bool) { list, seconds = append(list, v), append(seconds, isSeconds) }
	for i := range p.settings {
		add(&p.settings[i].value, p.settings[i].key == "time")
	}
	for i := range p.flows {
		f := &p.flows[i]
		if f.beginS > 0 && len(p.flows) <= 5 {
			add(&f.beginS, true)
		}
		for j := range f.settings {
			add(&f.settings[j].value, f.settings[j].key == "until")
		}
	}
	for i := range p.changes {
		c := &p.changes[i]
		add(&c.atS, true)
		if c.untilS > 0 {
			add(&c.untilS, true)
		}
		for j := range c.settings {
			add(&c.settings[j].value, false)
		}
	}
	return list, seconds
}

// shrinkRuns is how many simpler paths are tried for one failure.
const shrinkRuns = 300

// shrink looks for the simplest path that still breaks the bound, and not much
// less: a path on which haul gets nothing must not end as one on which it gets a
// little too little, for another reason. The error is that of a run that failed;
// the simplest path so far is returned with it.
func shrink(k kind, p path, broken figure, run simulate) (simplest path, figureOf figure, err error) {
	simplest, figureOf = p, broken
	least := math.Sqrt(broken.excess())
	for runs, again := 0, true; again; {
		again = false
		for c := range simpler(simplest) {
			if k.holds(c) != nil {
				continue
			}
			if runs++; runs > shrinkRuns {
				break
			}
			figures, err := k.judge(c, run)
			if err != nil {
				return simplest, figureOf, err
			}
			at := slices.IndexFunc(figures, func(f figure) bool { return f.bound == broken.bound && f.excess() >= least })
			if at >= 0 {
				simplest, figureOf, again = c, figures[at], true
				break
			}
		}
	}
	return simplest, figureOf, nil
}
