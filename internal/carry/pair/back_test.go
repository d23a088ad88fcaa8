package pair_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/sys/socket"
	"longhaul/test/nettest"
)

// withOthers has clients have other hops. What was read of each is "early ".
func withOthers(s *stand, _ *pair.Options, _ *pair.LinkOptions) {
	s.others, s.early = true, func() []byte { return []byte("early ") }
}

// slowDialer has dials wait until they may go on, whatever becomes of their flows.
type slowDialer struct {
	*stand
	asked atomic.Int64
	goOn  chan error // why a dial fails; nil: it does not
	ended atomic.Int64
	given atomic.Int64 // dials that were given up
}

func newSlowDialer(s *stand) *slowDialer { return &slowDialer{stand: s, goOn: make(chan error)} }

func (d *slowDialer) Dial(ctx context.Context, o flow.Open) (flow.Target, error) {
	defer d.ended.Add(1)
	d.asked.Add(1)
	select {
	case err := <-d.goOn:
		if err != nil {
			return flow.Target{}, err
		}
	case <-ctx.Done():
		d.given.Add(1)
		if !errors.Is(context.Cause(ctx), context.Canceled) {
			return flow.Target{}, &flow.Refusal{Reason: flow.EndTargetUnreached, Err: ctx.Err()}
		}
	}
	return d.stand.Dial(context.WithoutCancel(ctx), o) // a connect that was complete already
}

// counted answers each connection of the target as echo does, and counts them and their bytes.
type counted struct{ connections, bytes atomic.Int64 }

func (n *counted) serve(s *stand) {
	s.serve(func(c *net.TCPConn) {
		n.connections.Add(1)
		var b [512]byte
		for {
			got, err := c.Read(b[:])
			n.bytes.Add(int64(got))
			if err != nil {
				_ = c.CloseWrite()
				return
			}
			_, _ = c.Write(b[:got])
		}
	})
}

// back takes the end of the only flow, with its client.
func (s *stand) back() flow.End {
	s.t.Helper()
	select {
	case e := <-s.nearEnds:
		if e.Back == nil {
			s.t.Fatalf("the flow ended by %q (%v)", e.Reason, e.Err)
		}
		return e
	case <-time.After(patience):
		s.t.Fatalf("the client is not given back: %s", s.dump())
	}
	panic("not reached")
}

// carryOn gives a client to the stand's link, which is its last hop.
func (s *stand) carryOn(c *flow.Client) {
	last := *c
	last.Others = false
	s.link.Carry(last, flow.OnEnd(func(e flow.End) { s.nearEnds <- e }))
}

// asked waits until the far relay has the OPEN of a held flow.
func (d *slowDialer) awaitAsked() {
	d.t.Helper()
	nettest.Eventually(d.t, patience, func() bool { return d.asked.Load() > 0 }, d.dump)
}

// TestBack holds that a client with other hops is given back as it came, in each case in which its flow
// cannot go on here before the far relay has a target, that the next hop has every byte of it, and that
// the target of the first one sees none.
func TestBack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		happens func(*stand, *slowDialer)
		reason  flow.EndReason
		byPeer  bool
	}{
		{"cut", func(s *stand, _ *slowDialer) { s.path.cut(true) }, flow.EndPairDown, false},
		{"frozen", func(s *stand, _ *slowDialer) { s.path.hold() }, flow.EndPairDown, false},
		{"ended", func(s *stand, _ *slowDialer) { s.tasks.Go(s.killFar) }, flow.EndDrain, true},
		{"refused", func(_ *stand, d *slowDialer) {
			d.goOn <- &flow.Refusal{Reason: flow.EndTargetRefused, Err: errors.New("connection refused")}
		}, flow.EndTargetRefused, true},
		{"asked for", func(s *stand, _ *slowDialer) { s.flow(0).GiveBack() }, flow.EndPairDown, false},
	} {
		for _, m := range modes {
			if m.lanes > 0 {
				continue
			}
			t.Run(c.name+"/"+m.name, func(t *testing.T) {
				t.Parallel()
				var d *slowDialer
				s := newStand(t, m.in(), withOthers, func(s *stand, _ *pair.Options, _ *pair.LinkOptions) {
					d = newSlowDialer(s)
					s.acceptor = d
				})
				next := newStand(t, m.in())
				var first, second counted
				first.serve(s)
				second.serve(next)
				next.awaitWarm(1)
				s.awaitWarm(1)
				client := s.dial()
				defer client.Close()
				_, err := io.WriteString(client, "late")
				nettest.Must(t, err)
				d.awaitAsked()
				c.happens(s, d)
				e := s.back()
				if e.Reason != c.reason || e.ByPeer != c.byPeer || e.Err == nil || e.BytesUp != 0 {
					t.Errorf("given back as %+v, want %q, by peer %t", e, c.reason, c.byPeer)
				}
				if n := socket.Unread(e.Back.FD); n != len("late") || string(e.Back.Early) != "early " || !e.Back.Others {
					t.Errorf("given back with %d bytes unread, and %+v", n, e.Back)
				}
				if l, err := unix.GetsockoptLinger(e.Back.FD, unix.SOL_SOCKET, unix.SO_LINGER); err != nil || l.Onoff == 0 {
					t.Errorf("a client that no hop serves would see an end (%v)", err)
				}
				s.path.cut(false) // the far relay hears that the flow is gone
				next.carryOn(e.Back)
				got := make([]byte, len("early late"))
				if _, err := io.ReadFull(client, got); err != nil || string(got) != "early late" {
					t.Errorf("got %q, %v at the next hop: %s", got, err, next.dump())
				}
				nettest.Must(t, client.CloseWrite())
				next.ends(flow.EndClean)
				close(d.goOn)
				nettest.Eventually(t, patience, func() bool { return d.ended.Load() > 0 && s.farNode().Flows() == 0 }, s.dump)
				if n := first.bytes.Load(); n > 0 {
					t.Errorf("the first hop's target got %d bytes", n)
				}
				if left := receive(s.nearEnds); len(left) > 0 || s.near.Flows() > 0 {
					t.Errorf("further ends %+v, %d flows", left, s.near.Flows())
				}
			})
		}
	}
}

// TestFoundOrBack holds that whichever piece of the connections of a held flow is withheld for ever, with
// all that follows it, exactly one target gets the client's bytes, once: the one of the hop, or that of the
// next, to which the client goes once it is given back.
func TestFoundOrBack(t *testing.T) {
	t.Parallel()
	for _, m := range modes {
		if m.older || m.lanes > 0 || m.noResume {
			continue
		}
		for _, how := range []hold{holdOneWay, holdBothWays} {
			for _, toFar := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%s/to far %t", m.name, how, toFar), func(t *testing.T) {
					t.Parallel()
					for at, reached := int64(0), true; reached && !t.Failed(); at++ {
						reached = foundOrBack(t, m, &holdBox{how: how, toFar: toFar, at: at, over: make(chan struct{})})
					}
				})
			}
		}
	}
}

func foundOrBack(t *testing.T, m mode, b *holdBox) (reached bool) {
	t.Run(fmt.Sprint(b.at), func(t *testing.T) {
		s := newStand(t, m.in(), withOthers, func(s *stand, _ *pair.Options, _ *pair.LinkOptions) { s.path.box = b })
		t.Cleanup(func() { close(b.over) })
		next := newStand(t, m.in())
		nettest.Eventually(t, patience, func() bool { return s.link.Taking().Takes || b.seen.Load() > b.at }, s.dump)
		s.exchangeOnce(next, func() {})
	})
	return b.seen.Load() > b.at
}

// exchangeOnce has a client exchange bytes over the stand, or over next if it is given back. meanwhile
// runs beside that. Exactly one target is to get the bytes.
func (s *stand) exchangeOnce(next *stand, meanwhile func()) {
	s.t.Helper()
	var first, second counted
	first.serve(s)
	second.serve(next)
	client := s.dial()
	defer client.Close()
	_, err := io.WriteString(client, "late")
	nettest.Must(s.t, err)
	ended := make(chan bool, 1)
	s.tasks.Go(func() {
		e := <-s.nearEnds
		if e.Back != nil {
			next.carryOn(e.Back)
		}
		ended <- e.Back != nil
	})
	meanwhile()
	got := make([]byte, len("early late"))
	if _, err := io.ReadFull(client, got); err != nil || string(got) != "early late" {
		s.t.Fatalf("got %q, %v: %s\n%s", got, err, s.dump(), next.dump())
	}
	nettest.Must(s.t, client.CloseWrite())
	if rest, err := io.ReadAll(client); err != nil || len(rest) > 0 {
		s.t.Errorf("got %q, %v behind the answer", rest, err)
	}
	back := <-ended
	here, there := first.bytes.Load(), second.bytes.Load()
	if here+there != int64(len(got)) || (here > 0) == (there > 0) || (here > 0) == back {
		s.t.Errorf("the targets got %d and %d bytes, given back %t", here, there, back)
	}
}

// TestBackMeetsOpened holds that a client that is asked for while OPENED comes is given back or served,
// and never both.
func TestBackMeetsOpened(t *testing.T) {
	t.Parallel()
	s, next := newStand(t, withOthers), newStand(t)
	s.awaitWarm(2)
	next.awaitWarm(2)
	for i := range 60 {
		s.exchangeOnce(next, func() {
			f := s.flow(i)
			nettest.Eventually(t, patience, func() bool { // asked at another moment each time
				return rand.N(8) == 0 || f.Figures().State != flow.StateDialing
			}, s.dump)
			f.GiveBack()
		})
	}
}

// TestSuspect holds that a far relay that owes an answer is suspect until it answers, that Changed is
// called for both, and that a flow that stands feels nothing of it.
func TestSuspect(t *testing.T) {
	t.Parallel()
	changed := make(chan struct{}, 1000)
	s := newStand(t, func(_ *stand, _ *pair.Options, o *pair.LinkOptions) {
		o.Changed = func() { changed <- struct{}{} }
	})
	c := s.begin("before")
	await := func(suspect bool) {
		t.Helper()
		for deadline := time.After(patience); ; {
			if taking := s.link.Taking(); taking.Takes && taking.Suspect == suspect {
				return
			}
			select {
			case <-changed:
			case <-deadline:
				t.Fatalf("suspect is not %t: %+v", suspect, s.link.Taking())
			}
		}
	}
	await(false)
	for range 3 {
		release := s.path.hold()
		await(true)
		release()
		await(false)
		s.roundTrip(c, "goes on")
	}
	if f := s.flow(0).Figures(); f.Resumes > 0 {
		t.Errorf("%+v", f)
	}
}

// TestHeldClientResets holds that a client that resets before the far relay has a target ends its flow,
// although nobody reads it.
func TestHeldClientResets(t *testing.T) {
	t.Parallel()
	var d *slowDialer
	s := newStand(t, withOthers, func(s *stand, _ *pair.Options, _ *pair.LinkOptions) {
		d = newSlowDialer(s)
		s.acceptor = d
	})
	s.serve(echo)
	s.awaitWarm(1)
	client := s.dial()
	_, err := io.WriteString(client, "late")
	nettest.Must(t, err)
	d.awaitAsked()
	nettest.Must(t, client.SetLinger(0))
	client.Close()
	close(d.goOn)
	if e := <-s.nearEnds; e.Reason != flow.EndClientReset || e.Back != nil {
		t.Errorf("the flow ended by %q (%v), back %v", e.Reason, e.Err, e.Back)
	}
}

// TestHeldTargetSpeaksFirst holds that bytes of the target come to a held client, and then its own go to
// the target.
func TestHeldTargetSpeaksFirst(t *testing.T) {
	eachMode(t, func(t *testing.T, in standOption) {
		s := newStand(t, in, withOthers)
		s.serve(func(c *net.TCPConn) {
			_, _ = io.WriteString(c, "welcome ")
			echo(c)
		})
		s.awaitWarm(1)
		client := s.dial()
		defer client.Close()
		_, err := io.WriteString(client, "late")
		nettest.Must(t, err)
		nettest.Must(t, client.CloseWrite())
		if b, err := io.ReadAll(client); err != nil || string(b) != "welcome early late" {
			t.Errorf("got %q, %v", b, err)
		}
		s.ends(flow.EndClean)
	})
}

// TestBackAtOnce holds that a client is given back at once where its flow cannot begin: the session does
// not stand, or the link is closed.
func TestBackAtOnce(t *testing.T) {
	t.Parallel()
	s := newStand(t, withOthers, func(s *stand, _ *pair.Options, _ *pair.LinkOptions) { s.path.cut(true) })
	for range 2 {
		client := s.dial()
		defer client.Close()
		unix.Close(s.back().Back.FD) // nobody has served the client
		if n, err := client.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("the client reads %d bytes, %v, and not that it was reset", n, err)
		}
		s.link.Close()
	}
}
