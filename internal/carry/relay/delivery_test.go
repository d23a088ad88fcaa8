package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/sys/socket"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/test/nettest"
)

// dropAll is a socket filter that drops every received segment (bpf(2),
// SO_ATTACH_FILTER).
var dropAll = []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}

func deafen(t *testing.T, c *net.TCPConn) {
	t.Helper()
	control(t, c, func(fd int) {
		program := unix.SockFprog{Len: uint16(len(dropAll)), Filter: &dropAll[0]}
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
			t.Fatal(err)
		}
	})
}

func hear(t *testing.T, c *net.TCPConn) {
	t.Helper()
	control(t, c, func(fd int) { acceptSYNs(fd) })
}

// awaitState waits until the other end of a connection is in a state.
func awaitState(t *testing.T, c *net.TCPConn, want tcpinfo.State) {
	t.Helper()
	diag, err := tcpinfo.OpenDiag()
	if err != nil {
		t.Fatal(err)
	}
	defer diag.Close()
	local, remote := c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()
	var is tcpinfo.State
	nettest.Eventually(t, patience, func() bool {
		other, err := diag.Get(remote, local)
		is = other.Info.State
		return err == nil && is == want
	}, func() string { return fmt.Sprintf("the other end is in state %v, want %v", is, want) })
}

// ended is a flow whose ends have ended their streams, and whose client has not
// read the reply.
func (g *rig) ended(reply []byte) (c, s *net.TCPConn) {
	g.t.Helper()
	c = dial(g.t, g.addr)
	if err := c.SetReadBuffer(32 << 10); err != nil {
		g.t.Fatal(err)
	}
	s = g.accept()
	write(g.t, c, []byte("request"))
	c.CloseWrite()
	expect(g.t, s, []byte("request"))
	expectEnd(g.t, s)
	write(g.t, s, reply)
	s.Close()
	g.flowIs("waits for acknowledgements alone", func(f *flow) bool { return f.end.delivering() })
	return c, s
}

// TestFlowLastsUntilDelivered: a flow with both ends sent counts everywhere
// until its client has acknowledged the last byte. At 1818be3 it stopped
// counting at once: half-closed clients that never read passed max_flows and
// held uncounted kernel memory.
func TestFlowLastsUntilDelivered(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, func(o *rigOptions) { o.Tunnels[0].MaxFlows, o.MemoryLimitBytes = 1, 1<<30 })
	reply := pattern(300_000)
	c, _ := g.ended(reply)

	s := g.relay.Snapshot()
	if len(s.Flows) != 1 || s.Flows[0].State != "delivering" || s.FlowsNow != 1 || s.Tunnels[0].FlowsNow != 1 {
		t.Errorf("%d flows, %+v", s.FlowsNow, s.Flows)
	}
	g.look()
	if used := g.relay.Snapshot().Memory.UsedBytes; used < 100_000 {
		t.Errorf("the flows hold %d bytes, want the better part of %d", used, len(reply))
	}
	expectResetOf(t, g.addr)
	g.expectReason(report.EndFlowLimit)

	expect(t, c, reply)
	expectEnd(t, c)
	nettest.Eventually(t, patience, func() bool { return len(g.flows.all()) == 2 }, func() string { return "the flow does not end" })
	if r := g.flows.all()[1]; r.Reason != report.EndClean || r.BytesDown != int64(len(reply)) {
		t.Errorf("%+v", r)
	}
	if n := g.relay.Flows(); n != 0 {
		t.Errorf("%d flows are left", n)
	}
}

// TestDeliveryIsGivenUp: a client that receives nothing for the half-close
// timeout is reset; a slow reader is not.
func TestDeliveryIsGivenUp(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newStoppedRig(t, nil)
	reply := pattern(300_000)
	c, _ := g.ended(reply)
	at := 0
	for range 8 {
		expect(t, c, reply[at:at+20_000])
		at += 20_000
		left := 0
		nettest.Eventually(t, patience, func() bool { // until the relay's kernel knows
			was := left
			g.flowIs("is there", func(f *flow) bool { left = socket.Unacknowledged(int(f.legs[client].fd)); return true })
			return left == was
		}, func() string { return "acknowledgements do not cease" })
		g.pass(DefaultHalfCloseTimeout / 4)
	}
	if len(g.flows.all()) > 0 {
		t.Fatalf("given up although the client reads: %+v", g.flows.all())
	}
	for range 6 {
		g.pass(DefaultHalfCloseTimeout / 4)
	}
	g.expectReason(report.EndHalfClosed)
	if _, err := io.Copy(io.Discard, c); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the client sees %v, want a reset", err)
	}
}

// TestResetWhileDelivering: a client that leaves before it has read everything
// does not end cleanly; the target's end does.
func TestResetWhileDelivering(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	c, _ := g.ended(pattern(300_000))
	reset(t, c)
	g.expectReason(report.EndClientReset)
}

// TestDrainWaitsForDelivery: at 1818be3 the process exited with status 0 before
// the client had any of the reply.
func TestDrainWaitsForDelivery(t *testing.T) {
	nettest.CheckLeaks(t)
	const size = 300_000
	for _, patient := range []bool{true, false} {
		t.Run(map[bool]string{true: "patient", false: "in a hurry"}[patient], func(t *testing.T) {
			g := newRig(t, nil)
			reply := pattern(size)
			c, _ := g.ended(reply)
			from := c.LocalAddr().(*net.TCPAddr).AddrPort()
			ctx, hurry := context.WithCancel(t.Context())
			defer hurry()
			drained := g.drain(ctx)
			if !patient {
				hurry()
				r := <-drained
				if len(r.left) != 1 || !errors.Is(r.err, context.Canceled) {
					t.Fatalf("Drain returned %+v, %v", r.left, r.err)
				}
				l := r.left[0]
				if l.Tunnel != "t" || l.Client != from || l.ToTargetBytes != 0 || l.ToClientBytes < size/2 || l.ToClientBytes > size || !l.Delivering {
					t.Errorf("%+v", l)
				}
			}
			select {
			case r := <-drained:
				t.Fatalf("Drain returned %+v before the reply was read", r)
			default:
			}
			// The kernel delivers the rest.
			expect(t, c, reply)
			expectEnd(t, c)
			if patient {
				if r := <-drained; len(r.left) > 0 || r.err != nil {
					t.Errorf("Drain returned %+v, %v", r.left, r.err)
				}
			}
		})
	}
}

// TestKilledWhileDelivering records an experiment: a relay is killed while
// every segment to the client is lost.
func TestKilledWhileDelivering(t *testing.T) {
	nettest.CheckLeaks(t)
	target := listen(t)
	accept := func(t *testing.T) *net.TCPConn {
		t.Helper()
		target.SetDeadline(time.Now().Add(patience))
		s, err := target.AcceptTCP()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		s.SetDeadline(time.Now().Add(6 * patience))
		return s
	}

	// Both streams have ended: the leg is in LAST_ACK, which the kernel cannot
	// reset. It delivers the complete rest.
	t.Run("both ended", func(t *testing.T) {
		p := startProcess(t, target, 0)
		c := dial(t, p.addr)
		s := accept(t)
		write(t, c, []byte("request"))
		c.CloseWrite()
		expect(t, s, []byte("request"))
		expectEnd(t, s)
		deafen(t, c)
		reply := pattern(30_000)
		write(t, s, reply)
		s.CloseWrite()
		awaitState(t, c, tcpinfo.LastAck)
		p.kill(t)
		hear(t, c)
		expect(t, c, reply)
		expectEnd(t, c)
	})

	// A stream is cut and the reset is lost; TCP never repeats a reset. A
	// sending client learns it at once, a waiting one by its keepalive.
	t.Run("not ended", func(t *testing.T) {
		for _, keepalive := range []bool{false, true} {
			p := startProcess(t, target, 0)
			c := dial(t, p.addr)
			s := accept(t)
			write(t, s, []byte("the first half"))
			expect(t, c, []byte("the first half"))
			deafen(t, c)
			p.kill(t)
			expectReset(t, s)
			hear(t, c)
			if keepalive {
				if err := c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 3}); err != nil {
					t.Fatal(err)
				}
			} else {
				write(t, c, []byte("?"))
			}
			expectReset(t, c)
		}
	})
}
