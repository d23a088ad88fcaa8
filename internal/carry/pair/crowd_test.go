package pair

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// TestCrowdGoesOn holds that many flows without a lane go on over the control connection.
func TestCrowdGoesOn(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(s *stand, _ *Options, _ *LinkOptions) { s.deadline = time.Minute }) // so many handshakes take long
	s.serve(echo)
	clients := make([]*net.TCPConn, 2*crowd)
	for i := range clients {
		clients[i] = s.dial()
		defer clients[i].Close()
	}
	send := func(message string) {
		t.Helper()
		for _, c := range clients {
			_, err := io.WriteString(c, message)
			nettest.Must(t, err)
		}
	}
	receive := func(message string) {
		t.Helper()
		for i, c := range clients {
			got := make([]byte, len(message))
			if _, err := io.ReadFull(c, got); err != nil || string(got) != message {
				t.Fatalf("flow %d got %q, %v: %s", i, got, err, s.dump())
			}
		}
	}
	dialLanes := func(on bool) {
		s.link.mu.Lock()
		defer s.link.mu.Unlock()
		if on {
			s.link.laneDials -= maxLaneDials
		} else {
			s.link.laneDials += maxLaneDials
		}
	}
	send("before")
	receive("before")
	dialLanes(false)
	s.path.cut(true)
	for range crowd { // which come meanwhile
		clients = append(clients, s.dial())
		defer clients[len(clients)-1].Close()
	}
	meanwhile := strings.Repeat("meanwhile", crowdShare) // more than goes ahead at once
	send(meanwhile)
	nettest.Eventually(t, 30*time.Second, func() bool { return s.link.current().waiting.Load() == int64(len(clients)) }, s.dump)
	s.path.cut(false)
	receive(meanwhile)
	dialLanes(true)
	send("after")
	receive("after")
}

// TestAheadOfDeadLane holds that the far relay takes bytes that come ahead of a lane while it
// has one, of which it cannot know that it is dead.
func TestAheadOfDeadLane(t *testing.T) {
	t.Parallel()
	needsDeaf(t)
	s := newStand(t, direct)
	s.serve(echo)
	c := s.dial()
	defer c.Close()
	s.roundTrip(c, "before")
	s.awaitWarm(2)
	s.link.mu.Lock()
	s.link.laneDials += maxLaneDials // none from now on
	s.link.mu.Unlock()
	s.deafenFar(true, false)
	s.roundTrip(c, "ahead")
	s.link.mu.Lock()
	s.link.laneDials -= maxLaneDials
	s.link.mu.Unlock()
	s.roundTrip(c, "after")
}
