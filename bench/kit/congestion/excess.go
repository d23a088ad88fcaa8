package congestion

import (
	"math"
	"time"
)

// The maximum excess: sent ÷ delivered × (1 - random loss). It is 1 for a sender whose
// losses are all the path's random ones. It is more for a sender that overruns a queue
// or policer, or retransmits data that had arrived.
const (
	MaxExcessAlone   = 1.05 // of a flow alone, over its whole run
	MaxExcessShared  = 1.10 // of flows that share a path, over the measured time
	MaxExcessPoliced = 1.15 // through a policer, over every policedWindow
)

// policedWindow is the time over which MaxExcessPoliced applies.
const policedWindow = 10 * time.Second

// excessFloorSegments is the minimum delivery in an excess, in segments: an initial
// window (RFC 6928). So a probe of a path in an outage does not give an infinite
// excess.
const excessFloorSegments = 10

// pathLoss is the share of packets that a path loses at random, over time. Each share
// is valid from its time. Losses of an outage, policer or queue are not included.
type pathLoss []lossFrom

type lossFrom struct {
	at    time.Duration
	share float64
}

// lossOf returns the loss of a path that changes.
func lossOf(p Path, changes []Change) pathLoss {
	share := func(p Path) float64 {
		ab, _ := p.Directions()
		return ab.Loss.Share()
	}
	l := pathLoss{{0, share(p)}}
	for _, c := range changes {
		l = append(l, lossFrom{c.At, share(c.To)})
	}
	return l
}

// mean returns the mean share between two times.
func (l pathLoss) mean(from, to time.Duration) float64 {
	total := 0.0
	for i, step := range l {
		end := to
		if i+1 < len(l) {
			end = min(to, l[i+1].at)
		}
		total += step.share * max(end-max(from, step.at), 0).Seconds()
	}
	return total / (to - from).Seconds()
}

// expected returns the bytes of a flow that should have arrived: each packet counts
// with its chance to pass the path's random loss. It uses the chance when the flow sent
// the packet, which is right because the loss happens where host-a's packets enter the
// link. With loss behind the bottleneck it is early by the queue's delay.
func (f flow) expected(loss pathLoss) curve {
	s := curveOf(f, sent)
	e := curve{at: s.at, value: make([]float64, len(s.at))}
	for i := 1; i < len(s.at); i++ {
		e.value[i] = e.value[i-1] + (s.value[i]-s.value[i-1])*(1-loss.mean(s.at[i-1], s.at[i]))
	}
	return e
}

// excess returns the flow's sent ÷ delivered × (1 - random loss) for the data sent
// between two times. It takes the delivery of one round trip later, when the
// acknowledgements are due, so data in flight does not count. Data sent into an outage
// counts in full.
func (f flow) excess(loss pathLoss, from, to time.Duration) Value {
	return f.account(loss).excess(from, to)
}

// account has the two terms of an excess.
type account struct {
	flow
	expected, arrived curve
}

func (f flow) account(loss pathLoss) account {
	return account{f, f.expected(loss), curveOf(f, delivered)}
}

func (a account) excess(from, to time.Duration) Value {
	if to <= from || len(a.samples) == 0 {
		return None
	}
	expected, arrived := a.between(from, to)
	return Value(expected / max(arrived, a.floor()))
}

// between returns the expected and the delivered bytes of the data sent between two
// times.
func (a account) between(from, to time.Duration) (expected, arrived float64) {
	return a.expected.when(to) - a.expected.when(from), a.arrived.when(a.ackedAt(to)) - a.arrived.when(a.ackedAt(from))
}

func (f flow) floor() float64 { return float64(excessFloorSegments * max(f.mss, 1)) }

// sharedExcess returns the excess of each flow, and of their sum, from a time to the
// end.
func sharedExcess(flows []flow, loss pathLoss, from time.Duration) (each []float64, all float64) {
	var expected, arrived float64
	for _, f := range flows {
		a := f.account(loss)
		begin, end := max(from, f.start), f.lastAcked()
		each = append(each, float64(a.excess(begin, end)))
		e, d := a.between(begin, end)
		expected, arrived = expected+e, arrived+max(d, f.floor())
	}
	return each, expected / arrived
}

// ackedAt returns the time of acknowledgement for data sent at a time, by the smoothed
// round trip of that time.
func (f flow) ackedAt(at time.Duration) time.Duration {
	return at + f.srttAt(at+f.srttAt(at))
}

// lastAcked returns the latest send time whose data can be acknowledged before the last
// sample.
func (f flow) lastAcked() time.Duration {
	if len(f.samples) == 0 {
		return 0
	}
	last := f.samples[len(f.samples)-1]
	return last.at - last.srtt
}

// wholeExcess returns the excess of all data of the flow.
func (f flow) wholeExcess(loss pathLoss) Value {
	return f.excess(loss, f.start, f.lastAcked())
}

// worstExcess is the largest excess of all windows of the given length within
// the flow's time, in steps of sampleEvery. Windows need not lie within a fault
// or a policer's time: a fault that is shorter than the window counts with what
// was sent before and after it. So one round trip's overrun, as at the
// beginning of a policer, is weighed as a part of the window. A flow whose time
// is shorter than a window has one window, the whole of it.
func (f flow) worstExcess(loss pathLoss, window time.Duration) Value {
	last := f.lastAcked()
	if last-f.start < window {
		return f.wholeExcess(loss)
	}
	a := f.account(loss)
	worst := Value(math.Inf(-1))
	for at := f.start; at+window <= last; at += sampleEvery {
		worst = max(worst, a.excess(at, at+window))
	}
	return worst
}
