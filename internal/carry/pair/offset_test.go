package pair_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/wire"
	"longhaul/test/nettest"
)

// setOffset has further clients dial a port of a range.
func (s *stand) setOffset(to uint16) { s.setMark(func(c *flow.Client) { c.Offset = to }) }

// expectOffsets expects that far relays have dialed for so many flows, each with the offset.
func (s *stand) expectOffsets(n int, want uint16) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.opens) != n {
		s.t.Errorf("far relays dialed for %d flows, want %d", len(s.opens), n)
	}
	for _, o := range s.opens {
		if o.Offset != want {
			s.t.Errorf("a far relay dialed for offset %d, want %d", o.Offset, want)
		}
	}
}

// beginOnePort begins a flow to a port that may be refused at once: then it has no client.
func (s *stand) beginOnePort() *net.TCPConn {
	s.t.Helper()
	c, err := net.Dial("tcp", s.clients.Addr().String())
	if errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	nettest.Must(s.t, err)
	s.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	// A write hears of a reset that was there before it, and a read then sees an end.
	if _, err := io.WriteString(c, "hello"); errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	return c.(*net.TCPConn)
}

// expectOnePort expects that the client of a port other than the first is reset, since the far relay is of
// an older release.
func (s *stand) expectOnePort(c *net.TCPConn) {
	s.t.Helper()
	if c != nil {
		if b, err := io.ReadAll(c); len(b) > 0 || !errors.Is(err, syscall.ECONNRESET) {
			s.t.Errorf("the client sees %q, %v; want a reset", b, err)
		}
	}
	select {
	case e := <-s.nearEnds:
		if e.Reason != flow.EndDenied || e.ByPeer || e.Err == nil || e.Err.Error() != flow.OnePortWarning {
			s.t.Errorf("the flow ended by %+v", e)
		}
	case <-time.After(patience):
		s.t.Fatalf("no end of the flow: %s", s.dump())
	}
}

// TestOffset holds that the offset of a flow's port comes to the far relay, in each mode.
func TestOffset(t *testing.T) {
	t.Parallel()
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t, m.in())
			s.serve(echo)
			s.setOffset(999)
			c := s.dial()
			defer c.Close()
			s.roundTrip(c, "hello")
			s.expectOffsets(1, 999)
		})
	}
}

// withoutOffset has the far relay be of an older release, which would lead each flow to the first port, and
// the near tunnel have a range.
func withoutOffset(_ *stand, o *pair.Options, l *pair.LinkOptions) {
	o.Without |= wire.FeatureOffset
	l.Ports = 10
}

// TestOlderFarRelayTakesOnePort holds that a far relay of an older release never hears of a flow to another
// port than the first, in each mode, also if its client comes before the session or in a crowd, and that it
// gets those to the first.
func TestOlderFarRelayTakesOnePort(t *testing.T) {
	t.Parallel()
	for _, m := range modes {
		for _, when := range []string{"up", "before", "crowd"} {
			t.Run(m.name+", "+when, func(t *testing.T) {
				t.Parallel()
				s := newStand(t, m.in(), withoutOffset, func(s *stand, _ *pair.Options, _ *pair.LinkOptions) {
					s.path.cut(when != "up")
				})
				s.serve(echo)
				s.setOffset(1)
				clients := make([]*net.TCPConn, map[bool]int{true: 2 * pair.Crowd, false: 1}[when == "crowd"])
				if when == "up" {
					nettest.Eventually(t, patience, func() bool { return s.session().Up }, s.dump)
					if !s.session().OnePort {
						t.Errorf("the session is %+v", s.session())
					}
				}
				for i := range clients {
					clients[i] = s.beginOnePort()
				}
				nettest.Eventually(t, patience, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.flows) == len(clients) }, s.dump)
				s.path.cut(false)
				for _, c := range clients {
					s.expectOnePort(c)
				}
				s.expectOffsets(0, 0)
				s.setOffset(0)
				c := s.dial()
				defer c.Close()
				s.roundTrip(c, "hello")
				s.expectOffsets(1, 0)
			})
		}
	}
}

// TestOlderFarRelayGivesBack holds that a client with other hops is given back as it came if the far relay
// is of an older release.
func TestOlderFarRelayGivesBack(t *testing.T) {
	t.Parallel()
	s, next := newStand(t, withoutOffset, withOthers), newStand(t)
	next.serve(echo)
	s.setOffset(1)
	nettest.Eventually(t, patience, func() bool { return s.link.Taking().Takes }, s.dump)
	c := s.dial()
	defer c.Close()
	e := s.back()
	if e.Reason != flow.EndDenied || e.ByPeer || e.Err.Error() != flow.OnePortWarning {
		t.Errorf("given back as %+v", e)
	}
	next.carryOn(e.Back)
	got := make([]byte, len("early "))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "early " {
		t.Errorf("got %q, %v at the next hop", got, err)
	}
	next.expectOffsets(1, 1)
	s.expectOffsets(0, 0)
}

// TestOlderProcessFollows holds that a flow whose OPEN a far process has not carried out does not go on to an
// older one in its place, and one that comes in the outage neither.
func TestOlderProcessFollows(t *testing.T) {
	t.Parallel()
	for _, e := range endings {
		for _, refused := range []bool{true, false} {
			t.Run(e.name+map[bool]string{true: ", refused", false: ", in the outage"}[refused], func(t *testing.T) {
				t.Parallel()
				s := newStand(t, e.in, func(s *stand, _ *pair.Options, _ *pair.LinkOptions) {
					s.acceptor = newUpgradable(s)
				})
				s.serve(echo)
				s.setOffset(7)
				nettest.Eventually(t, patience, func() bool { return s.session().Up }, s.dump)
				s.without = wire.FeatureOffset
				if refused {
					a := s.acceptor.(upgradable)
					refuse := make(chan error)
					a.waits <- refuse
					c := s.beginOnePort()
					nettest.Eventually(t, patience, func() bool { return a.asked.Load() == 1 }, s.dump)
					_, closes := s.succeed()
					t.Cleanup(closes)
					refuse <- &flow.Refusal{Reason: flow.EndDrain, Err: errors.New("the relay is closed")}
					s.expectOnePort(c)
				} else {
					s.path.cut(true)
					nettest.Eventually(t, patience, func() bool { return !s.session().Up }, s.dump)
					s.killFar()
					c := s.beginOnePort()
					nettest.Eventually(t, patience, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.flows) == 1 }, s.dump)
					s.path.cut(false)
					s.expectOnePort(c)
				}
				s.expectOffsets(0, 0)
			})
		}
	}
}

// TestNewerProcessFollows holds that a client that comes while an older far process is away is served by a
// newer one in its place.
func TestNewerProcessFollows(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(s *stand, o *pair.Options, _ *pair.LinkOptions) {
		s.acceptor, s.without = newUpgradable(s), wire.FeatureOffset
	})
	s.serve(echo)
	s.killFar() // by an older one
	s.without = 0
	nettest.Eventually(t, patience, func() bool { st := s.session(); return st.Up && st.Instance == pair.NumberText(s.farNode().Instance()) }, s.dump)
	s.path.refuse(preface.Control, true)
	nettest.Eventually(t, patience, func() bool { return !s.session().Up }, s.dump)
	s.killFar()
	s.setOffset(7)
	c := s.dial()
	defer c.Close()
	nettest.Eventually(t, patience, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.flows) == 1 }, s.dump)
	s.path.refuse(preface.Control, false)
	s.roundTrip(c, "hello")
	s.expectOffsets(1, 7)
}

// TestOnePortIsNoted holds that the session of a near tunnel with a range says so of an older far relay.
func TestOnePortIsNoted(t *testing.T) {
	t.Parallel()
	for ports, want := range map[int]bool{1: false, 2: true} {
		s := newStand(t, withoutOffset, func(_ *stand, _ *pair.Options, l *pair.LinkOptions) { l.Ports = ports })
		nettest.Eventually(t, patience, func() bool { return s.session().Up }, s.dump)
		st := s.session()
		if noted := strings.Contains(strings.Join(st.Notes(), "; "), flow.OnePortWarning); noted != want {
			t.Errorf("with %d ports: %v", ports, st.Notes())
		}
	}
}
