package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/carry/relay/names"
	"longhaul/test/nettest"
)

// silent returns the address of a listener with a full queue, which answers no
// handshake.
func silent(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, address := fullListener(t)
	t.Cleanup(func() { closeFD(fd) })
	return address
}

func forward(to ...netip.AddrPort) (ts []hops.Target) {
	for _, a := range to {
		ts = append(ts, hops.Target{Host: a.Addr().String(), Port: a.Port()})
	}
	return ts
}

func TestConnectTimeout(t *testing.T) {
	nettest.CheckLeaks(t)
	to := silent(t)
	const timeout = 2 * time.Second
	g := newStoppedRig(t, func(o *rigOptions) {
		o.Tunnels[0].Forward = forward(to)
		o.Tunnels[0].ConnectTimeout = timeout
	})
	c := dial(t, g.addr)
	write(t, c, []byte("early")) // waits in its socket
	g.flowIs("connects", func(f *flow) bool { return f.phase == phaseDialing })
	g.pass(timeout - 1)
	if r := g.flows.all(); len(r) != 0 {
		t.Fatalf("the flow ended with %q before its timeout", r[0].Reason)
	}
	g.pass(1)
	expectReset(t, c)
	r := g.expectReason(report.EndTargetUnreached)
	if !errors.Is(r.Err, syscall.ETIMEDOUT) {
		t.Errorf("the cause is %v", r.Err)
	}
	if n := g.relay.Snapshot().Tunnels[0].Refused; n != 1 {
		t.Errorf("%d refused, want 1", n)
	}
}

// TestTargetsInTurn: a silent and a refusing target cost only their share of
// the timeout.
func TestTargetsInTurn(t *testing.T) {
	nettest.CheckLeaks(t)
	dead := nobody(t)
	quiet := silent(t)
	const timeout = 4 * time.Second
	g := newStoppedRig(t, func(o *rigOptions) {
		live := o.Tunnels[0].Forward[0]
		o.Tunnels[0].Forward = append(forward(dead, quiet), live)
		o.Tunnels[0].ConnectTimeout = timeout
	})
	c := dial(t, g.addr)
	connectsTo := func(to netip.AddrPort) {
		t.Helper()
		g.flowIs(fmt.Sprintf("connects to %v", to), func(f *flow) bool { return f.phase == phaseDialing && f.target() == to })
	}
	connectsTo(quiet)
	g.pass(timeout/2 - 1)
	connectsTo(quiet)
	g.pass(1) // half of the time for the second of three; the first took none
	s := g.accept()
	write(t, c, []byte("x"))
	expect(t, s, []byte("x"))
	if f := g.relay.Snapshot().Flows[0]; f.Target != addrOf(g.target) {
		t.Errorf("the flow's target is %v", f.Target)
	}
}

// A flow's record, and its samples before, have how long its own target took to accept: not the time
// that another one was given.
func TestConnectTime(t *testing.T) {
	nettest.CheckLeaks(t)
	never := silent(t)
	fd, late := fullListener(t)
	t.Cleanup(func() { closeFD(fd) })
	g := newStoppedRig(t, func(o *rigOptions) {
		o.Tunnels[0].Forward = forward(never, late)
		o.Tunnels[0].ConnectTimeout = 2 * time.Second
	})
	c := dial(t, g.addr)
	g.flowIs("connects to the first target", func(f *flow) bool { return f.phase == phaseDialing && f.target() == never })
	g.pass(time.Second)
	g.flowIs("connects to the second target", func(f *flow) bool { return f.phase == phaseDialing && f.target() == late })
	const took = 300 * time.Millisecond
	g.pass(took)
	if nfd, _, err := unix.Accept(fd); err != nil {
		t.Fatal(err)
	} else {
		closeFD(nfd) // the one that filled the queue
	}
	g.flowIs("is connected", func(f *flow) bool { return f.connected() })
	g.pass(time.Second)
	if err := g.relay.eachFlow(func(s *report.Sample) {
		if s.Connect != took {
			t.Errorf("the sample has %v", s.Connect)
		}
	}); err != nil {
		t.Error(err)
	}
	reset(t, c)
	if r := g.flows.one(t); r.Connect != took {
		t.Errorf("the record has %v, want %v", r.Connect, took)
	}
}

func TestClientLeavesWhileDialing(t *testing.T) {
	nettest.CheckLeaks(t)
	to := silent(t)
	g := newRig(t, func(o *rigOptions) { o.Tunnels[0].Forward = forward(to) })
	c := dial(t, g.addr)
	nettest.Eventually(t, patience, func() bool { return g.relay.Snapshot().FlowsNow == 1 },
		func() string { return "no flow" })
	if s := g.relay.Snapshot().Flows[0].State; s != "dialing" {
		t.Fatalf("the flow is %s", s)
	}
	reset(t, c)
	g.expectReason(report.EndClientReset)
}

func TestNames(t *testing.T) {
	nettest.CheckLeaks(t)
	var asked atomic.Int32
	release := make(chan struct{})
	g := newRig(t, func(o *rigOptions) {
		o.Tunnels[0].Forward[0].Host = "target.example"
		o.Resolve = func(ctx context.Context, host string) (names.Answer, error) {
			if host != "target.example" {
				t.Errorf("asked for %q", host)
			}
			asked.Add(1)
			select {
			case <-release:
			case <-ctx.Done():
			}
			// The first address has no listener.
			return names.Answer{Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.9"), loopback}}, nil
		}
	})
	const flows = 5
	for range flows {
		dial(t, g.addr)
	}
	nettest.Eventually(t, patience, func() bool { return g.relay.Snapshot().FlowsNow == flows },
		func() string { return "the flows do not wait for their target's name" })
	close(release)
	for range flows {
		g.accept()
	}
	g.pair()
	if n := asked.Load(); n != 1 {
		t.Errorf("the resolver was asked %d times, want once", n)
	}
}

func TestUnknownName(t *testing.T) {
	nettest.CheckLeaks(t)
	for name, resolve := range map[string]names.Resolver{
		"error":      func(context.Context, string) (names.Answer, error) { return names.Answer{}, errors.New("no such host") },
		"no address": func(context.Context, string) (names.Answer, error) { return names.Answer{}, nil },
		"no answer": func(ctx context.Context, _ string) (names.Answer, error) {
			<-ctx.Done()
			return names.Answer{}, ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, func(o *rigOptions) {
				o.Tunnels[0].Forward[0].Host = "nowhere.example"
				o.Tunnels[0].ConnectTimeout = 200 * time.Millisecond
				o.Resolve = resolve
			})
			if c, err := tryDial(g.addr); err == nil {
				defer c.Close()
				expectReset(t, c)
			}
			if r := g.expectReason(report.EndTargetUnknown); r.Err == nil {
				t.Error("the record does not say why")
			}
		})
	}
}

// TestNoLocalPort leaves two ephemeral ports towards the target: the third flow
// fails with its own reason.
func TestNoLocalPort(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	const file = "/proc/sys/net/ipv4/ip_local_port_range"
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	g := newRig(t, func(o *rigOptions) { o.Workers = 1 })
	if err := os.WriteFile(file, []byte("61000 61001"), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(file, before, 0); err != nil {
			t.Error(err)
		}
	})
	for i := range 3 {
		// The client uses a port outside the range.
		d := net.Dialer{
			LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 5), Port: 20000 + i},
			Control: func(_, _ string, raw syscall.RawConn) error { // a previous run may have left it in TIME_WAIT
				return raw.Control(func(fd uintptr) { setsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
			},
		}
		d.SetMultipathTCP(false)
		c, err := d.Dial("tcp4", g.addr.String())
		if err == nil {
			defer c.Close()
		} else if i < 2 || !errors.Is(err, syscall.ECONNRESET) {
			t.Fatal(err)
		}
		if i < 2 {
			g.accept()
		}
	}
	if r := g.expectReason(report.EndNoLocalPort); !errors.Is(r.Err, syscall.EADDRNOTAVAIL) {
		t.Errorf("the cause is %v", r.Err)
	}
}

func TestIdleTimeout(t *testing.T) {
	nettest.CheckLeaks(t)
	const timeout = 2 * time.Second
	g := newStoppedRig(t, func(o *rigOptions) { o.Tunnels[0].IdleTimeout = timeout })
	c, s := g.pair()
	for range 8 { // each byte restarts the timeout
		write(t, c, []byte("x"))
		expect(t, s, []byte("x"))
		g.pass(timeout - 1)
	}
	if r := g.flows.all(); len(r) != 0 {
		t.Fatalf("the flow ended with %q before its timeout", r[0].Reason)
	}
	g.pass(1)
	expectReset(t, c)
	expectReset(t, s)
	g.expectReason(report.EndIdle)
}

func TestHalfCloseTimeout(t *testing.T) {
	nettest.CheckLeaks(t)
	const timeout = 2 * time.Second
	g := newStoppedRig(t, func(o *rigOptions) { o.HalfCloseTimeout = timeout })
	quiet, quietTarget := g.pair() // no end: no timer
	c, s := g.pair()
	c.CloseWrite()
	expectEnd(t, s)
	for range 8 {
		write(t, s, []byte("x"))
		expect(t, c, []byte("x"))
		g.pass(timeout - 1)
	}
	if r := g.flows.all(); len(r) != 0 {
		t.Fatalf("the flow ended with %q before its timeout", r[0].Reason)
	}
	g.pass(1)
	expectReset(t, c)
	g.expectReason(report.EndHalfClosed)
	write(t, quiet, []byte("y"))
	expect(t, quietTarget, []byte("y"))
}

// TestEveryAddressIsUsed: each flow begins with the next address of a name.
func TestEveryAddressIsUsed(t *testing.T) {
	nettest.CheckLeaks(t)
	var listeners []*net.TCPListener
	answer := names.Answer{}
	for i := range 3 {
		addr := netip.AddrFrom4([4]byte{127, 0, 0, byte(2 + i)})
		at := netip.AddrPortFrom(addr, 0)
		if i > 0 {
			at = netip.AddrPortFrom(addr, addrOf(listeners[0]).Port())
		}
		l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		listeners = append(listeners, l)
		answer.Addrs = append(answer.Addrs, addr)
	}
	g := newRig(t, func(o *rigOptions) {
		o.Tunnels[0].Forward = []hops.Target{{Host: "many.example", Port: addrOf(listeners[0]).Port()}}
		o.Resolve = func(context.Context, string) (names.Answer, error) { return answer, nil }
	})
	for i := range 9 {
		dial(t, g.addr)
		l := listeners[i%3]
		_ = l.SetDeadline(time.Now().Add(patience))
		c, err := l.Accept()
		if err != nil {
			t.Fatalf("flow %d did not come to address %d: %v", i, i%3, err)
		}
		defer c.Close()
	}
}
