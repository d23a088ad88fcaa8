package main

import (
	"fmt"
	"time"

	"longhaul/bench/kit/congestion"
	"longhaul/internal/words/stats"
)

// The roles of trials that begin with and without a connection before.
const (
	warm role = "warm"
	cold role = "cold"
)

// warmStart: RFC 9959. An algorithm that remembers nothing fails the first cells.
func (s subject) warmStart() family {
	f := family{
		name: "warm-start", title: "A start on a known path", items: []string{"5.1.5", "7.9"},
		about: "Another connection has used the path just before (Careful Resume, RFC 9959). 10 MB then take at least 2.8 round trips less than " +
			"without it. If the capacity has halved meanwhile, the queue's p95 of the first 10 s is at most twice that of a cold start, and what is " +
			"sent in vain at most 0.05 more. If a CUBIC has come, it delivers from 1 s on as much as beside a cold start, within a tenth.",
	}
	for _, rtt := range []time.Duration{300 * time.Millisecond, 600 * time.Millisecond} {
		for _, loss := range []float64{0, 0.1} {
			p := clean(usualRate, rtt, 1)
			p.Loss.Probability = loss
			transfer := func(isWarm bool) trial {
				sends := group(s.name, 1)
				sends.Bytes = 10e6
				t := flows(p, time.Minute, sends)
				t.Warm = isWarm
				return t
			}
			saved := func(r runs) float64 {
				took := completion(0, 0.5)
				return (median(cold, took)(r) - median(warm, took)(r)) / rtt.Seconds()
			}
			f.cells = append(f.cells, cell{
				name: fmt.Sprintf("10mb-%dms-%gpct", rtt.Milliseconds(), 100*loss), about: p.String(),
				trials: map[role]trial{warm: transfer(true), cold: transfer(false)},
				claims: []claim{
					{title: "round trips saved", parts: []part{{unit: ratio, value: saved, least: constant(2.8)}}},
					{title: "cold", parts: []part{{unit: seconds, value: median(cold, completion(0, 0.5))}}},
					{title: "warm", parts: []part{{unit: seconds, value: median(warm, completion(0, 0.5))}}},
				},
			})
		}
	}
	f.cells = append(f.cells, s.halved(), s.rivalCame())
	return f
}

// halved is a start on a path that has half of the capacity that it had.
func (s subject) halved() cell {
	p := clean(usualRate, 150*time.Millisecond, 1)
	half := p
	half.QueueBytes, half.QueueBDP = int(p.BDPBytes()), 0
	half.RateBps /= 2
	start := func(isWarm bool) trial {
		t := alone(p, s.name, 10*time.Second)
		t.Warm, t.Changes = isWarm, []congestion.Change{{At: 0, To: half}}
		return t
	}
	worst := func(m measured) float64 { return float64(m.Groups[0].WorstExcess) }
	return cell{
		name: "halved", about: p.String() + ", half of the rate since the connection before",
		trials: map[role]trial{warm: start(true), cold: start(false)},
		claims: []claim{
			atMost("queue p95", ms, median(warm, queueP95), times(2, median(cold, queueP95))),
			atMost("sent ÷ delivered", ratio, median(warm, worst), func(r runs) float64 { return median(cold, worst)(r) + 0.05 }),
		},
	}
}

// rivalCame is a start beside a CUBIC that was not there before.
func (s subject) rivalCame() cell {
	const (
		begins = 10 // s
		till   = 25
	)
	p := clean(usualRate, 150*time.Millisecond, 1)
	start := func(isWarm bool) trial {
		joins := group(s.name, 1)
		joins.Start = begins * time.Second
		t := flows(p, till*time.Second, joins, group(standard, 1))
		t.Warm = isWarm
		return t
	}
	theirs := func(m measured) float64 { return stats.Mean(m.Groups[1].DeliveredSeriesBps[begins+1 : till]) }
	return cell{
		name: "rival", about: p.String() + ", beside a CUBIC that began 10 s before",
		trials: map[role]trial{warm: start(true), cold: start(false)},
		claims: []claim{
			atLeast("CUBIC from 1 s on", mbps, median(warm, theirs), times(0.9, median(cold, theirs))),
			atMost("queue p95", ms, median(warm, queueP95), times(2, median(cold, queueP95))),
		},
	}
}
