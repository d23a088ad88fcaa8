package pair_test

import (
	"io"
	"net"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/test/nettest"
)

// watchedNow are the flows that each tick looks at, at both ends.
func (s *stand) watchedNow() int {
	return s.near.Watched() + s.farNode().Watched()
}

func (s *stand) awaitWatched(n int) {
	s.t.Helper()
	nettest.Eventually(s.t, patience, func() bool { return s.watchedNow() == n }, s.dump)
}

// TestRest holds that parked flows are not looked at each tick, and that the next byte changes that.
func TestRest(t *testing.T) {
	t.Parallel()
	s := newStand(t, parkSoon)
	s.serve(echo)
	c := s.dial()
	for range 2 {
		s.roundTrip(c, "ping")
		s.awaitWatched(2)
		s.awaitParked(1)
		s.awaitWatched(0)
	}
	nettest.Must(t, c.CloseWrite())
	s.ends(flow.EndClean)
	s.awaitWatched(0)
}

// TestMuted holds that a flow whose bytes nobody reads for now hears of its client again.
func TestMuted(t *testing.T) {
	for _, reset := range []bool{false, true} {
		s := newStand(t, func(s *stand, _ *pair.Options, _ *pair.LinkOptions) {
			s.resetDrain = 300 * time.Millisecond
		})
		read := make(chan struct{})
		s.serve(func(c *net.TCPConn) {
			<-read
			echo(c)
		})
		c := s.dial()
		defer c.Close()
		n := 0
		nettest.Eventually(t, patience, func() bool { // nothing more goes: nobody reads
			more := fill(c)
			n += more
			return more == 0
		}, s.dump)
		if reset {
			nettest.Must(t, c.SetLinger(0))
			c.Close()
			s.ends(flow.EndClientReset)
			close(read)
			continue
		}
		close(read)
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := io.CopyN(io.Discard, c, int64(n)); err != nil {
			t.Fatal(err)
		}
		s.roundTrip(c, "and more")
		nettest.Must(t, c.CloseWrite())
		s.ends(flow.EndClean)
	}
}
