package congestion

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"longhaul/test/nettest"
)

func faultNamed(t *testing.T, name string) Fault {
	t.Helper()
	i := slices.IndexFunc(Faults(), func(f Fault) bool { return f.Name == name })
	if i < 0 {
		t.Fatalf("no fault %s", name)
	}
	return Faults()[i]
}

func TestFaultsAreValid(t *testing.T) {
	for _, f := range Faults() {
		base, bad := f.paths(SafetyPath())
		if err := errors.Join(base.Check(), bad.Check()); err != nil {
			t.Error(err)
		}
		if f.About == "" || (f.during != nil || f.idle || f.stays) && f.lasts == 0 || f.base == nil && f.during == nil && !f.idle && f.crossShare == 0 {
			t.Errorf("fault %s is incomplete", f.Name)
		}
		if f.during != nil && base == bad {
			t.Errorf("fault %s changes nothing", f.Name)
		}
	}
}

// A slower path keeps its queue's bytes, and so holds them for longer.
func TestRateCutKeepsTheQueue(t *testing.T) {
	base, bad := faultNamed(t, "rate-cut").paths(SafetyPath())
	ab, ba := base.Directions()
	cut, _ := bad.Directions()
	if cut.RateBps != ab.RateBps/10 || cut.QueueLimitBytes(ba.Delay) != ab.QueueLimitBytes(ba.Delay) {
		t.Errorf("a queue of %d bytes at %d bit/s became one of %d at %d", ab.QueueLimitBytes(ba.Delay), ab.RateBps, cut.QueueLimitBytes(ba.Delay), cut.RateBps)
	}
}

// Flows whose course is known, before an outage of 5 s at 20 s and after it.
func TestJudge(t *testing.T) {
	f := faultNamed(t, "outage")
	base, bad := f.paths(SafetyPath())
	limit := base.LimitBps() / 8 // bytes/s
	course := func(recovered, share float64) func(s float64) float64 {
		return func(s float64) float64 {
			v := limit * min(s, 20.1)
			return v + share*limit*max(0, s-recovered)
		}
	}
	for _, test := range []struct {
		name      string
		delivered func(float64) float64
		sent      func(float64) float64
		recovery  Value
		stall     float64
		excess    float64
		broken    error
		ok        bool
	}{
		{"back at once", course(25, 1), nil, 0, 0, 1, nil, true},
		{"back after 4 s", course(29, 1), nil, 4, 0, 1, nil, true},
		{"back after 7 s", course(32, 1), nil, 7, 0, 1, nil, false},
		{"half as fast as before", course(25, 0.5), nil, None, 0, 1, nil, false},
		{"never back", course(1000, 1), nil, None, 0, 1, nil, false},
		{"stalls later on", func(s float64) float64 { return course(25, 1)(s) - limit*min(max(0, s-30), 3) }, nil, 0, 3, 1, nil, false},
		{"floods", course(25, 1), func(s float64) float64 { return 4 * limit * s }, 0, 0, 4, nil, false},
		{"sends on in the outage", course(25, 1), func(s float64) float64 { return limit * s }, 0, 0, 1.11, nil, false},
		{"is broken off", course(25, 1), nil, 0, 0, 1, errors.New("timed out"), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.sent == nil {
				test.sent = test.delivered
			}
			fl := flowOf(usualShape.time(f), 100*ms, test.sent, test.delivered)
			fl.firstByte, fl.err = 100*ms, test.broken
			r := f.judge(usualShape, fl, base, bad)
			near(t, "the share before", float64(r.BeforeShare), 1, 0.02)
			if r.DuringShare.Some() {
				t.Errorf("%v of the limit were carried by a path that was down", r.DuringShare)
			}
			if r.RecoverySec.Some() != test.recovery.Some() {
				t.Errorf("recovered after %v s, want %v", r.RecoverySec, test.recovery)
			} else if test.recovery.Some() {
				near(t, "the recovery", float64(r.RecoverySec), float64(test.recovery), 0.31)
			}
			if test.name != "never back" {
				near(t, "the stall", r.StallSec, test.stall, 0.21)
			}
			if excess := float64(r.Excess); test.excess > 1 && excess < test.excess || test.excess == 1 && excess > 1.01 {
				t.Errorf("the excess is %v, want %v", r.Excess, test.excess)
			}
			if r.OK != test.ok || (r.Broken != "") != (test.broken != nil) {
				t.Errorf("judged %+v, want OK %v", r, test.ok)
			}
		})
	}
}

// Real flows go through shortened faults and are not broken off. That links follow
// their schedule is TestFollow of package link; what the faults do to flows is
// measured by `go run ./bench/dossier --case transients`, and held under the tag timed.
func TestFaultRuns(t *testing.T) {
	t.Parallel()
	nettest.RequireSandbox(t)
	p := quick()
	p.RTT = 40 * ms
	when := shape{at: 200 * ms, after: 200 * ms}
	for _, name := range []string{"outage", "rate-cut", "policer", "reroute-30", "cross", "idle", "ack-loss"} {
		t.Run(name, func(t *testing.T) {
			f := faultNamed(t, name)
			f.lasts = min(f.lasts, 200*ms)
			r, err := f.run(t.Context(), when, p, "cubic", options(0, "cubic"), 1, 1)
			if err != nil {
				t.Fatal(err)
			}
			if want := int(when.time(f) / sampleEvery); r.Broken != "" || math.IsNaN(float64(r.Excess)) || !r.Excess.Some() || r.Fault != name || len(r.delivery) != want || r.DuringShare.Some() != (name != "outage" && name != "idle") {
				t.Errorf("a run of %v was judged %+v, with %d points, want %d", when.time(f), r, len(r.delivery), want)
			}
		})
	}
}

// A change that stays is recovered from when half a run later at least four
// fifths of what was delivered before still are.
func TestJudgeChangeThatStays(t *testing.T) {
	f := faultNamed(t, "reroute-30")
	base, bad := f.paths(SafetyPath())
	limit := base.LimitBps() / 8 // bytes/s
	for name, test := range map[string]struct {
		delivered func(float64) float64
		recovery  Value
		ok        bool
	}{
		"goes on":              {func(s float64) float64 { return limit * s }, 0, true},
		"falls to a tenth":     {func(s float64) float64 { return limit * (min(s, 20) + 0.1*max(0, s-20)) }, None, false},
		"falls to it later on": {func(s float64) float64 { return limit * (min(s, 24) + 0.1*max(0, s-24)) }, None, false},
		"is back after 8 s":    {func(s float64) float64 { return limit * (min(s, 20) + max(0, s-28)) }, 8, false},
	} {
		t.Run(name, func(t *testing.T) {
			fl := flowOf(usualShape.time(f), 100*ms, test.delivered, test.delivered)
			fl.firstByte = 100 * ms
			r := f.judge(usualShape, fl, base, bad)
			if r.RecoverySec.Some() != test.recovery.Some() || test.recovery.Some() && math.Abs(float64(r.RecoverySec-test.recovery)) > 0.31 || r.OK != test.ok {
				t.Errorf("judged %+v, want recovery after %v s and OK %v", r, test.recovery, test.ok)
			}
		})
	}
}

func TestExcessBounds(t *testing.T) {
	for name, want := range map[string]struct {
		bound float64
		of    string
	}{
		"outage": {1.05, "run"}, "reroute-30": {1.05, "run"}, "crossed": {1.10, "run"},
		"policer": {1.15, "10s"}, "policed-1mb": {1.15, "10s"},
	} {
		f := faultNamed(t, name)
		base, bad := f.paths(SafetyPath())
		r := FaultResult{Excess: 1, Excess10s: 2}
		r.setBound(f, base, bad)
		if r.ExcessBound != want.bound || r.ExcessBoundOf != want.of || (r.JudgedExcess() == r.Excess10s) != (want.of == "10s") {
			t.Errorf("%s is held to %v of %s, want %+v", name, r.ExcessBound, r.ExcessBoundOf, want)
		}
	}
}

// What is possible during a fault.
func TestFaultLimits(t *testing.T) {
	limit := SafetyPath().LimitBps()
	for name, want := range map[string]float64{"rtt-step": 1, "rate-cut": 0.1, "policed": 0.5, "policer-1mb": 0.5, "crossed": 0.2, "slow-cut": 0.012} {
		f := faultNamed(t, name)
		_, bad := f.paths(SafetyPath())
		near(t, "the limit of "+name, f.limitBps(bad)/limit, want, 1e-6)
	}
}

func TestCrossTrafficPace(t *testing.T) {
	c := Cross{RateBps: 12e6, Begin: time.Second, End: 3 * time.Second} // a packet each millisecond
	for at, want := range map[time.Duration]int64{0: 0, time.Second: 0, 1500 * ms: 500, 3 * time.Second: 2000, time.Minute: 2000} {
		if got := c.packetsBy(at); got != want {
			t.Errorf("after %v %d packets are due, want %d", at, got, want)
		}
	}
}
