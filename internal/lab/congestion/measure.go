package congestion

import (
	"encoding/json"
	"math"
	"sort"
	"time"
)

// curve is a count that grows over time, such as bytes received.
type curve struct {
	at    []time.Duration // ascending
	value []float64
}

// curveOf is a figure of a flow's samples, 0 at the flow's start.
func curveOf(f flow, figure func(sample) int64) curve {
	c := curve{at: []time.Duration{f.start}, value: []float64{0}}
	for _, s := range f.samples {
		if s.at > c.at[len(c.at)-1] {
			c.at = append(c.at, s.at)
			c.value = append(c.value, float64(figure(s)))
		}
	}
	return c
}

func received(s sample) int64  { return s.received }
func sent(s sample) int64      { return s.sent }
func delivered(s sample) int64 { return s.delivered }

// when is the value at a time, on a straight line between the samples around
// it, and that of the first or the last sample beyond them.
func (c curve) when(at time.Duration) float64 {
	i := sort.Search(len(c.at), func(i int) bool { return c.at[i] >= at })
	switch {
	case len(c.at) == 0:
		return 0
	case i == 0:
		return c.value[0]
	case i == len(c.at):
		return c.value[i-1]
	}
	share := float64(at-c.at[i-1]) / float64(c.at[i]-c.at[i-1])
	return c.value[i-1] + share*(c.value[i]-c.value[i-1])
}

// last is the time of the last sample.
func (c curve) last() time.Duration {
	if len(c.at) == 0 {
		return 0
	}
	return c.at[len(c.at)-1]
}

// rateBps is the mean rate between two times, in bits per second for a curve
// of bytes.
func (c curve) rateBps(from, to time.Duration) float64 {
	if to <= from {
		return 0
	}
	return (c.when(to) - c.when(from)) * 8 / (to - from).Seconds()
}

// series are the mean rates of the intervals of the given length from a time on.
func (c curve) series(from, to, interval time.Duration) []float64 {
	var rates []float64
	for at := from; at+interval <= to; at += interval {
		rates = append(rates, c.rateBps(at, at+interval))
	}
	return rates
}

// reachWindow is the time over which a rate must hold to count as reached.
const reachWindow = time.Second

// reaches is the first time from which on the rate is at least the given one,
// as a mean over reachWindow or two round trips, whichever is longer.
func (c curve) reaches(rateBps float64, from time.Duration, rtt time.Duration) (time.Duration, bool) {
	window := max(reachWindow, 2*rtt)
	for _, at := range c.at {
		if at < from {
			continue
		}
		if at+window > c.last() {
			break
		}
		if c.rateBps(at, at+window) >= rateBps {
			return at, true
		}
	}
	return 0, false
}

// longestRest is the longest time between two times in which the curve did not
// grow.
func (c curve) longestRest(from, to time.Duration) time.Duration {
	longest, since, value := time.Duration(0), from, c.when(from)
	for i, at := range c.at {
		if at <= from || at > to {
			continue
		}
		if c.value[i] > value {
			// It grew some time since the sample before.
			longest, since, value = max(longest, c.at[max(i-1, 0)]-since), at, c.value[i]
		}
	}
	return max(longest, to-since)
}

// sentPerDelivered is the flow's sent ÷ delivered, retransmissions included:
// what had been sent one round trip before the last sample, over what had been
// delivered at it, so that what is still on the way does not count.
func sentPerDelivered(f flow) Value {
	if len(f.samples) == 0 {
		return None
	}
	last := f.samples[len(f.samples)-1]
	if last.delivered == 0 {
		return None
	}
	return Value(curveOf(f, sent).when(last.at-last.srtt) / float64(last.delivered))
}

// srttAt is the sender's smoothed round-trip time at a time.
func (f flow) srttAt(at time.Duration) time.Duration {
	i := sort.Search(len(f.samples), func(i int) bool { return f.samples[i].at >= at })
	if i == len(f.samples) {
		i--
	}
	if i < 0 {
		return 0
	}
	return f.samples[i].srtt
}

// jain is the fairness index of R. Jain, D. Chiu and W. Hawe, "A quantitative
// measure of fairness and discrimination" (1984): 1 if all get the same, 1/n
// if one gets everything.
func jain(values []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, v := range values {
		sum += v
		squares += v * v
	}
	if squares == 0 {
		return math.NaN()
	}
	return sum * sum / (float64(len(values)) * squares)
}

// harm is what a flow loses to its neighbours, as a share of what it has
// without them: (solo - shared)/solo, after R. Ware et al., "Beyond Jain's
// fairness index" (HotNets 2019). It is negative for one that gains. Flows that have
// nothing alone cannot be harmed: that is no figure.
func harm(solo, shared float64) float64 {
	if solo == 0 {
		return math.NaN()
	}
	return (solo - shared) / solo
}

// Value is a figure that there may not be, such as the time at which a rate
// was reached. Then it is None, which sorts after every other and is null in
// JSON.
type Value float64

// None is the value of a figure that there is not.
var None = Value(math.Inf(1))

// Some says whether there is a value.
func (v Value) Some() bool { return v < None }

// MarshalJSON implements json.Marshaler.
func (v Value) MarshalJSON() ([]byte, error) {
	if !v.Some() {
		return []byte("null"), nil
	}
	return json.Marshal(float64(v))
}

// UnmarshalJSON implements json.Unmarshaler.
func (v *Value) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*v = None
		return nil
	}
	return json.Unmarshal(b, (*float64)(v))
}
