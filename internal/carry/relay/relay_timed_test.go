//go:build timed

package relay

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// TestPingPongBesideBulk measures the round trips of one flow while another
// fills the same event loop.
func TestPingPongBesideBulk(t *testing.T) {
	nettest.CheckLeaks(t)
	const rounds, most = 500, 20 * time.Millisecond
	nettest.MostOf(t, func() error {
		begin := time.Now()
		pingPongBesideBulk(t, rounds)
		if took := time.Since(begin) / rounds; took > most {
			return fmt.Errorf("a round trip took %v beside one bulk flow, want %v at most", took, most)
		}
		return nil
	})
}

// TestASampleHoldsNoLoopUp measures how long a portion of very many flows
// occupies an event loop.
func TestASampleHoldsNoLoopUp(t *testing.T) {
	nettest.CheckLeaks(t)
	const most = time.Millisecond
	g, _ := crowd(t, 10_000)
	for _, pass := range []string{"the kernel is asked about each", "all are quiet"} {
		nettest.MostOf(t, func() error {
			g.wakeAll(pass == "all are quiet")
			var turns []time.Duration
			g.eachPortion(10_000, func(_ int, took time.Duration) { turns = append(turns, took) })
			slices.Sort(turns)
			t.Logf("%s: %d turns; one takes %v (median), %v (99 %%), %v (longest)", pass,
				len(turns), turns[len(turns)/2], turns[len(turns)*99/100], turns[len(turns)-1])
			if got := turns[len(turns)/2]; got > most {
				return fmt.Errorf("%s: half of the turns take %v or more, want %v at most", pass, got, most)
			}
			return nil
		})
	}
}
