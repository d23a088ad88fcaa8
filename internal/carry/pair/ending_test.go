package pair

import (
	"cmp"
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
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
	"longhaul/test/nettest"
)

// upgradable is a far relay that processes follow each other in: a process that drains refuses each
// new flow, as the relay does, and the next one passes on what is meant for it while it lives.
type upgradable struct {
	*stand
	drained *atomic.Bool
	asked   *atomic.Int64         // since
	refuses *atomic.Pointer[Node] // only once that closes
}

func newUpgradable(s *stand) upgradable {
	return upgradable{s, new(atomic.Bool), new(atomic.Int64), new(atomic.Pointer[Node])}
}

func (u upgradable) Dial(ctx context.Context, o flow.Open) (flow.Target, error) {
	if u.drained.Load() {
		u.asked.Add(1)
		if n := u.refuses.Load(); n != nil {
			nettest.Eventually(u.t, time.Minute, n.closing.Load, u.dump)
		}
		return flow.Target{}, &flow.Refusal{Reason: flow.EndDrain, Err: errors.New("the relay is closed")}
	}
	return u.stand.Dial(ctx, o)
}

// upgrade has another process take the far relay's place, and returns the old one's end, which waits
// for its last flow and closes it.
func (s *stand) upgrade() (old *Node, end func()) {
	a := s.acceptor.(upgradable)
	old = s.farNode()
	before := old.options.Fate
	if before == nil {
		before = func(uint64, NearSession) (Fate, []byte) { return FateUnknown, nil }
	}
	var gone, told atomic.Bool
	next := s.node(Options{Elsewhere: func(instance uint64, fd int, first []byte) bool {
		if gone.Load() || instance != old.Instance() {
			return false
		}
		old.Serve(fd, first, a)
		return true
	}, Fate: func(instance uint64, near NearSession) (Fate, []byte) {
		switch {
		case instance != old.Instance():
			return before(instance, near)
		case !told.Load():
			return FateOpen, nil
		}
		return FateOf(old.Owed(), near)
	}}, s.farKeys)
	s.mu.Lock()
	s.far, s.acceptor = next, newUpgradable(s)
	s.mu.Unlock()
	a.drained.Store(true)
	old.Drain()
	return old, func() {
		nettest.Eventually(s.t, time.Minute, func() bool { return old.Flows() == 0 }, s.dump)
		gone.Store(true)
		old.Close()
		told.Store(true)
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
	{"no warm lane", func(_ *stand, _ *Options, o *LinkOptions) { o.Warm = 0 }},
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
				s := newStand(t, e.in, func(s *stand, _ *Options, _ *LinkOptions) {
					s.path.setDelay(rtt / 2)
					s.deadline = time.Minute // beside any load
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
	eachEnding(t, allDelays, func(t *testing.T, s *stand) {
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
		s.sentOpen()
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
		nettest.Eventually(t, time.Minute, func() bool { return u.asked.Load() > 0 }, s.dump)
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
			old := s.farNode()
			next := s.node(Options{}, s.farKeys)
			s.mu.Lock()
			s.far = next
			s.mu.Unlock()
			die(old)
			old.Close()
		}, true},
		{"a kill after an upgrade", func(_ *testing.T, s *stand) {
			_, end := s.upgrade()
			end()
			next := s.node(Options{}, s.farKeys)
			s.mu.Lock()
			old := s.far
			s.far = next
			s.mu.Unlock()
			die(old)
			old.Close()
		}, true},
		{"an upgrade of a process that has dropped an outcome", func(_ *testing.T, s *stand) {
			for _, x := range s.farNode().sessions() {
				x.owe(1<<40, stream.Cause{})
				x.outcomes.mu.Lock()
				x.outcomes.dropped = stampNow()
				x.outcomes.mu.Unlock()
			}
			_, end := s.upgrade()
			end()
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
				s.sentOpen()
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
// ended process owed, whatever that knew last of it, and that the others begin again.
func TestOwedFlow(t *testing.T) {
	for _, c := range []struct {
		name     string
		outcome  stream.Cause // of the owed one
		upgrades int
	}{
		{"given up", stream.Cause{}, 1},
		{"given up, and three upgrades", stream.Cause{}, 3},
		{"refused by its target", cause(flow.EndTargetRefused, nil), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachEnding(t, allDelays[1:2], func(t *testing.T, s *stand) {
				const flows = 3
				o := s.link.options()
				o.Warm = flows
				s.link.Update(o)
				s.awaitWarm(flows) // a lane that is dialed later is not held
				release := s.path.hold()
				var clients []net.Conn
				for range flows {
					client := s.dial()
					defer client.Close()
					_, err := io.WriteString(client, "early ")
					nettest.Must(t, err)
					clients = append(clients, client)
				}
				var ids []uint64
				nettest.Eventually(t, time.Minute, func() bool {
					ids = nil
					for _, f := range s.link.current().allFlows() {
						f.mu.Lock()
						if f.sent {
							ids = append(ids, f.id)
						}
						f.mu.Unlock()
					}
					return len(ids) == flows
				}, s.dump)
				slices.Sort(ids)
				s.path.cut(true)
				for _, x := range s.farNode().sessions() {
					x.owe(ids[1], c.outcome)
					x.owe(ids[2], cause(flow.EndDrain, nil)) // nothing was dialed
				}
				for range c.upgrades {
					_, end := s.upgrade()
					end()
				}
				release()
				s.path.cut(false)
				for i, client := range clients {
					got := make([]byte, len("early "))
					_, err := io.ReadFull(client, got)
					if cut := err != nil; cut != (i == 1) {
						t.Errorf("flow %d got %q, %v: %s", i, got, err, s.dump())
					}
				}
				s.dialed(flows)
			}, "no warm lane", "no resume")
		})
	}
}

// TestOutcomes holds what counts as owed, and for how long.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	refused, drained := cause(flow.EndTargetRefused, nil), cause(flow.EndDrain, nil)
	for name, c := range map[string]struct {
		add  func(*outcomes)
		keep time.Duration
		want []uint64 // none: of all flows
		none bool
	}{
		"nothing":        {add: func(*outcomes) {}, none: true},
		"nothing dialed": {add: func(o *outcomes) { o.add(1, drained, time.Hour) }, none: true},
		"three of them": {add: func(o *outcomes) {
			o.add(9, refused, time.Hour)
			o.add(2, stream.Cause{}, time.Hour)
			o.add(5, refused, time.Hour)
		}, want: []uint64{2, 5, 9}},
		"answered":          {add: func(o *outcomes) { o.add(1, refused, time.Hour); o.answered(1) }, none: true},
		"the first counts":  {add: func(o *outcomes) { o.add(1, drained, time.Hour); o.add(1, stream.Cause{}, time.Hour) }, none: true},
		"given up long ago": {add: func(o *outcomes) { o.add(1, stream.Cause{}, time.Hour) }, keep: time.Nanosecond, none: true},
		"refused long ago":  {add: func(o *outcomes) { o.add(1, refused, time.Hour) }, keep: time.Nanosecond, want: []uint64{1}},
		"too many for HELLO": {add: func(o *outcomes) {
			for id := range uint64(1000) {
				o.add(1+id, refused, time.Hour)
			}
		}},
		"too many": {add: func(o *outcomes) {
			for id := range uint64(maxBuried + 1) {
				o.add(1+id, refused, time.Hour)
			}
		}},
		"too many of which nothing was dialed": {add: func(o *outcomes) {
			o.add(1, refused, time.Hour)
			for id := range uint64(maxBuried) {
				o.add(2+id, drained, time.Hour)
			}
		}, want: []uint64{1}},
	} {
		o := &outcomes{}
		c.add(o)
		flows, some := o.owed(time.Now(), cmp.Or(c.keep, time.Hour))
		if got := flows.Numbers(); some == c.none || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v are owed, %v", name, got, some)
		}
	}
}

// TestLeftOutcomes holds that a session that begins again has what it had left, and that what does not fit
// has any flow of the peer count as owed.
func TestLeftOutcomes(t *testing.T) {
	t.Parallel()
	n := &Node{uses: map[string]*peerUse{"near": {}}}
	use := n.uses["near"]
	one := func(session uint64) left {
		o := &outcomes{}
		o.add(session, stream.Cause{}, time.Hour)
		return left{near: NearSession{"near", 1, session}, outcomes: o, owesFor: time.Hour}
	}
	check := func(session uint64, want Fate, flows ...uint64) {
		t.Helper()
		fate, got := FateOf(n.Owed(), NearSession{"near", 1, session})
		if fate != want || !slices.Equal(wire.Flows(got).Numbers(), flows) {
			t.Errorf("session %d: %v, and flows %v are owed", session, fate, wire.Flows(got).Numbers())
		}
	}
	for session := range uint64(maxLeft) {
		use.leave(one(1 + session))
	}
	check(1, FateInOrder, 1)
	check(maxLeft+1, FateInOrder)
	if o := use.takeLeft(NearSession{"near", 1, 1}); o == nil || len(o.codes()) != 1 {
		t.Errorf("the session has left %v", o)
	}
	check(1, FateInOrder)
	use.leave(one(1))
	use.leave(one(maxLeft + 1))
	check(1, FateUnknown)
	if fate, _ := FateOf(n.Owed(), NearSession{"other", 1, 1}); fate != FateInOrder {
		t.Errorf("the fate for another peer is %v", fate)
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
			s := newStand(t, func(s *stand, _ *Options, _ *LinkOptions) { s.deadline = time.Second })
			s.serve(echo)
			s.awaitWarm(1)
			s.path.cut(true)
			nettest.Eventually(t, time.Minute, func() bool { return !s.near.State().Sessions[0].Up }, s.dump)
			o := s.link.options()
			if o.Away, o.Stood = s.link.Stood(); !o.Stood {
				t.Error("the pair has not stood")
			}
			o.Stood = c.told
			next := s.node(Options{}, s.nearKeys)
			defer next.Close()
			s.mu.Lock()
			s.link = next.Link(o)
			s.mu.Unlock()
			client := s.dial()
			defer client.Close()
			_, err := io.WriteString(client, "hello")
			nettest.Must(t, err)
			nettest.Must(t, client.CloseWrite())
			if c.told {
				waits := func() bool { // for longer than without an outage
					fs := next.sessions()[0].allFlows()
					return len(fs) == 1 && fs[0].start.since() > 2*s.deadline
				}
				nettest.Eventually(t, time.Minute, waits, s.dump)
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
		nettest.Eventually(t, time.Minute, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.opens) == 2
		}, s.dump)
		s.path.cut(true)
		old, end := s.upgrade()
		nettest.Eventually(t, time.Minute, func() bool { return old.State().Sessions[0].Problem == flow.PairPathDown }, s.dump)
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
