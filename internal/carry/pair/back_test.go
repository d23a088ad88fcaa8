package pair_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/sys/socket"
	"longhaul/test/nettest"
)

// withOthers has clients have other hops. What was read of each is "early ".
func withOthers(s *stand, _ *pair.Options, _ *pair.LinkOptions) {
	s.others, s.early, s.deadline = true, func() []byte { return []byte("early ") }, time.Minute
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
	case <-time.After(time.Minute):
		s.t.Fatalf("the client is not given back: %s", s.dump())
	}
	panic("not reached")
}

// carryOn gives a client to the stand's link.
func (s *stand) carryOn(c *flow.Client) { s.link.Carry(*c, func(e flow.End) { s.nearEnds <- e }) }

// asked waits until the far relay has the OPEN of a held flow.
func (d *slowDialer) awaitAsked() {
	d.t.Helper()
	nettest.Eventually(d.t, time.Minute, func() bool { return d.asked.Load() > 0 }, d.dump)
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
				s.path.cut(false) // the far relay hears that the flow is gone
				next.carryOn(e.Back)
				got := make([]byte, len("early late"))
				if _, err := io.ReadFull(client, got); err != nil || string(got) != "early late" {
					t.Errorf("got %q, %v at the next hop: %s", got, err, next.dump())
				}
				nettest.Must(t, client.CloseWrite())
				next.ends(flow.EndClean)
				close(d.goOn)
				nettest.Eventually(t, time.Minute, func() bool { return d.ended.Load() > 0 && s.farNode().Flows() == 0 }, s.dump)
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
