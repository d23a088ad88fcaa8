package congestion

import (
	"time"

	"longhaul/lab/link"
)

// Fault is a change of a path, or of its traffic, during a flow.
type Fault struct {
	Name  string
	About string

	// base changes the path for the whole run; during changes it from the fault's
	// start to its end. A fault without a duration lasts for the whole run.
	base, during func(*Path)
	lasts        time.Duration
	stays        bool // the change lasts until the end of the run

	crossShare float64 // of the path's rate that cross traffic takes meanwhile
	idle       bool    // the sending program has nothing to send meanwhile
}

// SafetyPath is the path of the faults.
func SafetyPath() Path {
	p := LossyLFN()
	p.RTT, p.Loss.Probability = 100*time.Millisecond, 0.01
	return p
}

// Durations of faults.
const (
	usualFault = 15 * time.Second
	longFault  = 30 * time.Second // longer than a sender's memory of the round trip
)

// Faults are all faults.
func Faults() []Fault {
	lossy := func(p *Path) { p.RTT, p.Loss.Probability = 300*time.Millisecond, 0.1 }
	longer := func(percent int) func(*Path) {
		return func(p *Path) { p.keepQueue(); p.RTT = p.RTT * time.Duration(percent) / 100 }
	}
	policed := func(bucketBytes int) func(*Path) {
		return func(p *Path) { p.Policer = link.Policer{RateBps: p.RateBps / 2, BurstBytes: bucketBytes} }
	}
	const smallBucket, largeBucket = 64 << 10, 1e6
	return []Fault{
		{Name: "outage", About: "nothing passes for 5 s", lasts: 5 * time.Second,
			during: func(p *Path) { p.DownAB, p.DownBA = true, true }},
		{Name: "rate-cut", About: "a tenth of the rate for 15 s", lasts: usualFault,
			during: func(p *Path) { p.keepQueue(); p.RateBps /= 10 }},
		{Name: "slow-cut", About: "12 Mb/s and 9 ms, a tenth of the rate for 15 s", lasts: usualFault,
			base:   func(p *Path) { p.RateBps, p.RTT = 12e6, 9*time.Millisecond },
			during: func(p *Path) { p.keepQueue(); p.RateBps /= 10 }},
		{Name: "rtt-step", About: "three times the round trip for 15 s", lasts: usualFault, during: longer(300)},
		{Name: "detour-15", About: "a round trip 15 % longer for 30 s", lasts: longFault, during: longer(115)},
		{Name: "detour-30", About: "a round trip 30 % longer for 30 s", lasts: longFault, during: longer(130)},
		{Name: "reroute-15", About: "a round trip 15 % longer that stays", lasts: longFault, stays: true, during: longer(115)},
		{Name: "reroute-30", About: "a round trip 30 % longer that stays", lasts: longFault, stays: true, during: longer(130)},
		{Name: "loss-50", About: "half of the packets lost for 10 s", lasts: 10 * time.Second,
			during: func(p *Path) { p.Loss.Probability = 0.5 }},
		{Name: "policer", About: "a policer at half of the rate for 15 s", lasts: usualFault, during: policed(smallBucket)},
		{Name: "policed", About: "a policer at half of the rate, all the time", base: policed(smallBucket)},
		{Name: "policer-1mb", About: "policer with a bucket of 1 MB in place of 64 KiB", lasts: usualFault, during: policed(largeBucket)},
		{Name: "policed-1mb", About: "policed with a bucket of 1 MB in place of 64 KiB", base: policed(largeBucket)},
		{Name: "cross", About: "cross traffic takes 80 % of the rate for 15 s", lasts: usualFault, crossShare: 0.8},
		{Name: "crossed", About: "cross traffic takes 80 % of the rate, all the time", crossShare: 0.8},
		{Name: "idle", About: "the program has nothing to send for 15 s", lasts: usualFault, idle: true},
		{Name: "jitter", About: "100 ± 50 ms with the reordering it causes, 10 % loss",
			base: func(p *Path) { p.RTT, p.Jitter, p.Loss.Probability = 200*time.Millisecond, 50*time.Millisecond, 0.1 }},
		{Name: "ack-loss", About: "300 ms, 10 % lost, and 10 % of the ACKs",
			base: func(p *Path) { lossy(p); p.LossBA.Probability = 0.1 }},
		{Name: "bursts", About: "300 ms, 10 % lost in bursts of 8 (Gilbert-Elliott)",
			base: func(p *Path) { lossy(p); p.LossBurstPackets = 8 }},
	}
}

// keepQueue fixes the queue's size in bytes, also when the path changes.
func (p *Path) keepQueue() {
	if p.QueueBytes == 0 {
		ab, ba := p.Directions()
		p.QueueBytes, p.QueueBDP = ab.QueueLimitBytes(ba.Delay), 0
	}
}

// paths returns the path of a run, and the path during its fault.
func (f Fault) paths(p Path) (base, during Path) {
	base = p
	if f.base != nil {
		f.base(&base)
	}
	during = base
	if f.during != nil {
		f.during(&during)
	}
	return base, during
}

// limitBps returns the maximum delivery of a flow on one of the fault's paths, during
// the fault.
func (f Fault) limitBps(p Path) float64 {
	limit := p.LimitBps()
	if p.Policer.RateBps > 0 {
		limit = min(limit, p.withRate(p.Policer.RateBps).LimitBps())
	}
	return min(limit, p.withRate(p.RateBps-f.crossBps(p)).LimitBps())
}

func (p Path) withRate(bps int64) Path {
	p.RateBps = bps
	return p
}

func (f Fault) crossBps(p Path) int64 { return int64(f.crossShare * float64(p.RateBps)) }

// excessBound returns the maximum excess of a flow, and its window: 0 is the whole run.
func (f Fault) excessBound(base, during Path) (bound float64, window time.Duration) {
	switch {
	case base.Policer.RateBps > 0 || during.Policer.RateBps > 0:
		return MaxExcessPoliced, policedWindow
	case f.crossShare > 0:
		return MaxExcessShared, 0
	}
	return MaxExcessAlone, 0
}

// trial returns the run of an algorithm's flow with the fault.
func (f Fault) trial(when shape, base, during Path, algorithm string) Trial {
	t := Trial{Path: base, Time: when.time(f), Groups: []Group{{Algorithm: algorithm, Flows: 1}}}
	end := when.at + f.lasts
	if f.during != nil {
		t.Changes = append(t.Changes, Change{when.at, during})
		if !f.stays {
			t.Changes = append(t.Changes, Change{end, base})
		}
	}
	if f.crossShare > 0 {
		t.Cross = Cross{RateBps: f.crossBps(base), Begin: when.at, End: end}
		if f.lasts == 0 {
			t.Cross.Begin, t.Cross.End = 0, t.Time
		}
	}
	if f.idle {
		t.Groups[0].IdleFrom, t.Groups[0].IdleTill = when.at, end
	}
	return t
}

// Recovers reports whether a flow can recover from the fault: it does not last for the
// whole run.
func (f Fault) Recovers() bool { return f.lasts > 0 }

// ExcessBound returns the maximum of sent ÷ delivered × (1 - random loss) on a path with
// the fault.
func (f Fault) ExcessBound(p Path) float64 {
	bound, _ := f.excessBound(f.paths(p))
	return bound
}
