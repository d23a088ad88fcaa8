package pair

import (
	"testing"
	"time"

	"longhaul/test/nettest"
)

// TestHush holds that a flow sends nothing for a moment, that a PING looks for the queue then, and
// that the flow goes on.
func TestHush(t *testing.T) {
	t.Parallel()
	s := newStand(t, striped(1))
	s.serve(echo)
	c := s.dial()
	s.roundTrip(c, "hello")
	near := s.link.current().allFlows()[0]
	began := time.Now()
	near.mu.Lock()
	near.auto = &auto{}
	_, ok := near.hushNow(20*time.Millisecond, 1e6)
	silent := near.hushes()
	near.mu.Unlock()
	if !ok || !silent {
		t.Errorf("the flow is to be silent: %v, and is: %v", ok, silent)
	}
	s.roundTrip(c, "hello again")
	if took := time.Since(began); took < 24*time.Millisecond {
		t.Errorf("the flow was silent for %v, want 24 ms at least", took)
	}
	nettest.Eventually(t, 30*time.Second, func() bool {
		return near.s.delays.drained(began, began.Add(time.Minute))
	}, s.dump)
}

// TestHushTells holds whose queue it is that a flow is silent for.
func TestHushTells(t *testing.T) {
	now := time.Now()
	const rtt = 60 * time.Millisecond
	s := sight{now: now, hush: func(queue time.Duration, _ float64) (time.Time, bool) { return now.Add(queue), true }}
	rates := laneRates{{&lane{}, 1e6}}
	for _, own := range []bool{true, false} {
		var h hush
		s.now, s.drained = now, func(time.Time, time.Time) bool { return own }
		if !h.begin(s, rtt/2, rates) || !h.runs(s, rtt) {
			t.Fatal("it does not begin")
		}
		s.now = now.Add(time.Second)
		if h.runs(s, rtt) || h.owns(s.now) != own {
			t.Errorf("own queue: %v, found: %v", own, h.owns(s.now))
		}
		if again := h.begin(s, rtt/2, rates); again != own {
			t.Errorf("own queue: %v; asked again: %v", own, again)
		}
		s.now = now.Add(hushFor + 2*time.Second)
		if h.owns(s.now) {
			t.Error("the answer counts for ever")
		}
	}
}
