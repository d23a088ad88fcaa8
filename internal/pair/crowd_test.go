package pair

import (
	"io"
	"net"
	"testing"
	"time"

	"longhaul/internal/nettest"
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
	all := func(message string) {
		t.Helper()
		for _, c := range clients {
			_, err := io.WriteString(c, message)
			nettest.Must(t, err)
		}
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
	all("before")
	dialLanes(false)
	s.path.cut(false)
	all("meanwhile")
	dialLanes(true)
	all("after")
}
