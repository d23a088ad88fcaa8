package main

import (
	"time"

	"longhaul/bench/kit"
	"longhaul/bench/kit/congestion"
	"longhaul/internal/words/stats"
)

// traps are paths on which an algorithm got stuck or starved a neighbour: RFC 9743,
// sections 7.9, 7.3 and 5.2.1.
func (s subject) traps() family {
	const at = 20 // s, when the path changes
	f := family{
		name: "traps", title: "Paths that trapped an algorithm", items: []string{"7.9", "7.3", "7.4", "5.2.1"},
		about: "After a change of the path delivery is at least 80 % of the limit from 5 to 15 s and 90 % from 15 s on. The deep queue's p95 is at most " +
			"25 ms from 30 s after it. The slow link is used to 90 % from a cold start. The harm to a CUBIC at a shallow queue is as beside CUBIC.",
	}
	// used is the delivery from one second of the run to another, of a limit.
	used := func(limitBps float64, from, to int) func(measured) float64 {
		return func(m measured) float64 { return stats.Mean(m.Groups[0].DeliveredSeriesBps[from:to]) / limitBps }
	}
	add := func(name, about string, in func(string) trial, figure func(measured) float64, claims ...claim) {
		f.cells = append(f.cells, s.withReferences(cell{name: name, about: about, trials: map[role]trial{ours: in(s.name)}, claims: claims},
			in, []string{"bbr"}, percent, figure))
	}
	for _, c := range []struct {
		name, about string
		rateBps     int64
		queue, loss float64
		rtt         time.Duration // from at till the end
		till, lasts int           // s
	}{
		{"longer-route", "100 ms become 130 ms at 20 s and stay", 100e6, 1, 0.001, 130 * time.Millisecond, 60, 60},
		{"longer-deep", "100 ms become 120 ms at 20 s and stay", 50e6, 4, 0, 120 * time.Millisecond, 80, 80},
		{"detour", "100 ms become 115 ms from 20 to 59 s", 50e6, 2, 0, 115 * time.Millisecond, 59, 60},
	} {
		p := clean(c.rateBps, 100*time.Millisecond, c.queue)
		p.Loss.Probability = c.loss
		p.QueueBytes, p.QueueBDP = int(c.queue*p.BDPBytes()), 0
		changed := p
		changed.RTT = c.rtt
		in := func(name string) trial {
			t := alone(p, name, time.Duration(c.lasts)*time.Second)
			t.Changes = []congestion.Change{{At: at * time.Second, To: changed}}
			if c.till < c.lasts {
				t.Changes = append(t.Changes, congestion.Change{At: time.Duration(c.till) * time.Second, To: p})
			}
			return t
		}
		limit := changed.LimitBps()
		later := used(limit, at+15, c.till)
		claims := []claim{atLeast("used from 15 s", percent, median(ours, later), constant(0.9))}
		if c.queue == 4 {
			queue := func(m measured) float64 { return stats.Quantile(m.QueueSeriesMs[at+30:], 0.95, kit.Itself) }
			claims = append(claims, atMost("queue p95", ms, median(ours, queue), constant(25)))
		} else {
			claims = append(claims, atLeast("used 5-15 s", percent, median(ours, used(limit, at+5, at+15)), constant(0.8)))
		}
		add(c.name, p.String()+": "+c.about, in, later, claims...)
	}
	slow := clean(1.3e6, 17*time.Millisecond, 6.5)
	in := func(name string) trial { return alone(slow, name, time.Minute) }
	all := used(slow.LimitBps(), 0, 60)
	add("slow", slow.String(), in, all, atLeast("used", percent, median(ours, all), constant(0.9)))
	shallow := meeting{name: "beside-cubic", path: clean(100e6, 63*time.Millisecond, 0.1), others: 1}
	shallow.about = shallow.path.String() + ", one flow beside one CUBIC"
	f.cells = append(f.cells, s.harmOf(standard, []meeting{shallow})...)
	return f
}
