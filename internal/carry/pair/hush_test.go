package pair

import (
	"testing"
	"time"
)

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
