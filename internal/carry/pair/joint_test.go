package pair_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/sys/selfconn"
	"longhaul/test/nettest"
)

// hub is the acceptor of a stand whose flows go on over another one, by a connection of this process that
// joins both, as a relay does it.
type hub struct {
	*stand
	next  *stand
	joint *selfconn.Connector
}

// Dial implements flow.Dialer.
func (h *hub) Dial(ctx context.Context, o flow.Open) (flow.Target, error) {
	dialed, accepted, err := h.joint.Connect(ctx)
	if err != nil {
		return flow.Target{}, err
	}
	joint, opened, ended := new(flow.Joint), make(chan struct{}), make(chan flow.End, 1)
	next := h.next.link.Carry(flow.Client{FD: accepted, From: o.Client, Listen: o.Listen, Name: o.Name, Via: o.Via, Offset: o.Offset,
		Opened: func() { close(opened) }, Legs: &flow.LegOptions{Joint: joint}}, flow.OnEnd(func(e flow.End) {
		h.next.nearEnds <- e
		ended <- e
	}))
	refuse := func(reason flow.EndReason, err error) (flow.Target, error) {
		unix.Close(dialed)
		return flow.Target{}, h.refuse(reason, err)
	}
	select {
	case <-opened:
		return flow.Target{FD: dialed, To: next.Figures().Target, Legs: &flow.LegOptions{Joint: joint}, Owner: flow.OnEnd(h.ended)}, nil
	case e := <-ended:
		return refuse(e.Reason, e.Err)
	case <-ctx.Done():
		next.Reset(flow.EndClientReset, nil)
		return refuse(flow.EndClientReset, nil)
	}
}

// newChain is two stands behind one another. The first has the clients, the last the target.
func newChain(t *testing.T, options ...standOption) (first, last *stand) {
	last = newStand(t, options...)
	joint := selfconn.New()
	t.Cleanup(joint.Close)
	first = newStand(t, append(options, func(s *stand, _ *pair.Options, _ *pair.LinkOptions) {
		s.acceptor = &hub{s, last, joint}
	})...)
	return first, last
}

// TestJoint holds that a flow over two pairs ends at each of the four ends for the reason that one of them has
// found, and that its client and its target see that.
func TestJoint(t *testing.T) {
	t.Parallel()
	shortly := func(_ *stand, _ *pair.Options, lo *pair.LinkOptions) { lo.Resume = time.Second }
	linger := func(c *net.TCPConn) {
		nettest.Must(t, c.SetLinger(0))
		c.Close()
	}
	for name, tt := range map[string]struct {
		cause  func(first, last *stand, client, target *net.TCPConn)
		reason flow.EndReason
	}{
		"client resets": {func(_, _ *stand, client, _ *net.TCPConn) { linger(client) }, flow.EndClientReset},
		"target resets": {func(_, _ *stand, _, target *net.TCPConn) { linger(target) }, flow.EndTargetReset},
		"half-closed client resets": {func(_, _ *stand, client, target *net.TCPConn) {
			nettest.Must(t, client.CloseWrite())
			if n, err := target.Read(make([]byte, 1)); n > 0 || err != io.EOF {
				t.Errorf("the target got %d bytes, %v", n, err)
			}
			linger(client)
		}, flow.EndClientReset},
		"half-closed target resets": {func(_, _ *stand, client, target *net.TCPConn) {
			nettest.Must(t, target.CloseWrite())
			if n, err := client.Read(make([]byte, 1)); n > 0 || err != io.EOF {
				t.Errorf("the client got %d bytes, %v", n, err)
			}
			linger(target)
		}, flow.EndTargetReset},
		"first WAN is lost": {func(first, _ *stand, _, _ *net.TCPConn) { first.path.cut(true) }, flow.EndWANLost},
		"last WAN is lost":  {func(_, last *stand, _, _ *net.TCPConn) { last.path.cut(true) }, flow.EndWANLost},
		"first relay ends it": {func(first, _ *stand, _, _ *net.TCPConn) {
			first.flow(0).Reset(flow.EndIdle, errors.New("idle"))
		}, flow.EndIdle},
		"last relay ends it": {func(_, last *stand, _, _ *net.TCPConn) {
			last.mu.Lock()
			defer last.mu.Unlock()
			last.opens[0].Carried.Reset(flow.EndStalled, errors.New("stalled"))
		}, flow.EndStalled},
		"first pair is dissolved": {func(first, _ *stand, _, _ *net.TCPConn) { first.farKeys.forget("near") }, flow.EndDenied},
		"both end": {func(_, _ *stand, client, target *net.TCPConn) {
			for from, to := range map[*net.TCPConn]*net.TCPConn{client: target, target: client} {
				nettest.Must(t, from.CloseWrite())
				if n, err := to.Read(make([]byte, 1)); n > 0 || err != io.EOF {
					t.Errorf("got %d bytes, %v", n, err)
				}
			}
		}, flow.EndClean},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lost := strings.HasSuffix(name, "WAN is lost")
			var options []standOption
			if lost {
				options = append(options, shortly)
			}
			first, last := newChain(t, options...)
			targets := make(chan *net.TCPConn, 1)
			release := make(chan struct{})
			last.serve(func(c *net.TCPConn) {
				targets <- c
				<-release
			})
			defer close(release)
			client := first.dial()
			defer client.Close()
			_, err := io.WriteString(client, "hello")
			nettest.Must(t, err)
			target := <-targets
			_ = target.SetDeadline(time.Now().Add(patience))
			b := make([]byte, 5)
			if _, err := io.ReadFull(target, b); err != nil || string(b) != "hello" {
				t.Fatalf("the target got %q, %v", b, err)
			}
			tt.cause(first, last, client, target)
			for _, c := range []*net.TCPConn{client, target} {
				if lost {
					_, _ = c.Write([]byte("x")) // else nobody needs a lane
				}
			}
			first.ends(tt.reason)
			last.ends(tt.reason)
		})
	}
}

// TestJointRefusal holds that the first relay gets the reason and the words of the last one.
func TestJointRefusal(t *testing.T) {
	t.Parallel()
	first, last := newChain(t)
	gone := nettest.ListenTCP(t, last.host+":0")
	last.setTarget(addrOf(gone))
	gone.Close()
	client := first.dial()
	defer client.Close()
	e := <-first.nearEnds
	if e.Reason != flow.EndTargetRefused || !e.ByPeer || e.Err == nil || !strings.Contains(e.Err.Error(), "connection refused") {
		t.Errorf("the first relay has %s, %v, by the peer: %v", e.Reason, e.Err, e.ByPeer)
	}
	if e := <-last.nearEnds; e.Reason != flow.EndTargetRefused || !e.ByPeer {
		t.Errorf("the hub has %s, by the peer: %v", e.Reason, e.ByPeer)
	}
}
