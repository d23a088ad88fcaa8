package pair_test

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/pair/preface"
	"longhaul/test/nettest"
)

func withOrigin(_ *stand, o *pair.Options, lo *pair.LinkOptions) {
	o.ReplacedAfter, lo.Origin = 100*time.Millisecond, "near host"
}

// TestNearRestarts holds that the flows of a near process that died are reset at the far
// relay once the next one is there, long before resume.
func TestNearRestarts(t *testing.T) {
	t.Parallel()
	s := newStand(t, withOrigin)
	s.begin("hello")
	s.path.cut(true) // what its death looks like
	next := s.node(pair.Options{}, s.nearKeys)
	defer next.Close()
	o := s.way
	direct(s, nil, &o)
	next.Link(o)
	if e := <-s.farEnds; e.Reason != flow.EndPeerRestarted {
		t.Errorf("the far relay's flow ended by %q (%v)", e.Reason, e.Err)
	}
}

// TestTwins holds that an outage of one of two near relays with the same key and origin, as clones of
// a host have them, resets none of its flows, also if the other one begins anew meanwhile; and that
// the far relay names both. A process that drains is no twin of its successor.
func TestTwins(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		boot, other uint64
		drains      bool // the first one, before the outage
		twins, ends bool
	}{
		"two hosts":                    {boot: 1, other: 2, twins: true},
		"two containers of a host":     {boot: 1, other: 1, twins: true},
		"an older release":             {twins: true},
		"an upgrade, then kill":        {boot: 1, other: 1, drains: true, ends: true},
		"an upgrade to a newer one":    {other: 1, drains: true},
		"a host drains, another is up": {boot: 1, other: 2, drains: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t, withOrigin, func(_ *stand, o *pair.Options, _ *pair.LinkOptions) { o.Boot = c.boot })
			client := s.begin("hello")
			first := s.far.State().Sessions[0].Session
			twin := s.node(pair.Options{Boot: c.other}, s.nearKeys)
			defer twin.Close()
			options := s.way
			direct(s, nil, &options)
			twin.Link(options)
			if c.drains {
				s.near.Drain()
			}
			nettest.Eventually(t, patience, func() bool { return len(s.far.State().Sessions) == 2 }, s.dump)
			nettest.Eventually(t, patience, func() bool {
				all := s.far.State().Sessions
				long := func(s flow.Session) bool { return s.Up && time.Since(s.Since) > 5*time.Second }
				return all[0].Twin && all[1].Twin || c.drains && long(all[0]) && long(all[1])
			}, s.dump)
			for _, one := range s.far.State().Sessions {
				if one.Twin != c.twins {
					t.Errorf("%+v, want twin %v", one, c.twins)
				}
			}
			s.path.cut(true)
			nettest.Eventually(t, patience, func() bool {
				return !slices.ContainsFunc(s.far.State().Sessions, func(one flow.Session) bool { return one.Session == first && one.Up })
			}, s.dump)
			if c.ends {
				if e := <-s.farEnds; e.Reason != flow.EndPeerRestarted {
					t.Errorf("the far relay's flow ended by %q (%v)", e.Reason, e.Err)
				}
				return
			}
			third := s.node(pair.Options{Boot: c.other}, s.nearKeys)
			defer third.Close()
			third.Link(options)
			nettest.Eventually(t, patience, func() bool { // the far relay has looked several times
				all := s.far.State().Sessions
				return len(all) == 3 && !slices.ContainsFunc(all, func(one flow.Session) bool {
					return one.Session != first && !(one.Up && time.Since(one.Since) > time.Second)
				})
			}, s.dump)
			s.path.cut(false)
			s.roundTrip(client, "still here")
		})
	}
}

// TestLaneForAnotherProcess holds that a lane whose preface names another process than
// this one is closed before anything of it is read: an OPEN may have been carried out.
func TestLaneForAnotherProcess(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	c, err := net.Dial("tcp", s.lanes.Addr().String())
	nettest.Must(t, err)
	defer c.Close()
	p := preface.Preface{Kind: preface.Lane, Instance: s.farNode().Instance() + 1}
	_, err = c.Write(p.Append(nil, s.farKeys.public()))
	nettest.Must(t, err)
	nettest.Must(t, c.SetReadDeadline(time.Now().Add(patience)))
	if b, err := io.ReadAll(c); len(b) > 0 || netTimeout(err) {
		t.Errorf("the far relay answers %q, %v", b, err)
	}
}

func netTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// TestFullPool holds that a lane that has carried a flow takes an unused one's place, and carries the next.
func TestFullPool(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.serve(echo)
	s.awaitWarm(2)
	c := s.dial()
	s.roundTrip(c, string(pattern(1<<20, 1)))
	used := s.path.busiest()
	s.awaitWarm(2) // another in the place of the one that is busy
	nettest.Must(t, c.CloseWrite())
	s.ends(flow.EndClean)
	nettest.Eventually(t, patience, func() bool {
		lanes := s.path.of(preface.Lane)
		return len(lanes) == 2 && slices.Contains(lanes, used)
	}, s.dump)
	before := used.carried.Load()
	next := s.dial()
	defer next.Close()
	s.roundTrip(next, "hello")
	if used.carried.Load() == before {
		t.Error("the next flow is on another lane")
	}
}

// drainedAcceptor refuses the first flow, as a process that an upgrade has replaced.
type drainedAcceptor struct {
	*stand
	refused atomic.Bool
}

func (a *drainedAcceptor) Dial(ctx context.Context, o flow.Open) (flow.Target, error) {
	if a.refused.CompareAndSwap(false, true) {
		return flow.Target{}, a.stand.refuse(flow.EndDrain, errors.New("the relay is closed"))
	}
	return a.stand.Dial(ctx, o)
}

// TestUpgradeOvertakesOpen holds that a flow goes on to the next session if its OPEN came
// to a far process that takes no new flows any more.
func TestUpgradeOvertakesOpen(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(s *stand, _ *pair.Options, _ *pair.LinkOptions) { s.acceptor = &drainedAcceptor{stand: s} })
	s.serve(echo)
	s.awaitWarm(1)
	before := s.near.State().Sessions[0].Session
	c := s.dial()
	defer c.Close()
	s.roundTrip(c, "hello")
	if e := <-s.farEnds; e.Reason != flow.EndDrain {
		t.Errorf("the first attempt ended by %q", e.Reason)
	}
	nettest.Must(t, c.CloseWrite())
	s.ends(flow.EndClean)
	nettest.Eventually(t, patience, func() bool {
		all := s.near.State().Sessions
		return len(all) == 1 && all[0].Session != before && all[0].Flows == 0
	}, s.dump)
}

// TestNewFlowInAnOutage holds that a client that comes in an outage is served after it,
// however short its deadline: the flows that stand wait as well.
func TestNewFlowInAnOutage(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(s *stand, _ *pair.Options, _ *pair.LinkOptions) { s.deadline = 2 * time.Second })
	s.serve(echo)
	s.awaitWarm(2)
	s.path.cut(true)
	down := func() bool { return !s.near.State().Sessions[0].Up }
	nettest.Eventually(t, patience, down, s.dump)
	c := s.dial()
	defer c.Close()
	if b, err := readFor(c, 3*time.Second); err == nil || !netTimeout(err) { // longer than the deadline
		t.Fatalf("the client sees %q, %v in the outage", b, err)
	}
	s.path.cut(false)
	s.roundTrip(c, "hello")
}

func readFor(c net.Conn, d time.Duration) ([]byte, error) {
	defer func() { _ = c.SetReadDeadline(time.Time{}) }()
	if err := c.SetReadDeadline(time.Now().Add(d)); err != nil {
		return nil, err
	}
	b := make([]byte, 1)
	n, err := c.Read(b)
	return b[:n], err
}

// TestStaleAttempt holds that the answer to an attempt that asked for another far process than the session
// has come to know meanwhile is no news of that: its flows go on there.
func TestStaleAttempt(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(s *stand, _ *pair.Options, _ *pair.LinkOptions) { s.acceptor = newUpgradable(s) })
	s.serve(echo)
	s.awaitWarm(1)
	first := s.farNode().Instance()
	release := s.path.keep(preface.Control)
	s.path.refuse(preface.Control, false)
	nettest.Eventually(t, patience, func() bool { return len(s.path.kept(preface.Control)) > 0 }, s.dump) // asks for the first
	s.path.keepNoMore(preface.Control)
	s.killFar()
	nettest.Eventually(t, patience, func() bool { st := s.session(); return st.Up && st.Instance != pair.NumberText(first) }, s.dump)
	c := s.dial()
	defer c.Close()
	s.roundTrip(c, "hello")
	s.path.refuse(preface.Control, true)
	nettest.Eventually(t, patience, func() bool { return !s.session().Up }, s.dump)
	_, closes := s.succeed()
	t.Cleanup(closes)
	release()
	nettest.Eventually(t, patience, func() bool { return len(s.path.of(preface.Control)) == 0 }, s.dump)
	s.path.refuse(preface.Control, false)
	s.roundTrip(c, "still here")
}

// TestEachSessionRedials holds that sessions of one tunnel, as several upgrades leave them, do
// not wait for each other's attempts to connect.
func TestEachSessionRedials(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(s *stand, _ *pair.Options, _ *pair.LinkOptions) { s.acceptor = newUpgradable(s) })
	s.serve(echo)
	const upgrades = 3
	var clients []*net.TCPConn
	for range upgrades {
		s.awaitWarm(1)
		c := s.dial()
		defer c.Close()
		s.roundTrip(c, "hello")
		clients = append(clients, c)
		before := s.session().Session
		old, _ := s.upgrade()
		t.Cleanup(old.Close)
		nettest.Eventually(t, patience, func() bool { st := s.session(); return st.Session != before && st.Up }, s.dump)
	}
	release := s.path.keep(preface.Control)
	s.path.cut(false)
	nettest.Eventually(t, patience, func() bool {
		asked := map[uint64]bool{} // of which far process
		for _, h := range s.path.kept(preface.Control) {
			asked[h.instance.Load()] = true
		}
		return len(asked) == upgrades+1
	}, s.dump)
	release()
	for _, c := range clients {
		s.roundTrip(c, "goes on")
	}
}
