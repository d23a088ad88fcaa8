package pair_test

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/sys/socket"
	"longhaul/test/nettest"
)

// TestCrowdGoesOn holds that many flows without a lane go on over the control connection, and that the link
// says that they wait.
func TestCrowdGoesOn(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.serve(echo)
	s.setOffset(3)
	clients := make([]*net.TCPConn, 2*pair.Crowd)
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
	send("before")
	receive("before")
	release := s.path.keep(preface.Lane)
	s.path.cut(true)
	for range pair.Crowd { // which come meanwhile
		clients = append(clients, s.dial())
		defer clients[len(clients)-1].Close()
	}
	meanwhile := strings.Repeat("meanwhile", pair.CrowdShare) // more than goes ahead at once
	send(meanwhile)
	nettest.Eventually(t, patience, func() bool { return s.session().FlowsResuming == len(clients) }, s.dump)
	crowded := func(want bool) {
		t.Helper()
		nettest.Eventually(t, patience, func() bool {
			taking := s.link.Taking()
			return taking.Takes && taking.Crowded == want
		}, s.dump)
	}
	s.path.cut(false)
	crowded(true) // while the lanes are kept back
	receive(meanwhile)
	release()
	send("after")
	receive("after")
	s.expectOffsets(len(clients), 3)
	crowded(false)
}

// beforeDeafness is a stand with a flow that has echoed, and lanes in the pool, before the path goes deaf.
func beforeDeafness(t *testing.T) (*stand, net.Conn) {
	t.Parallel()
	needsDeaf(t)
	s := newStand(t)
	c := s.begin("before")
	s.awaitWarm(2)
	return s, c
}

// TestAheadOfDeadLane holds that the far relay takes bytes that come ahead of a lane while it
// has one, of which it cannot know that it is dead.
func TestAheadOfDeadLane(t *testing.T) {
	s, c := beforeDeafness(t)
	release := s.path.keep(preface.Lane) // none from now on
	s.path.deafen(preface.Lane)
	s.roundTrip(c, "ahead")
	release()
	s.roundTrip(c, "after")
}

// hopOf is the connection that is a near flow's lane.
func (s *stand) hopOf(f *pair.Flow) (of *hop) {
	s.t.Helper()
	f.Inspect(func(_, lane int, _ flow.Counters) {
		at, err := unix.Getsockname(lane)
		nettest.Must(s.t, err)
		for _, h := range s.path.of(preface.Lane) {
			if h.a.RemoteAddr().(*net.TCPAddr).Port == at.(*unix.SockaddrInet4).Port {
				of = h
			}
		}
	})
	if of == nil {
		s.t.Fatal("the flow has no lane\n" + s.dump())
	}
	return of
}

// TestDeadLaneFromPool holds that a flow goes on if the lane that it takes from the pool is dead: also if nothing
// of it is on the way but its ATTACH, since its bytes went ahead.
func TestDeadLaneFromPool(t *testing.T) {
	s, c := beforeDeafness(t)
	used := s.hopOf(s.flow(0))
	release := s.path.keep(preface.Lane) // none from now on
	s.path.deafen(preface.Lane)
	_, err := io.WriteString(c, "ahead")
	nettest.Must(t, err)
	nettest.Eventually(t, patience, func() bool { return s.flow(0).Figures().Retained > 0 }, s.dump)
	s.path.mu.Lock()
	used.reset() // while bytes are on the way: the ATTACH of the next lane has to be answered before others
	s.path.mu.Unlock()
	got := make([]byte, len("ahead"))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatalf("nothing goes ahead: %v: %s", err, s.dump())
	}
	s.roundTrip(c, "after")
	release()
	s.roundTrip(c, "at last")
}

// TestReleaseOfDeadLane holds that a flow goes on if the lane that it offers to give back is dead.
func TestReleaseOfDeadLane(t *testing.T) {
	t.Parallel()
	needsDeaf(t)
	s := newStand(t, func(_ *stand, o *pair.Options, _ *pair.LinkOptions) { o.ParkAfter = 3 * time.Second })
	c := s.begin("first")
	s.awaitWarm(2)
	s.roundTrip(c, "before") // it is not silent yet
	s.path.keep(preface.Lane)
	s.path.deafen(preface.Lane)
	nettest.Eventually(t, patience, func() (offered bool) {
		s.flow(0).Inspect(func(_, lane int, _ flow.Counters) { offered = lane >= 0 && socket.Unacknowledged(lane) > 0 })
		return offered
	}, s.dump)
	s.roundTrip(c, "after")
}

// TestCrowdIsAdmitted holds that a crowd begins few handshakes while the far relay finishes none, that its
// flows wait and keep little, and that all are served when the far relay goes on.
func TestCrowdIsAdmitted(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.serve(echo)
	s.awaitWarm(2)
	const first = 64                       // handshakes at once, on a path without delay
	s.link.NoteRoundTrip(time.Millisecond) // a busy machine measures a longer one
	release := s.path.keep(preface.Lane)
	const flows = 256
	clients := make([]*net.TCPConn, flows)
	for i := range clients {
		clients[i] = s.dial()
		defer clients[i].Close()
		_, err := clients[i].Write(make([]byte, 16<<10))
		nettest.Must(t, err)
	}
	nettest.Eventually(t, patience, func() bool {
		st := s.session() // of the first to come all may go ahead: they rest
		return st.FlowsResuming+st.FlowsParked >= flows-2*s.way.Warm && len(s.path.of(preface.Lane)) >= first
	}, s.dump)
	greedy := 0
	for i := range flows {
		if g := s.flow(i).Figures(); g.Lanes == 0 && g.Retained > 8<<10 {
			greedy++
		}
	}
	if greedy > 2*pair.Crowd { // those that came before the crowd may keep all
		t.Errorf("%d flows that wait for a lane keep more than their first bytes", greedy)
	}
	if n := s.link.DialLanes(); n > first+s.way.Warm { // those that ran before may have raised the bound
		t.Errorf("%d handshakes of lanes run for %d flows while none ends", n, flows)
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
	s := newStand(t, func(_ *stand, _ *pair.Options, o *pair.LinkOptions) { o.Warm = 0 })
	s.serve(echo)
	nettest.Eventually(t, patience, func() bool { return s.session().Up }, s.dump)
	release := s.path.keep(preface.Lane)
	c := s.dial()
	defer c.Close()
	nettest.Eventually(t, patience, func() bool {
		return len(s.path.kept(preface.Lane)) > 1
	}, s.dump)
	release()
	s.roundTrip(c, "hello")
}
