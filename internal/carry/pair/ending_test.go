package pair_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/test/nettest"
)

// upgradable is a far relay that processes follow each other in: a process that drains refuses each
// new flow, as the relay does, and the next one passes on what is meant for it while it lives.
type upgradable struct {
	*stand
	drained *atomic.Bool
	asked   *atomic.Int64              // since
	refuses *atomic.Pointer[pair.Node] // only once that closes
	waits   chan chan error            // the next dials end by an element of these
}

func newUpgradable(s *stand) upgradable {
	return upgradable{s, new(atomic.Bool), new(atomic.Int64), new(atomic.Pointer[pair.Node]), make(chan chan error, 8)}
}

func (u upgradable) Dial(ctx context.Context, o flow.Open) (flow.Target, error) {
	if u.drained.Load() {
		u.asked.Add(1)
		if n := u.refuses.Load(); n != nil {
			nettest.Eventually(u.t, patience, n.Closing, u.dump)
		}
		return flow.Target{}, &flow.Refusal{Reason: flow.EndDrain, Err: errors.New("the relay is closed")}
	}
	select {
	case refusal := <-u.waits:
		o.Admitted(nil)
		u.asked.Add(1)
		select {
		case err := <-refusal:
			return flow.Target{}, err
		case <-ctx.Done(): // as the relay does
			return flow.Target{}, &flow.Refusal{Reason: flow.EndDrain, Err: flow.ErrDialCut}
		}
	default:
		return u.stand.Dial(ctx, o)
	}
}

// upgrade has another process take the far relay's place, and returns the old one's end, which waits
// for its last flow and closes it.
func (s *stand) upgrade() (old *pair.Node, end func()) {
	old, closes := s.succeed()
	return old, func() {
		nettest.Eventually(s.t, patience, func() bool { return old.Flows() == 0 }, s.dump)
		closes()
	}
}

var endings = []struct {
	name string
	in   standOption
}{
	{"tls", modes[0].in()},
	{"sealed", modes[1].in()},
	{"no resume", modes[2].in()},
	{"four lanes", mode{lanes: 4}.in()},
	{"no warm lane", func(_ *stand, _ *pair.Options, o *pair.LinkOptions) { o.Warm = 0 }},
	{"older", modes[7].in()},
}

// allDelays are round trips of paths.
var allDelays = []time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond}

// eachEnding runs a test in modes and with several delays of the path.
func eachEnding(t *testing.T, delays []time.Duration, test func(*testing.T, *stand), without ...string) {
	t.Parallel()
	for _, e := range endings {
		if slices.Contains(without, e.name) {
			continue
		}
		for _, rtt := range delays {
			t.Run(fmt.Sprint(e.name, ", ", rtt), func(t *testing.T) {
				t.Parallel()
				s := newStand(t, e.in, func(s *stand, _ *pair.Options, _ *pair.LinkOptions) {
					s.path.setDelay(rtt / 2)
					s.acceptor = newUpgradable(s)
				})
				s.serve(echo)
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

// sentOpen waits until the near relay has sent the OPEN of a flow on a lane.
func (s *stand) sentOpen(f *pair.Flow) {
	s.t.Helper()
	nettest.Eventually(s.t, patience, func() bool { return f.Figures().Lanes > 0 }, s.dump)
}

// TestOpenMeetsTheEnd holds that a flow goes on at the next process if its OPEN comes to the old one
// between its last flow and its exit.
func TestOpenMeetsTheEnd(t *testing.T) {
	eachEnding(t, allDelays, func(t *testing.T, s *stand) {
		s.awaitWarm(1) // a lane that is dialed later is not held
		release := s.path.hold()
		c := s.dial()
		defer c.Close()
		s.sentOpen(s.flow(1))
		old, end := s.upgrade()
		var ends sync.WaitGroup
		ends.Go(end)
		nettest.Eventually(t, patience, old.Closing, s.dump)
		release()
		s.roundTrip(c, "hello")
		ends.Wait()
		s.dialed(2)
	}, "no warm lane")
}

// TestOpenMissesTheEnd holds that a flow goes on at the next process if its OPEN is under way until
// the old one has ended, which said so.
func TestOpenMissesTheEnd(t *testing.T) {
	eachEnding(t, allDelays, func(t *testing.T, s *stand) {
		s.awaitWarm(1) // a lane that is dialed later is not held
		release := s.path.hold()
		c := s.dial()
		defer c.Close()
		s.sentOpen(s.flow(1))
		_, end := s.upgrade()
		end()
		release()
		s.roundTrip(c, "hello")
		s.dialed(2)
	}, "no warm lane")
}

// TestOpenIsAskedAtTheEnd holds that a flow goes on at the next process if the old one is still asking
// its relay, which refuses, when it closes.
func TestOpenIsAskedAtTheEnd(t *testing.T) {
	eachEnding(t, allDelays[:1], func(t *testing.T, s *stand) {
		u := s.acceptor.(upgradable)
		u.refuses.Store(s.farNode())
		u.drained.Store(true)
		c := s.dial()
		defer c.Close()
		nettest.Eventually(t, patience, func() bool { return u.asked.Load() > 0 }, s.dump)
		old, _ := s.upgrade() // it has a flow, and ends nevertheless
		old.Close()
		s.roundTrip(c, "hello")
		s.dialed(2)
	})
}

// TestOpenSpansTheOutage holds what becomes of a flow whose OPEN was under way when the path failed, once
// the path is back and the far process is another one: only if no process before can have dialed for
// it, it goes on.
func TestOpenSpansTheOutage(t *testing.T) {
	for _, c := range []struct {
		name    string
		happens func(*testing.T, *stand)
		cut     bool // the flow
	}{
		{"an upgrade", func(_ *testing.T, s *stand) {
			_, end := s.upgrade()
			end()
		}, false},
		{"three upgrades", func(_ *testing.T, s *stand) {
			for range 3 {
				_, end := s.upgrade()
				end()
			}
		}, false},
		{"a kill", func(_ *testing.T, s *stand) {
			s.killFar()
		}, true},
		{"a kill after an upgrade", func(_ *testing.T, s *stand) {
			_, end := s.upgrade()
			end()
			s.killFar()
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachEnding(t, allDelays[1:2], func(t *testing.T, s *stand) {
				s.awaitWarm(1) // a lane that is dialed later is not held
				release := s.path.hold()
				client := s.dial()
				defer client.Close()
				_, err := io.WriteString(client, "early ")
				nettest.Must(t, err)
				s.sentOpen(s.flow(1))
				s.path.cut(true)
				c.happens(t, s)
				release()
				s.path.cut(false)
				got := make([]byte, len("early "))
				_, err = io.ReadFull(client, got)
				if cut := err != nil; cut != c.cut {
					t.Fatalf("got %q, %v: %s", got, err, s.dump())
				}
				if c.cut {
					s.dialed(1)
					return
				}
				s.roundTrip(client, "late")
				s.dialed(2)
			}, "no warm lane", "no resume")
		})
	}
}

// TestOwedFlow holds that of flows whose OPEN has no answer the near relay resets exactly the one that the
// ended process owed, whatever that knew last of it, and that the others begin again: one of which the
// process never heard, and one that it has refused because it ended.
func TestOwedFlow(t *testing.T) {
	refused := &flow.Refusal{Reason: flow.EndTargetRefused, Err: errors.New("connection refused")}
	drained := &flow.Refusal{Reason: flow.EndDrain, Err: errors.New("the relay is closed")}
	for _, c := range []struct {
		name     string
		outcome  error // of the owed one; nil: the process closes before there is any
		upgrades int
	}{
		{"given up, and three upgrades", nil, 3},
		{"refused by its target", refused, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachEnding(t, allDelays[1:2], func(t *testing.T, s *stand) {
				const unheard, owed, again, flows = 0, 1, 2, 3
				s.change(func(o *pair.LinkOptions) { o.Warm = flows })
				s.awaitWarm(flows) // a lane that is dialed later is not held
				u := s.acceptor.(upgradable)
				var clients [flows]net.Conn
				var outcomes [flows]chan error
				begun := 0
				begin := func(i int) {
					client := s.dial()
					t.Cleanup(func() { client.Close() })
					_, err := io.WriteString(client, "early ")
					nettest.Must(t, err)
					clients[i], begun = client, begun+1
					s.sentOpen(s.flow(begun)) // behind the first one of the test
				}
				for _, i := range []int{owed, again} {
					asked := u.asked.Load()
					outcomes[i] = make(chan error, 1)
					u.waits <- outcomes[i]
					begin(i)
					nettest.Eventually(t, patience, func() bool { return u.asked.Load() > asked }, s.dump)
				}
				s.awaitWarm(1)
				release := s.path.hold()
				begin(unheard)
				s.path.cut(true)
				down := func() bool { return !s.farNode().State().Sessions[0].Up } // no answer arrives
				nettest.Eventually(t, patience, down, s.dump)
				outcomes[again] <- drained
				left := 1
				if c.outcome != nil {
					outcomes[owed] <- c.outcome
					left = 0
				}
				nettest.Eventually(t, patience, func() bool { return s.farNode().Flows() == left }, s.dump)
				_, closes := s.succeed()
				closes()
				for range c.upgrades - 1 {
					_, end := s.upgrade()
					end()
				}
				release()
				s.path.cut(false)
				for i, client := range clients {
					got := make([]byte, len("early "))
					_, err := io.ReadFull(client, got)
					if cut := err != nil; cut != (i == owed) {
						t.Errorf("flow %d got %q, %v: %s", i, got, err, s.dump())
					}
				}
				s.dialed(flows)
			}, "no warm lane", "no resume")
		})
	}
}

// TestClientsOfTheNextNearProcess holds that clients which begin in an outage wait for its end, also if
// the near process has taken over in it, which it knows from the process before.
func TestClientsOfTheNextNearProcess(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		told bool
		want flow.EndReason
	}{{"told", true, flow.EndClean}, {"not told", false, flow.EndPairDown}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t, func(s *stand, _ *pair.Options, _ *pair.LinkOptions) { s.deadline = time.Second })
			s.serve(echo)
			s.awaitWarm(1)
			s.path.cut(true)
			nettest.Eventually(t, patience, func() bool { return !s.near.State().Sessions[0].Up }, s.dump)
			o := s.way
			if o.Away, o.Stood = s.link.Stood(); !o.Stood {
				t.Error("the pair has not stood")
			}
			o.Stood = c.told
			next := s.node(pair.Options{}, s.nearKeys)
			defer next.Close()
			s.mu.Lock()
			s.link = next.Link(o)
			s.mu.Unlock()
			began := time.Now()
			client := s.dial()
			defer client.Close()
			_, err := io.WriteString(client, "hello")
			nettest.Must(t, err)
			nettest.Must(t, client.CloseWrite())
			if c.told {
				waits := func() bool { // for longer than without an outage
					return next.Flows() == 1 && time.Since(began) > 3*s.deadline
				}
				nettest.Eventually(t, patience, waits, s.dump)
				s.path.cut(false)
			}
			if e := <-s.nearEnds; e.Reason != c.want {
				t.Errorf("the flow ended by %q (%v)", e.Reason, e.Err)
			}
		})
	}
}

// TestDialedFlowKeepsItsProcess holds that a process whose flow the near relay has not heard of lives
// on with it.
func TestDialedFlowKeepsItsProcess(t *testing.T) {
	eachEnding(t, allDelays[2:], func(t *testing.T, s *stand) {
		client := s.dial()
		defer client.Close()
		nettest.Eventually(t, patience, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.opens) == 2
		}, s.dump)
		s.path.cut(true)
		old, end := s.upgrade()
		nettest.Eventually(t, patience, func() bool { return old.State().Sessions[0].Problem == flow.PairPathDown }, s.dump)
		if old.Flows() != 1 {
			t.Fatal("the old process has no flow, and would end")
		}
		s.path.cut(false)
		s.roundTrip(client, "hello")
		s.dialed(2)
		client.Close()
		end()
	}, "no resume")
}

// TestUpgradesUnderShortFlows holds that upgrades of the far relay reset none of many short flows, at
// whatever moment they begin, and that each target is dialed once.
func TestUpgradesUnderShortFlows(t *testing.T) {
	eachEnding(t, allDelays, func(t *testing.T, s *stand) {
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
			nettest.Eventually(t, patience, func() bool { return flows.Load() > from+8 }, s.dump)
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
	_ = c.SetDeadline(time.Now().Add(patience))
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

// succeed is upgrade with an end that waits for no flow.
func (s *stand) succeed() (old *pair.Node, closes func()) {
	a := s.acceptor.(upgradable)
	old = s.farNode()
	before := s.fate
	if before == nil {
		before = func(uint64, pair.NearSession) (pair.Fate, []byte) { return pair.FateUnknown, nil }
	}
	var gone, told atomic.Bool
	fate := func(instance uint64, near pair.NearSession) (pair.Fate, []byte) {
		switch {
		case instance != old.Instance():
			return before(instance, near)
		case !told.Load():
			return pair.FateOpen, nil
		}
		return pair.FateOf(old.Owed(), near)
	}
	further := s.elsewhere
	elsewhere := func(instance uint64, fd int, first []byte) bool {
		if gone.Load() || instance != old.Instance() {
			return further != nil && further(instance, fd, first)
		}
		old.Serve(fd, first, a)
		return true
	}
	next := s.node(pair.Options{Fate: fate, Elsewhere: elsewhere, Without: s.without}, s.farKeys)
	s.fate, s.elsewhere = fate, elsewhere
	s.mu.Lock()
	s.far, s.acceptor = next, newUpgradable(s)
	s.mu.Unlock()
	a.drained.Store(true)
	old.Drain()
	return old, func() {
		gone.Store(true)
		old.Close()
		told.Store(true)
	}
}

// killFar has the far process die in an outage, and another one in its place.
func (s *stand) killFar() {
	old, next := s.farNode(), s.node(pair.Options{Without: s.without}, s.farKeys)
	s.mu.Lock()
	s.far = next
	s.mu.Unlock()
	old.Close()
}
