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

// TestCrowdIsAdmitted holds that a crowd begins few handshakes while the far relay finishes none, that its
// flows wait and keep little, and that all are served when the far relay goes on.
func TestCrowdIsAdmitted(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(s *stand, _ *Options, _ *LinkOptions) { s.deadline = 5 * time.Minute })
	s.serve(echo)
	s.awaitWarm(2)
	release := s.far.turns.hold()
	defer release()
	const flows = 256
	clients := make([]*net.TCPConn, flows)
	for i := range clients {
		clients[i] = s.dial()
		defer clients[i].Close()
		_, err := clients[i].Write(make([]byte, 16<<10))
		nettest.Must(t, err)
	}
	session := s.link.current()
	nettest.Eventually(t, 30*time.Second, func() bool {
		st := s.near.State().Sessions[0] // of the first to come all may go ahead: they rest
		return st.FlowsWaiting+st.FlowsParked >= flows-2*session.link.options().Warm
	}, s.dump)
	for range 3 { // it has seen all of them
		s.link.dialLanes(session, time.Now())
	}
	s.link.mu.Lock()
	dials := s.link.laneDials
	s.link.mu.Unlock()
	if dials > flows/2 {
		t.Errorf("%d handshakes run for %d flows while none ends", dials, flows)
	}
	greedy := 0
	for _, f := range session.allFlows() {
		f.mu.Lock()
		greedy += btoi(f.lane == nil && f.sf.Out.Kept() > 8<<10)
		f.mu.Unlock()
	}
	if greedy > 2*crowd { // those that came before the crowd may keep all
		t.Errorf("%d flows that wait for a lane keep more than their first bytes", greedy)
	}
	release()
	buffer := make([]byte, 16<<10)
	for _, c := range clients {
		nettest.Must(t, c.CloseWrite())
		for got := 0; got < len(buffer); {
			n, err := c.Read(buffer)
			if got += n; err != nil && got < len(buffer) {
				t.Fatalf("after %d bytes: %v: %s", got, err, s.dump())
			}
		}
	}
}

// TestHandshakeIsOverdue holds that a flow whose lane's handshake gets no answer for long gets another
// attempt beside it.
func TestHandshakeIsOverdue(t *testing.T) {
	t.Parallel()
	s := newStand(t, direct, func(s *stand, _ *Options, o *LinkOptions) { s.deadline, o.Warm = time.Minute, 0 })
	s.serve(echo)
	nettest.Eventually(t, 30*time.Second, func() bool { return s.link.current().control() != nil }, s.dump)
	release := s.far.turns.hold()
	defer release()
	c := s.dial()
	defer c.Close()
	session := s.link.current()
	nettest.Eventually(t, 30*time.Second, func() bool {
		s.link.mu.Lock()
		defer s.link.mu.Unlock()
		return s.link.laneDials > session.laneDials
	}, s.dump)
	release()
	s.roundTrip(c, "hello")
}
