package pair

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/flow"
	"longhaul/internal/nettest"
)

// upgradable is a far relay that processes follow each other in: a process that drains refuses each
// new flow, as the relay does, and the next one passes on what is meant for it while it lives.
type upgradable struct {
	*stand
	drained *atomic.Bool
}

func (u upgradable) Dial(ctx context.Context, o Open) (Target, error) {
	if u.drained.Load() {
		return Target{}, &Refusal{flow.EndDrain, errors.New("the relay is closed")}
	}
	return u.stand.Dial(ctx, o)
}

// upgrade has another process take the far relay's place, and returns the old one's end, which waits
// for its last flow and closes it.
func (s *stand) upgrade() (old *Node, end func()) {
	a := s.acceptor.(upgradable)
	old = s.farNode()
	var gone atomic.Bool
	next := s.node(Options{Elsewhere: func(instance uint64, fd int, first []byte) bool {
		if gone.Load() || instance != old.Instance() {
			return false
		}
		old.Serve(fd, first, a)
		return true
	}}, s.farKeys)
	s.mu.Lock()
	s.far, s.acceptor = next, upgradable{s, new(atomic.Bool)}
	s.mu.Unlock()
	a.drained.Store(true)
	old.Drain()
	return old, func() {
		nettest.Eventually(s.t, time.Minute, func() bool { return old.Flows() == 0 }, s.dump)
		gone.Store(true)
		old.Close()
	}
}

var endings = []struct {
	name string
	in   standOption
}{
	{"tls", modes[0].in()},
	{"sealed", modes[1].in()},
	{"no resume", modes[2].in()},
	{"four lanes", namedMode{lanes: 4}.in()},
	{"no warm lane", func(*stand, *Options, *LinkOptions) {}},
	{"older", modes[7].in()},
}

// eachEnding runs a test in modes and with several delays of the path.
func eachEnding(t *testing.T, warm bool, test func(*testing.T, *stand)) {
	t.Parallel()
	for _, e := range endings {
		if warm && e.name == "no warm lane" {
			continue
		}
		for _, rtt := range []time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond} {
			t.Run(fmt.Sprint(e.name, ", ", rtt), func(t *testing.T) {
				t.Parallel()
				s := newStand(t, e.in, func(s *stand, _ *Options, _ *LinkOptions) {
					s.path.delay = rtt / 2
					s.acceptor = upgradable{s, new(atomic.Bool)}
				})
				s.serve(echo)
				if e.name == "no warm lane" {
					s.link.mu.Lock()
					s.link.o.Warm = 0
					s.link.mu.Unlock()
				}
				c := s.dial()
				s.roundTrip(c, "before")
				nettest.Must(t, c.CloseWrite())
				s.ends(flow.EndClean)
				c.Close()
				test(t, s)
			})
		}
	}
}

// dialed checks that a target was dialed once for each flow.
func (s *stand) dialed(flows int) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.opens) != flows {
		s.t.Errorf("%d dials for %d flows", len(s.opens), flows)
	}
}

// sentOpen waits until the near relay has sent an OPEN that has no answer, or has it wait for a lane.
func (s *stand) sentOpen() {
	s.t.Helper()
	nettest.Eventually(s.t, time.Minute, func() bool {
		for _, x := range s.near.sessions() {
			for _, f := range x.allFlows() {
				f.mu.Lock()
				yes := f.sent || f.queued
				f.mu.Unlock()
				if yes {
					return true
				}
			}
		}
		return false
	}, s.dump)
}

// TestOpenMeetsTheEnd holds that a flow goes on at the next process if its OPEN comes to the old one
// between its last flow and its exit.
func TestOpenMeetsTheEnd(t *testing.T) {
	eachEnding(t, true, func(t *testing.T, s *stand) {
		s.awaitWarm(1) // a lane that is dialed later is not held
		release := s.path.hold()
		c := s.dial()
		defer c.Close()
		s.sentOpen()
		old, end := s.upgrade()
		var ends sync.WaitGroup
		ends.Go(end)
		nettest.Eventually(t, time.Minute, old.closing.Load, s.dump)
		release()
		s.roundTrip(c, "hello")
		ends.Wait()
		s.dialed(2)
	})
}

// TestOpenMissesTheEnd holds that a flow goes on at the next process if its OPEN is under way until
// the old one has ended, which said so.
func TestOpenMissesTheEnd(t *testing.T) {
	eachEnding(t, true, func(t *testing.T, s *stand) {
		s.awaitWarm(1) // a lane that is dialed later is not held
		release := s.path.hold()
		c := s.dial()
		defer c.Close()
		s.sentOpen()
		_, end := s.upgrade()
		end()
		release()
		s.roundTrip(c, "hello")
		s.dialed(2)
	})
}

// TestUpgradesUnderShortFlows holds that upgrades of the far relay reset none of many short flows, at
// whatever moment they begin, and that each target is dialed once.
func TestUpgradesUnderShortFlows(t *testing.T) {
	eachEnding(t, false, func(t *testing.T, s *stand) {
		var clients sync.WaitGroup
		var flows atomic.Int64
		stop := make(chan struct{})
		for range 8 {
			clients.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if err := s.exchange(); err != nil {
						t.Errorf("flow %d: %v", flows.Load(), err)
					}
					flows.Add(1)
				}
			})
		}
		for range 3 {
			from := flows.Load()
			nettest.Eventually(t, time.Minute, func() bool { return flows.Load() > from+8 }, s.dump)
			_, end := s.upgrade()
			end()
		}
		close(stop)
		clients.Wait()
		s.dialed(int(flows.Load()) + 1)
	})
}

// exchange is a short flow.
func (s *stand) exchange() error {
	c, err := net.Dial("tcp", s.clients.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	want := pattern(3000, 1)
	if _, err := c.Write(want); err != nil {
		return err
	}
	got := make([]byte, len(want))
	for n := 0; n < len(got); {
		m, err := c.Read(got[n:])
		if err != nil {
			return err
		}
		n += m
	}
	if !slices.Equal(got, want) {
		return errors.New("other bytes than were sent")
	}
	return nil
}
