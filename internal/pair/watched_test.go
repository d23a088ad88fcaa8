package pair

import (
	"io"
	"testing"
	"time"

	"longhaul/internal/flow"
	"longhaul/internal/nettest"
)

// watchedNow are the flows that each tick looks at, at both ends.
func (s *stand) watchedNow() (n int) {
	for _, session := range append(s.near.sessions(), s.farNode().sessions()...) {
		n += len(session.watchedFlows(false))
	}
	return n
}

func (s *stand) awaitWatched(n int) {
	s.t.Helper()
	nettest.Eventually(s.t, 30*time.Second, func() bool { return s.watchedNow() == n }, s.dump)
}

// TestRest holds that parked flows are not looked at each tick, that the next byte
// changes that, and that silence ends them all the same.
func TestRest(t *testing.T) {
	flows := make(chan *Flow, 1)
	s := newStand(t, parkSoon, func(s *stand, _ *Options, _ *LinkOptions) {
		s.idle = time.Hour
		s.carried = func(f *Flow) { flows <- f }
	})
	s.serve(echo)
	c := s.dial()
	defer c.Close()
	for range 2 {
		s.roundTrip(c, "ping")
		s.awaitParked(1)
		s.awaitWatched(0)
	}
	f := <-flows
	f.mu.Lock()
	f.rest(time.Now().Add(time.Hour - sweepEvery*tickEvery))
	if n := len(f.s.watchedFlows(false)); f.resting || n != 1 {
		t.Errorf("%d flows are looked at, although one ends before the next sweep but one", n)
	}
	f.mu.Unlock()
	f.watch(time.Now().Add(2*time.Hour), time.Minute, false)
	if _, err := io.ReadAll(c); err == nil {
		t.Error("the client sees an end")
	}
	s.ends(flow.EndIdle)
	s.awaitWatched(0)
}
