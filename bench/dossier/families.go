package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"longhaul/bench/kit/congestion"
	"longhaul/bench/kit/congestion/receiver"
	"longhaul/internal/words/stats"
	"longhaul/lab"
	"longhaul/lab/link"
)

// subject is the algorithm that is evaluated, with those that it is held against.
type subject struct {
	name   string
	rivals []string
}

// standard is the congestion control that the Internet uses most, and the reference of
// most bounds (RFC 9438).
const standard = "cubic"

// usualRivals are the algorithms that stand beside the subject.
func usualRivals() []string { return []string{standard, "reno", "bbr", "bbr3", "hybla", "illinois"} }

// families returns all families, in the order of the document.
func (s subject) families() []family {
	all := []family{s.collapse(), s.bufferbloat(), s.overload(), s.fairness(), s.shortFlows(), s.harmReno(), s.bottlenecks(), s.media()}
	for _, aqm := range []link.AQMAlgorithm{link.NoAQM, link.CoDel, link.FQCoDel, link.PIE} {
		all = append(all, s.harm(aqm), s.beside("bbr", aqm), s.beside("bbr3", aqm))
	}
	return append(all, s.ecn(), s.misbehaving(), s.wired(), s.wireless(), s.traces(), s.pantheon(), s.satellite(), s.warmStart(), s.circuitBreakers(), s.varyingDelay(), s.slowLinks(),
		s.cpu(), s.highDelay(), s.reordering(), s.transients(), s.traps())
}

// Sizes of most cells. The rate lets several trials run at once on few CPUs.
const (
	usualRate = 20e6
	usualRTT  = 40 * time.Millisecond
	usualTime = 40 * time.Second
)

// clean returns a path without random loss.
func clean(rateBps int64, rtt time.Duration, queueBDP float64) congestion.Path {
	p := congestion.LossyLFN()
	p.RateBps, p.RTT, p.QueueBDP, p.Loss = rateBps, rtt, queueBDP, link.Loss{}
	return p
}

// flows returns a trial of groups of flows on a path.
func flows(p congestion.Path, during time.Duration, groups ...congestion.Group) trial {
	return trial{Trial: congestion.Trial{Path: p, Time: during, Groups: groups}}
}

// group returns n flows of an algorithm.
func group(algorithm string, n int) congestion.Group {
	return congestion.Group{Algorithm: algorithm, Flows: n}
}

// alone returns a trial of one flow.
func alone(p congestion.Path, algorithm string, during time.Duration) trial {
	return flows(p, during, group(algorithm, 1))
}

// together returns trials of n flows of an algorithm.
func together(p congestion.Path, n int) func(string) trial {
	return func(name string) trial { return flows(p, usualTime, group(name, n)) }
}

// The roles of trials with one algorithm.
const (
	ours   role = "ours"
	theirs role = "theirs" // the standard in the same place
)

// both returns the trials of the subject, and of the standard in its place.
func (s subject) both(in func(string) trial) map[role]trial {
	return map[role]trial{ours: in(s.name), theirs: in(standard)}
}

// ofQueue returns the begin of a cell of n flows at a queue.
func ofQueue(p congestion.Path, n int) cell {
	return cell{name: fmt.Sprintf("q%g-%d", p.QueueBDP, n), about: fmt.Sprintf("%s, flows: %d", p, n)}
}

// collapse: RFC 9743, section 5.1.1.
func (s subject) collapse() family {
	const (
		at   = 10 * time.Second
		till = 40 * time.Second
		ends = 50 * time.Second
	)
	p := clean(usualRate, usualRTT, 1)
	changed := func(change func(*congestion.Path)) func(string) trial {
		bad := p
		change(&bad)
		return func(name string) trial {
			t := alone(p, name, ends)
			t.Changes = []congestion.Change{{At: at, To: bad}, {At: till, To: p}}
			return t
		}
	}
	// From 2 s after the beginning: the timer needs a few round trips to expire.
	sentDuring := func(m measured) float64 { return sum(m.Groups[0].SentSeriesBps[12:40]) / 8 }
	deadPath := changed(func(p *congestion.Path) { p.DownAB, p.DownBA = true, true })
	lossy := changed(func(p *congestion.Path) { p.Loss.Probability = 0.95 })
	const segment = 1448
	return family{
		name: "collapse", title: "A path that stops delivering", items: []string{"5.1.1"},
		about: "The path fails for 30 s. Sent is counted from 2 s after that. With nothing delivered, full backoff " +
			"leaves at most the probes of a timer that doubles from 0.2 s: 10 segments, and as many again for " +
			"early retransmissions. At 95 % loss the bound is 5 % of the path's rate: what it delivers.",
		cells: []cell{
			{name: "outage", about: p.String() + ", nothing passes for 30 s", quick: true,
				trials: s.both(deadPath),
				claims: []claim{atMost("sent, segments", countUnit, times(1.0/segment, median(ours, sentDuring)), constant(20)),
					{title: standard, parts: []part{{unit: countUnit, value: times(1.0/segment, median(theirs, sentDuring))}}}}},
			{name: "loss-95", about: p.String() + ", then 95 % lost for 30 s",
				trials: s.both(lossy),
				claims: []claim{atMost("sent, of the rate", percent, times(1/(usualRate/8*28), median(ours, sentDuring)), constant(0.05)),
					{title: standard, parts: []part{{unit: percent, value: times(1/(usualRate/8*28), median(theirs, sentDuring))}}}}},
		},
	}
}

func sum(values []float64) float64 {
	total := 0.0
	for _, v := range values {
		total += v
	}
	return total
}

// bufferbloat: RFC 9743, section 5.1.2.
func (s subject) bufferbloat() family {
	f := family{
		name: "bufferbloat", title: "Deep queues", items: []string{"5.1.2", "6.1"},
		about: "Flows alone at a queue of 4 and 16 BDP. The queue's p95 is at most half of CUBIC's there, the goodput at least 90 % of the limit.",
	}
	for _, queue := range []float64{4, 16} {
		for _, n := range []int{1, 4} {
			p := clean(usualRate, usualRTT, queue)
			c := ofQueue(p, n)
			c.quick = queue == 4 && n == 1
			c.trials = s.both(together(p, n))
			c.claims = []claim{
				atMost("queue p95", ms, median(ours, queueP95), times(0.5, median(theirs, queueP95))),
				atLeast("goodput", percent, median(ours, used(p)), constant(0.9)),
			}
			f.cells = append(f.cells, c)
		}
	}
	return f
}

// used returns the steady goodput of all flows of the first group, of the limit.
func used(p congestion.Path) func(measured) float64 {
	return func(m measured) float64 { return sum(m.Groups[0].SteadyBps) / p.LimitBps() }
}

// overload: RFC 9743, section 5.1.3.
func (s subject) overload() family {
	f := family{
		name: "overload", title: "Shallow queues", items: []string{"5.1.3", "6.1"},
		about: fmt.Sprintf("Flows alone at queues from a few packets. Sent ÷ delivered of the second half is at most %.2f, "+
			"as for all sharing flows of the lab. BBRv1 failed this below 1.5 BDP (RFC 9743, section 5.1.3).", congestion.MaxExcessShared),
	}
	for _, queue := range []float64{0.1, 0.5, 1} {
		for _, n := range []int{1, 4, 16} {
			p := clean(usualRate, usualRTT, queue)
			in := together(p, n)
			c := ofQueue(p, n)
			c.quick = queue == 0.1 && n == 4
			c.trials = map[role]trial{ours: in(s.name)}
			c.claims = []claim{
				atMost("sent ÷ delivered", ratio, median(ours, excess), constant(congestion.MaxExcessShared)),
				atLeast("goodput", percent, median(ours, used(p)), constant(0.8)),
			}
			f.cells = append(f.cells, s.withReferences(c, in, []string{standard, "bbr"}, ratio, excess))
		}
	}
	return f
}

func excess(m measured) float64 { return float64(m.Groups[0].SteadyExcess) }

// withReferences adds columns with a figure of others in the subject's place, which
// bounds nothing, if they are among the rivals.
func (s subject) withReferences(c cell, in func(string) trial, others []string, u unit, figure func(measured) float64) cell {
	for _, other := range others {
		if other == s.name || !slices.Contains(s.rivals, other) {
			continue
		}
		c.trials[role(other)] = in(other)
		c.claims = append(c.claims, claim{title: other, parts: []part{{unit: u, value: median(role(other), figure)}}, of: role(other)})
	}
	return c
}

// fairness: RFC 9743, section 5.1.4.
func (s subject) fairness() family {
	f := family{
		name: "fairness", title: "Flows of one kind", items: []string{"5.1.4"},
		about: "Jain's index of four flows is at least 0.9. A flow that joins after a third of the run has 0.7 of an equal share " +
			"in the second half. A flow with six times the round trip has at least the share that a CUBIC has beside a CUBIC.",
	}
	jain := func(m measured) float64 { return congestion.Jain(m.Groups[0].SteadyBps) }
	for _, queue := range []float64{0.1, 0.5, 1, 4} {
		p := clean(usualRate, usualRTT, queue)
		four := together(p, 4)
		f.cells = append(f.cells, s.withReferences(cell{
			name: fmt.Sprintf("four-q%g", queue), about: p.String() + ", flows: 4", quick: queue == 1,
			trials: map[role]trial{ours: four(s.name)},
			claims: []claim{atLeast("Jain", ratio, median(ours, jain), constant(0.9))},
		}, four, []string{standard, "bbr"}, ratio, jain))
	}
	p := clean(usualRate, usualRTT, 1)
	late := func(name string) trial {
		joins := group(name, 1)
		joins.Start = usualTime / 3
		return flows(p, usualTime, joins, group(name, 1))
	}
	far := func(name string) trial {
		slower := group(name, 1)
		slower.RTTRatio = 6
		return flows(p, usualTime, slower, group(name, 1))
	}
	f.cells = append(f.cells,
		s.withReferences(cell{
			name: "late", about: p.String() + ", one joins one", trials: map[role]trial{ours: late(s.name)},
			claims: []claim{atLeast("of an equal share", ratio, median(ours, ofFair), constant(0.7))},
		}, late, []string{standard, "bbr"}, ratio, ofFair),
		cell{
			name: "far", about: p.String() + ", one with 6 times the round trip beside one",
			trials: s.both(far),
			claims: []claim{atLeast("of an equal share", ratio, median(ours, ofFair), median(theirs, ofFair))},
		})
	return f
}

// worse is how much worse than beside the standard a neighbour may fare.
const worse = 1.1

// shortFlows: RFC 9743, sections 5.1.5 and 5.2.3.
func (s subject) shortFlows() family {
	const bytes = 100e3
	f := family{
		name: "short", title: "Short flows", items: []string{"5.1.5", "5.2.3"},
		about: "A flow of 100 kB begins each second beside a long flow. Its completion takes at most 1.1 times as long as beside a " +
			"CUBIC, for a CUBIC's flows and for the algorithm's own; and the long flow has at least 0.9 times the goodput of a " +
			"long CUBIC beside the same.",
	}
	for _, queue := range []float64{1, 4} {
		p := clean(usualRate, usualRTT, queue)
		with := func(long, short string) trial {
			small := congestion.Group{Algorithm: short, Flows: 1, Bytes: bytes, Every: time.Second, Start: 2 * time.Second}
			return flows(p, usualTime, group(long, 1), small)
		}
		one := func(name, about, long, short string) cell {
			return cell{
				name: fmt.Sprintf("%s-q%g", name, queue), about: p.String() + ", " + about, quick: queue == 1 && name == "cubic",
				trials: map[role]trial{ours: with(long, short), theirs: with(standard, standard)},
				claims: []claim{
					atMost("completion p50", seconds, median(ours, completion(1, 0.5)), times(worse, median(theirs, completion(1, 0.5)))),
					atMost("completion p90", seconds, median(ours, completion(1, 0.9)), times(worse, median(theirs, completion(1, 0.9)))),
					atLeast("long flow", mbps, median(ours, steady(0)), times(0.9, median(theirs, steady(0)))),
				},
			}
		}
		f.cells = append(f.cells,
			one("cubic", "short flows of CUBIC beside a long one of "+s.name, s.name, standard),
			one("own", "short flows of "+s.name+" beside a long one of its own", s.name, s.name),
			one("beside-cubic", "short flows of "+s.name+" beside a long one of CUBIC", standard, s.name),
		)
	}
	return f
}

// media: RFC 9743, section 5.2.2.
func (s subject) media() family {
	f := family{
		name: "real-time", title: "A real-time flow", items: []string{"5.2.2"},
		about: "UDP of 2 Mb/s in frames of 20 ms beside one or four flows. The p99 of its one-way delay is at most 1.1 times that " +
			"beside CUBIC, and it loses at most 0.1 points more.",
	}
	for _, queue := range []float64{0.5, 1, 4} {
		for _, n := range []int{1, 4} {
			p := clean(usualRate, usualRTT, queue)
			beside := func(name string) trial {
				t := flows(p, usualTime, group(name, n))
				t.Media = congestion.Media{RateBps: 2e6, Frame: 20 * time.Millisecond}
				return t
			}
			p99 := func(m measured) float64 { return float64(m.Media.DelayP99Ms) }
			lost := func(m measured) float64 { return float64(m.Media.Lost) }
			c := ofQueue(p, n)
			c.quick = queue == 1 && n == 1
			c.trials = s.both(beside)
			c.claims = []claim{
				atMost("delay p99", ms, median(ours, p99), times(worse, median(theirs, p99))),
				atMost("lost", percent, median(ours, lost), func(r runs) float64 { return median(theirs, lost)(r) + 0.001 }),
			}
			f.cells = append(f.cells, c)
		}
	}
	return f
}

// ecn: RFC 9743, section 7.1: the reaction to marks.
func (s subject) ecn() family {
	f := family{
		name: "ecn", title: "Marks of congestion", items: []string{"7.1"},
		about: "Flows alone with ECN on both hosts, at queues that mark instead of dropping (RFC 3168). The queue's p95 is at most CUBIC's there, " +
			"the goodput of the second half at least 95 % of the limit.",
	}
	for _, aqm := range []link.AQMAlgorithm{link.CoDel, link.FQCoDel, link.PIE} {
		for _, rtt := range []time.Duration{usualRTT, 150 * time.Millisecond} {
			for _, n := range []int{1, 4} {
				_, words, _ := queueName(aqm)
				p := clean(usualRate, rtt, 4)
				p.AQM, p.HostECN = link.AQM{Algorithm: aqm, ECN: true}, lab.HostECNOn
				marked := func(m measured) float64 { return m.Marked }
				f.cells = append(f.cells, cell{
					name: fmt.Sprintf("%s-%dms-%d", strings.ToLower(words), rtt.Milliseconds(), n), about: fmt.Sprintf("%s, flows: %d", p, n),
					quick:  aqm == link.CoDel && rtt == usualRTT && n == 1,
					trials: s.both(together(p, n)),
					claims: []claim{
						atMost("queue p95", ms, median(ours, queueP95), times(maxOfRivalDelay, median(theirs, queueP95))),
						atLeast("goodput", percent, median(ours, used(p)), constant(0.95)),
						{title: "CUBIC's goodput", parts: []part{{unit: percent, value: median(theirs, used(p))}}},
						{title: "marked", parts: []part{{unit: percent, value: median(ours, marked)}}},
						{title: "CUBIC's marked", parts: []part{{unit: percent, value: median(theirs, marked)}}},
					},
				})
			}
		}
	}
	return f
}

// misbehaving: RFC 9743, section 7.6.
func (s subject) misbehaving() family {
	f := family{
		name: "misbehaving", title: "Misbehaving receivers", items: []string{"7.6"},
		about: "A flow to a receiver in user space that misbehaves (S. Savage et al., CCR 1999), beside a CUBIC to the kernel's. Its harm to that CUBIC is " +
			"at most 1.1 times the harm of a CUBIC to the same receiver, or 0.01 more. Beside it stands what both send, of the bottleneck's rate: " +
			"no sender without a nonce can tell such a receiver from a better path. The honest receiver is the reference of the others.",
	}
	for _, does := range []struct {
		name string
		what receiver.Behaviour
	}{{"honest", receiver.Honest}, {"divided-acks", receiver.DividesACKs}, {"concealed-loss", receiver.ConcealsLoss},
		{"optimistic-acks", receiver.Optimistic}, {"concealed-marks", receiver.ConcealsMarks}} {
		p := clean(usualRate, usualRTT, 1)
		if does.what == receiver.ConcealsMarks {
			p.AQM, p.HostECN = link.AQM{Algorithm: link.PIE, ECN: true}, lab.HostECNOn
		}
		to := func(name string) trial {
			liar := group(name, 1)
			liar.Receiver = does.what
			return flows(p, usualTime, liar, group(standard, 1))
		}
		sent := func(m measured) float64 {
			series := m.Groups[0].SentSeriesBps
			return stats.Mean(series[len(series)/2:]) / float64(p.RateBps)
		}
		f.cells = append(f.cells, cell{
			name: does.name, about: fmt.Sprintf("%s; the receiver %s", p, does.what), quick: does.what == receiver.DividesACKs,
			trials: map[role]trial{beside: to(s.name), another: to(standard), othersAlone: alone(p, standard, usualTime)},
			claims: []claim{
				atMost("harm", ratio, harmIn(othersAlone, beside), func(r runs) float64 { return harmBound(harmIn(othersAlone, another)(r)) }),
				{title: "sent", parts: []part{{unit: percent, value: median(beside, sent)}}},
				{title: "CUBIC's sent", parts: []part{{unit: percent, value: median(another, sent)}}},
			},
		})
	}
	return f
}
