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

// curveOf returns a figure of a flow's samples, 0 at the flow's start.
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

// when returns the value at a time, interpolated between samples; beyond them the value
// of the first or last sample.
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

// last returns the time of the last sample.
func (c curve) last() time.Duration {
	if len(c.at) == 0 {
		return 0
	}
	return c.at[len(c.at)-1]
}

// rateBps returns the mean rate between two times, in bits per second for a curve of
// bytes.
func (c curve) rateBps(from, to time.Duration) float64 {
	if to <= from {
		return 0
	}
	return (c.when(to) - c.when(from)) * 8 / (to - from).Seconds()
}

// series returns the mean rates of consecutive intervals of a length, beginning at a
// time.
func (c curve) series(from, to, interval time.Duration) []float64 {
	var rates []float64
	for at := from; at+interval <= to; at += interval {
		rates = append(rates, c.rateBps(at, at+interval))
	}
	return rates
}

// reachWindow is the time for which a rate must hold to count as reached.
const reachWindow = time.Second

// reaches returns the first time at which the rate reaches a threshold, as a mean over
// reachWindow or two round trips, whichever is longer.
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

// longestRest returns the longest time without growth of the curve between two times.
func (c curve) longestRest(from, to time.Duration) time.Duration {
	longest, since, value := time.Duration(0), from, c.when(from)
	for i, at := range c.at {
		if at <= from || at > to {
			continue
		}
		if c.value[i] > value {
			// It grew at some time since the previous sample.
			longest, since, value = max(longest, c.at[max(i-1, 0)]-since), at, c.value[i]
		}
	}
	return max(longest, to-since)
}

// sentPerDelivered returns the flow's sent ÷ delivered, including retransmissions: the
// data sent until one round trip before the last sample, over the data delivered at
// that sample. Data in flight does not count.
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

// srttAt returns the sender's smoothed round-trip time at a time.
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

// Jain returns the fairness index of R. Jain, D. Chiu and W. Hawe, "A quantitative
// measure of fairness and discrimination" (1984): 1 if all get the same, 1/n
// if one gets everything.
func Jain(values []float64) float64 {
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

// Harm returns a flow's loss to its neighbours as a share of its goodput alone:
// (solo - shared)/solo, after R. Ware et al., "Beyond Jain's fairness index" (HotNets
// 2019). It is negative for a gain. It is missing for a flow with no goodput alone.
func Harm(solo, shared float64) float64 {
	if solo == 0 {
		return math.NaN()
	}
	return (solo - shared) / solo
}

// Value is a figure that may be missing, such as the time at which a rate was reached.
// A missing figure is None, which sorts after every other and is null in JSON.
type Value float64

// None is the value of a missing figure.
var None = Value(math.Inf(1))

// Some reports whether there is a value.
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
