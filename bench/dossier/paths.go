package main

import (
	"fmt"
	"time"

	"longhaul/bench/kit/congestion"
	"longhaul/lab/link"
)

// rivalsOn compares the subject with every rival, alone on a path: its goodput is at
// least 0.95 of the rival's, at no longer queue.
func (s subject) rivalsOn(name string, p congestion.Path, during time.Duration, least float64, capacityBps float64) cell {
	c := cell{name: name, about: p.String(), trials: map[role]trial{ours: alone(p, s.name, during)}}
	c.claims = append(c.claims,
		atLeast("goodput", percent, median(ours, shareOf(capacityBps, goodput(0))), constant(least)),
		claim{title: "queue p95", parts: []part{{unit: ms, value: median(ours, queueP95)}}})
	for _, rival := range s.rivals {
		if rival == s.name {
			continue
		}
		c.trials[role(rival)] = alone(p, rival, during)
		ratioTo := func(figure func(measured) float64) func(runs) float64 {
			return func(r runs) float64 { return median(ours, figure)(r) / median(role(rival), figure)(r) }
		}
		c.claims = append(c.claims, claim{title: "÷ " + rival, of: role(rival), parts: []part{
			{label: "goodput", unit: ratio, value: ratioTo(goodput(0)), least: constant(minOfRival)},
			{label: "p95", unit: ratio, value: ratioTo(delayP95), most: constant(maxOfRivalDelay)},
		}})
	}
	return c
}

const (
	minOfRival = 0.95
	// maxOfRivalDelay is above 1 by the width of a bucket of the link's histogram.
	maxOfRivalDelay = 1.03
)

// delayP95 is the queue's p95. A queue below 1 ms counts as 1 ms.
func delayP95(m measured) float64 { return max(m.QueueP95Ms, 1) }

const rivalsAbout = "One flow alone, the whole run from a cold start. Each column ÷ RIVAL has the subject's goodput and the queue's p95 over " +
	"those of a rival on the same path: the goodput is at least 0.95 of the rival's at no longer a queue, or the cell is lost. " +
	"Queues below 1 ms count as 1 ms."

// pantheon has the calibrated emulators of the Pantheon (F. Y. Yan et al., USENIX ATC
// 2018): rate, one-way delay, queue in packets and loss behind the queue. The figures are
// the arguments of mahimahi's tools in github.com/StanfordSNR/observatory,
// run_scripts/run_emu.py. The real paths were measured from 2016-12-30 to 2017-01-04.
// Later emulators of the project have other figures, and Poisson processes in place of
// constant rates.
func (s subject) pantheon() family {
	f := family{
		name: "pantheon", title: "Calibrated paths", items: []string{"6.1", "6.3", "6.4"},
		about: rivalsAbout + " Goodput is at least 90 % of the limit. The paths are calibrated emulators of real ones, in the manner of the " +
			"Pantheon (F. Y. Yan et al., USENIX ATC 2018).",
	}
	for i, path := range []struct {
		rateMbps float64
		oneWayMs int
		packets  int
		loss     float64
	}{
		{6.25, 152, 362, 0.0025}, // China, cellular, to Korea
		{5.65, 88, 3665, 0.0026}, // Brazil to Colombia, cellular; the loss of 0.01 % of the way back is left out
		{13.38, 32, 37, 0.003},   // Nepal to India
		{117.65, 13, 144, 0},     // within India
		{97.11, 1, 366, 0},       // within Brazil
	} {
		p := clean(int64(path.rateMbps*1e6), 2*time.Duration(path.oneWayMs)*time.Millisecond, 0)
		p.QueueBytes = path.packets * p.MTUAB
		p.Loss.Probability, p.LossPlace = path.loss, link.LossAfter
		c := s.rivalsOn(fmt.Sprintf("path-%d", i+1), p, time.Minute, 0.9, p.LimitBps())
		c.quick = i == 2
		f.cells = append(f.cells, c)
	}
	return f
}

// satellite is a path whose loss grows with the rate: 0 % at 10 Mb/s to 10 % at 100.
func (s subject) satellite() family {
	const knee = 10e6
	p := clean(100e6, 300*time.Millisecond, 1)
	p.RateLoss = link.RateLoss{FromBps: knee, ToBps: 100e6, Share: 0.1}
	return family{
		name: "satellite", title: "Loss that grows with the rate", items: []string{"6.4", "7.5"},
		about: rivalsAbout + " Goodput is at least 90 % of the payload at the knee, 10 Mb/s, below which nothing is lost.",
		cells: []cell{s.rivalsOn("knee", p, time.Minute, 0.9, knee*p.PayloadShare())},
	}
}

// wired: RFC 9743, section 6.3.
func (s subject) wired() family {
	f := family{
		name: "wired", title: "Paths without random loss", items: []string{"6.3", "6.1"},
		about: rivalsAbout + " Goodput is at least 90 % of the limit.",
	}
	for _, rate := range []int64{2e6, 10e6, 25e6, 100e6} {
		for _, rtt := range []time.Duration{10 * time.Millisecond, 50 * time.Millisecond, 200 * time.Millisecond} {
			p := clean(rate, rtt, 1)
			f.cells = append(f.cells, s.rivalsOn(fmt.Sprintf("%dmbit-%dms", rate/1e6, rtt.Milliseconds()), p, usualTime, 0.9, p.LimitBps()))
		}
	}
	return f
}

// wireless: RFC 9743, section 6.4.
func (s subject) wireless() family {
	f := family{
		name: "wireless", title: "Paths that lose packets at random", items: []string{"6.4", "5.1.3"},
		about: rivalsAbout + " Goodput is at least 90 % of the limit, which counts the share that survives.",
	}
	for _, path := range []struct {
		name   string
		change func(*congestion.Path)
	}{
		{"1pct", func(p *congestion.Path) { p.Loss.Probability = 0.01 }},
		{"5pct", func(p *congestion.Path) { p.Loss.Probability = 0.05 }},
		{"10pct", func(p *congestion.Path) { p.Loss.Probability = 0.1 }},
		{"bursts", func(p *congestion.Path) { p.Loss.Probability, p.LossBurstPackets = 0.02, 8 }},
		{"ack-loss", func(p *congestion.Path) { p.Loss.Probability, p.LossBA.Probability = 0.01, 0.1 }},
		{"jitter", func(p *congestion.Path) { p.Loss.Probability, p.Jitter = 0.001, 5*time.Millisecond }},
		{"thinned-acks", func(p *congestion.Path) { p.Loss.Probability, p.ACKThinning = 0.001, 8 }},
		{"aggregated", func(p *congestion.Path) {
			p.Loss.Probability, p.Aggregate, p.AggregateBack = 0.001, 10*time.Millisecond, 10*time.Millisecond
		}},
	} {
		p := clean(usualRate, 60*time.Millisecond, 1)
		p.LossPlace = link.LossAfter
		path.change(&p)
		f.cells = append(f.cells, s.rivalsOn(path.name, p, usualTime, 0.9, p.LimitBps()))
	}
	return f
}

// slowLinks: RFC 9743, section 7.4.
func (s subject) slowLinks() family {
	f := family{
		name: "slow", title: "Slow links", items: []string{"7.4"},
		about: "One flow alone, 60 s from a cold start: at least 80 % of the limit, and a queue at most as long as CUBIC's. The queue holds 8 packets or 1 BDP.",
	}
	for _, rate := range []int64{64e3, 256e3, 1e6} {
		p := clean(rate, 100*time.Millisecond, 0)
		p.QueueBytes = max(8*p.MTUAB, int(p.BDPBytes()))
		f.cells = append(f.cells, cell{
			name: fmt.Sprintf("%dkbit", rate/1e3), about: p.String(),
			trials: s.both(func(name string) trial { return alone(p, name, time.Minute) }),
			claims: []claim{
				atLeast("goodput", percent, median(ours, shareOf(p.LimitBps(), goodput(0))), constant(0.8)),
				atMost("queue p95", ms, median(ours, queueP95), times(maxOfRivalDelay, median(theirs, queueP95))),
			},
		})
	}
	return f
}

// highDelay: RFC 9743, section 7.5.
func (s subject) highDelay() family {
	f := family{
		name: "high-delay", title: "Long round trips", items: []string{"7.5"},
		about: "One flow alone, a minute from a cold start: at least 92 % of the limit and a queue's p95 of at most 75 ms.",
	}
	for _, path := range []struct {
		rate int64
		rtt  time.Duration
		loss float64
	}{{10e6, 300 * time.Millisecond, 0}, {10e6, 600 * time.Millisecond, 0}, {10e6, 300 * time.Millisecond, 0.1}, {10e6, 600 * time.Millisecond, 0.1}, {100e6, 600 * time.Millisecond, 0}, {1e9, 600 * time.Millisecond, 0}} {
		p := clean(path.rate, path.rtt, 1)
		p.Loss.Probability = path.loss
		in := func(name string) trial { return alone(p, name, time.Minute) }
		share := shareOf(p.LimitBps(), goodput(0))
		f.cells = append(f.cells, s.withReferences(cell{
			name: fmt.Sprintf("%dmbit-%dms-%gpct", path.rate/1e6, path.rtt.Milliseconds(), 100*path.loss), about: p.String(),
			trials: map[role]trial{ours: in(s.name)},
			claims: []claim{
				atLeast("goodput", percent, median(ours, share), constant(0.92)),
				atMost("queue p95", ms, median(ours, queueP95), constant(75)),
			},
		}, in, []string{standard, "bbr", "bbr3"}, percent, share))
	}
	return f
}

// varyingDelay: RFC 9743, section 7.3.
func (s subject) varyingDelay() family {
	f := family{
		name: "varying-delay", title: "Varying delay", items: []string{"7.3"},
		about: "Jitter lets packets overtake each other. Delivery of the second half is at least 80 % of the limit at 10 % loss with TCP's " +
			"timestamps off, since with them the kernel drops what comes late (PAWS, RFC 7323); the cells with timestamps show that.",
	}
	delivered := func(p congestion.Path) func(measured) float64 {
		return func(m measured) float64 { return m.Groups[0].DeliveredBps / p.LimitBps() }
	}
	for _, rate := range []int64{20e6, 100e6} {
		for _, timestamps := range []bool{false, true} {
			p := clean(rate, 200*time.Millisecond, 1)
			p.Jitter, p.Loss.Probability = 50*time.Millisecond, 0.1
			name, about := fmt.Sprintf("jitter-%dmbit", rate/1e6), p.String()
			if timestamps {
				name, about = name+"-timestamps", about+", with timestamps"
			}
			in := func(algorithm string) trial {
				t := alone(p, algorithm, usualTime)
				t.NoTimestamps = !timestamps
				return t
			}
			f.cells = append(f.cells, s.withReferences(cell{
				name: name, about: about, quick: rate == 20e6 && !timestamps, trials: map[role]trial{ours: in(s.name)},
				claims: []claim{atLeast("delivery", percent, median(ours, delivered(p)), constant(0.8))},
			}, in, []string{standard, "bbr"}, percent, delivered(p)))
		}
	}
	return f
}

// reordering: RFC 9743, section 7.7.
func (s subject) reordering() family {
	f := family{
		name: "reordering", title: "Reordering", items: []string{"7.7"},
		about: "A share of the packets is held back by 20 ms or 40 ms and overtaken (compare RFC 4653). Goodput of the second half is at least 90 % of the limit, or 0.95 of CUBIC's.",
	}
	for _, path := range []struct {
		share float64
		hold  time.Duration
	}{{0.01, 20 * time.Millisecond}, {0.1, 20 * time.Millisecond}, {0.1, 40 * time.Millisecond}} {
		p := clean(usualRate, usualRTT, 1)
		p.Reorder = link.Reorder{Probability: path.share, Hold: path.hold}
		f.cells = append(f.cells, cell{
			name:   fmt.Sprintf("%gpct-%dms", 100*path.share, path.hold.Milliseconds()),
			about:  fmt.Sprintf("%s, %g %% held back by %v", p, 100*path.share, path.hold),
			trials: s.both(together(p, 1)),
			claims: []claim{atLeast("goodput", percent, median(ours, used(p)),
				func(r runs) float64 { return min(0.9, minOfRival*median(theirs, used(p))(r)) })},
		})
	}
	return f
}

// faults returns a family of faults of package congestion, on a path of the usual rate.
func (s subject) faults(name, title, about string, items, names []string) family {
	f := family{name: name, title: title, items: items, about: about}
	for _, fault := range congestion.Faults() {
		for _, wanted := range names {
			if fault.Name != wanted {
				continue
			}
			p := congestion.SafetyPath()
			p.RateBps, p.Loss.Probability = usualRate, 0.001
			of := func(figure func(*congestion.FaultResult) congestion.Value) func(runs) float64 {
				return median(ours, func(m measured) float64 { return float64(figure(m.Fault)) })
			}
			t := trial{Trial: congestion.Trial{Path: p, Groups: []congestion.Group{group(s.name, 1)}}, Fault: fault.Name}
			c := cell{name: fault.Name, about: fault.About, trials: map[role]trial{ours: t}, quick: fault.Name == "outage" || fault.Name == "policer"}
			if fault.Recovers() {
				c.claims = append(c.claims, atMost("recovery", seconds,
					of(func(r *congestion.FaultResult) congestion.Value { return r.RecoverySec }), constant(congestion.MaxRecovery.Seconds())))
			}
			c.claims = append(c.claims,
				atMost("sent ÷ delivered", ratio, of((*congestion.FaultResult).JudgedExcess), constant(fault.ExcessBound(p))),
				atMost("longest stall", seconds, of(func(r *congestion.FaultResult) congestion.Value { return congestion.Value(r.StallSec) }),
					constant(congestion.MaxStall.Seconds())))
			f.cells = append(f.cells, c)
		}
	}
	return f
}

const faultsAbout = "One flow at 20 Mb/s, 100 ms and 0.1 % loss, with a fault: delivery is back at 80 % " +
	"within 5 s, nothing stalls for 2 s on a path that is up, and sent ÷ delivered × (1 - random loss) is within its bound."

// circuitBreakers: RFC 9743, section 7.2. A policer is the network's simplest breaker: it
// drops what exceeds a rate.
func (s subject) circuitBreakers() family {
	return s.faults("policers", "Policers", faultsAbout+" A circuit breaker (RFC 8084) ends flows that keep losing; a policer makes flows lose "+
		"that do not yield. The bound of 1.15 in every 10 s keeps the loss below 13 %.",
		[]string{"7.2", "5.1.3"}, []string{"policer", "policed", "policer-1mb", "policed-1mb"})
}

// transients: RFC 9743, sections 7.8 and 7.9.
func (s subject) transients() family {
	return s.faults("transients", "Transient events and changes of the path", faultsAbout, []string{"7.8", "7.9", "7.3"},
		[]string{"outage", "rate-cut", "slow-cut", "rtt-step", "detour-15", "detour-30", "reroute-15", "reroute-30", "loss-50", "cross", "crossed", "idle"})
}

// cpu is the processor time of a sender.
func (s subject) cpu() family {
	p := clean(1e9, 20*time.Millisecond, 1)
	in := func(name string) trial {
		t := alone(p, name, 20*time.Second)
		t.Alone = true
		return t
	}
	sender := func(m measured) float64 { return float64(m.Groups[0].SenderCPUPerGB) }
	whole := func(m measured) float64 { return float64(m.LabCPUPerGB) }
	return family{
		name: "cpu", title: "Processor time", items: []string{"7.4"},
		about: "Seconds per GB at 1 Gb/s: of the sending thread, and of both ends with the emulated link. At most 1.15 times CUBIC's.",
		cells: []cell{s.withReferences(cell{
			name: "1gbit", about: p.String(), trials: s.both(in),
			claims: []claim{
				atMost("sender", cpuPerGB, median(ours, sender), times(1.15, median(theirs, sender))),
				atMost("all", cpuPerGB, median(ours, whole), times(1.15, median(theirs, whole))),
			},
		}, in, []string{"bbr", "bbr3"}, cpuPerGB, sender)},
	}
}
