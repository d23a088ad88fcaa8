package pair

import (
	"io"
	"net"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/test/nettest"
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
	f.watch(time.Now().Add(2*time.Hour), wait{resume: time.Minute})
	if _, err := io.ReadAll(c); err == nil {
		t.Error("the client sees an end")
	}
	s.ends(flow.EndIdle)
	s.awaitWatched(0)
}

// TestMuted holds that a flow whose bytes nobody reads for now hears of its client again.
func TestMuted(t *testing.T) {
	for _, reset := range []bool{false, true} {
		flows := make(chan *Flow, 1)
		s := newStand(t, func(s *stand, _ *Options, _ *LinkOptions) {
			s.carried = func(f *Flow) { flows <- f }
			s.resetDrain = 300 * time.Millisecond
		})
		read := make(chan struct{})
		s.serve(func(c *net.TCPConn) {
			<-read
			echo(c)
		})
		c := s.dial()
		defer c.Close()
		n, f := fill(c), <-flows
		nettest.Eventually(t, 10*time.Second, func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.leg.muted
		}, s.dump)
		if reset {
			nettest.Must(t, c.SetLinger(0))
			c.Close()
			s.ends(flow.EndClientReset)
			close(read)
			continue
		}
		close(read)
		_ = c.SetDeadline(time.Now().Add(60 * time.Second))
		if _, err := io.CopyN(io.Discard, c, int64(n)); err != nil {
			t.Fatal(err)
		}
		s.roundTrip(c, "and more")
		nettest.Must(t, c.CloseWrite())
		s.ends(flow.EndClean)
	}
}
