package pair

import (
	"math"
	"testing"
	"time"
)

// TestTuner holds what number of lanes comes out for paths of which the rate with n lanes
// after t seconds is known, and when.
func TestTuner(t *testing.T) {
	const mb = 1e6
	perLane := func(one, all float64) func(int, float64) float64 {
		return func(n int, _ float64) float64 { return min(float64(n)*one, all) }
	}
	for _, c := range []struct {
		name   string
		rate   func(lanes int, seconds float64) float64
		idle   bool // the client has too little to send
		lanes  int
		within float64 // seconds
	}{
		{"a limit for each connection", perLane(6*mb, 50*mb), false, 8, 6},
		{"a link of three connections", perLane(6*mb, 18*mb), false, 4, 10},
		{"no limit", perLane(100*mb, 50*mb), false, 1, 6},
		{"16 lanes", perLane(mb, 100*mb), false, 16, 9},
		{"a connection that grows", func(_ int, t float64) float64 { return 50 * mb * min(1, 0.1+t/10) }, false, 1, 16},
		{"a connection that grows slowly", func(_ int, t float64) float64 { return mb * math.Pow(1.15, t) }, false, 1, 20},
		{"a slow client", perLane(6*mb, 50*mb), true, 1, 3},
	} {
		now := time.Now()
		var tune tuner
		lanes, want, bytes := 1, 1, 0.0
		var last *known
		changed := 0.0
		for seconds := 0.0; seconds < 20; seconds += 0.1 {
			got, found := tune.look(sight{now.Add(time.Duration(seconds * 1e9)), lanes, uint64(bytes), !c.idle, 60 * time.Millisecond})
			if got != want {
				changed = seconds
			}
			if want = got; found != nil {
				last = found
			}
			lanes = want
			bytes += c.rate(lanes, seconds) / 10
			if last != nil && tune.trying == 0 {
				break
			}
		}
		if want != c.lanes || changed > c.within {
			t.Errorf("%s: %d lanes after %.1f s (%s), want %d within %.1f s", c.name, want, changed, tune.why, c.lanes, c.within)
		}
		if last != nil && last.lanes != c.lanes {
			t.Errorf("%s: remembers %d lanes, want %d", c.name, last.lanes, c.lanes)
		}
	}
}
