package congestion

import (
	"math"
	"testing"
	"time"

	"longhaul/lab/link"
)

// Flows whose course is known: what they send over time, and what of it
// arrives a round trip later.
func TestExcess(t *testing.T) {
	const rtt = 300 * ms
	lag := func(s float64) float64 { return math.Max(0, s-rtt.Seconds()) }
	between := func(from, to float64) func(float64) float64 { // seconds of s that lie within
		return func(s float64) float64 { return math.Max(0, math.Min(s, to)-from) }
	}
	steady := func(s float64) float64 { return 1e6 * s }
	for _, test := range []struct {
		name         string
		loss         pathLoss
		sent         func(s float64) float64
		arrived      func(s float64) float64 // of what was sent until s
		whole, worst float64
	}{
		{"steady, a tenth is lost at random", pathLoss{{0, 0.1}}, steady, func(s float64) float64 { return 0.9e6 * s }, 1, 1},
		{"steady, a tenth is lost", pathLoss{{0, 0}}, steady, func(s float64) float64 { return 0.9e6 * s }, 1 / 0.9, 1 / 0.9},
		{"five times what a policer admits", pathLoss{{0, 0}}, steady, func(s float64) float64 { return 0.2e6 * s }, 5, 5},
		// Half of it is lost from 15.03 s to 25.03 s, between two samples: packets
		// on the way then count with the loss of the moment they were sent.
		{"a change of random loss", pathLoss{{0, 0.01}, {15030 * ms, 0.5}, {25030 * ms, 0.01}}, steady,
			func(s float64) float64 { return 1e6 * (0.99*s - 0.49*between(15.03, 25.03)(s)) }, 1, 1},
		// 2 s of 30 that a policer of half the rate lasts: in a window of 10 s
		// 1 MB of 10 is lost.
		{"a fault shorter than the window", pathLoss{{0, 0}}, steady,
			func(s float64) float64 { return 1e6 * (s - 0.5*between(15, 17)(s)) }, 29.7 / 28.7, 10.0 / 9},
		// One window goes out when the path dies, then probes.
		{"an outage of 5 s", pathLoss{{0, 0}},
			func(s float64) float64 { return 1e6 * (s - between(10.6, 15)(s)) },
			func(s float64) float64 { return 1e6 * (s - between(10, 15)(s)) }, 25.3 / 24.7, 5.6 / 5},
		{"an outage of 5 s that the sender ignores", pathLoss{{0, 0}}, steady,
			func(s float64) float64 { return 1e6 * (s - between(10, 15)(s)) }, 29.7 / 24.7, 2},
		{"nothing arrives", pathLoss{{0, 0}}, func(s float64) float64 { return 14480 * s }, func(float64) float64 { return 0 }, 29.7, 10},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := flowOf(30*time.Second, rtt, test.sent, func(s float64) float64 { return test.arrived(lag(s)) })
			near(t, "the excess", float64(f.wholeExcess(test.loss)), test.whole, 0.002)
			near(t, "the worst window's", float64(f.worstExcess(test.loss, 10*time.Second)), test.worst, 0.01)
		})
	}
}

// A round trip that grows does not make what is on the way look lost.
func TestExcessFollowsTheRoundTrip(t *testing.T) {
	f := flowOf(30*time.Second, 100*ms, func(s float64) float64 { return 1e6 * s }, func(s float64) float64 {
		switch {
		case s < 15.1:
			return 1e6 * math.Max(0, s-0.1)
		case s < 16:
			return 15e6
		}
		return 1e6 * (s - 1)
	})
	for i := range f.samples {
		if f.samples[i].at >= 15100*ms {
			f.samples[i].srtt = time.Second
		}
	}
	loss := pathLoss{{0, 0}}
	near(t, "the excess", float64(f.wholeExcess(loss)), 1, 0.002)
	if worst := f.worstExcess(loss, 10*time.Second); worst > 1.02 {
		t.Errorf("the worst window's excess is %v, want 1", worst)
	}
}

func TestExcessOfShortFlows(t *testing.T) {
	loss := pathLoss{{0, 0}}
	if v := (flow{}).worstExcess(loss, time.Second); v.Some() {
		t.Errorf("a flow without samples has an excess of %v", v)
	}
	f := flowOf(3*time.Second, 0, func(s float64) float64 { return 2e6 * s }, func(s float64) float64 { return 1e6 * s })
	near(t, "the excess of less than a window", float64(f.worstExcess(loss, 10*time.Second)), 2, 0.01)
}

func TestPathLoss(t *testing.T) {
	p := SafetyPath()
	bad := p
	bad.Loss, bad.LossBurstPackets = link.Loss{Probability: 0.2}, 8
	l := lossOf(p, []Change{{10 * time.Second, bad}, {12 * time.Second, p}})
	for _, test := range []struct {
		from, to time.Duration
		want     float64
	}{
		{0, 10 * time.Second, 0.01},
		{9 * time.Second, 11 * time.Second, 0.105},
		{10 * time.Second, 11 * time.Second, 0.2},
		{8 * time.Second, 18 * time.Second, 0.048},
		{100 * time.Second, 101 * time.Second, 0.01},
	} {
		near(t, "the loss from "+test.from.String(), l.mean(test.from, test.to), test.want, 1e-9)
	}
}

// Two flows of which one sends twice what it delivers, from a time on.
func TestSharedExcess(t *testing.T) {
	steady := func(s float64) float64 { return 1e6 * s }
	fair := flowOf(20*time.Second, 0, steady, steady)
	wasteful := flowOf(20*time.Second, 0, func(s float64) float64 { return 1e6 * (s + math.Max(0, s-10)) }, steady)
	each, all := sharedExcess([]flow{fair, wasteful}, pathLoss{{0, 0}}, 10*time.Second)
	near(t, "that of the first", each[0], 1, 0.01)
	near(t, "that of the second", each[1], 2, 0.01)
	near(t, "that of both", all, 1.5, 0.01)
	if _, none := sharedExcess(nil, pathLoss{{0, 0}}, 0); !math.IsNaN(none) {
		t.Errorf("that of no flows is %v", none)
	}
}
