package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/names"
	"longhaul/internal/sys/eyeballs"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/test/nettest"
)

var loopback6 = netip.IPv6Loopback()

// dualStack is a relay in front of a name with an address of each family, the IPv6 one first. The
// IPv4 one has a listener.
func dualStack(t *testing.T, stopped bool) *rig {
	t.Helper()
	start := newRig
	if stopped {
		start = newStoppedRig
	}
	return start(t, func(o *rigOptions) {
		o.Workers = 1
		o.Tunnels[0].Forward[0].Host = "dual.example"
		o.Resolve = func(context.Context, string) (names.Answer, error) {
			return names.Answer{Addrs: []netip.Addr{loopback6, loopback}, TTL: time.Hour}, nil
		}
	})
}

// silence6 gives the IPv6 address a listener with a full queue, which answers no handshake.
func (g *rig) silence6() (fd int) {
	g.t.Helper()
	at := netip.AddrPortFrom(loopback6, addrOf(g.target).Port())
	fd, errno := newSocket(unix.AF_INET6)
	if errno != 0 {
		g.t.Fatal(errno)
	}
	g.t.Cleanup(func() { closeFD(fd) })
	setsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}), unix.Listen(fd, 0)); err != nil {
		g.t.Fatal(err)
	}
	dial(g.t, at) // fills the queue
	nettest.Eventually(g.t, patience, func() bool { return queued(fd) == 1 }, func() string { return "the connection does not wait in the listener's queue" })
	return fd
}

// queued is the number of connections that wait to be accepted.
func queued(fd int) uint32 {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0
	}
	return info.Unacked
}

// TestDeadFamily: while the first address of a name does not answer, a flow tries the next one beside
// it, and the flows behind it begin with that. The status and the log say so once. Before, every
// second flow waited for half of the tunnel's timeout.
func TestDeadFamily(t *testing.T) {
	nettest.CheckLeaks(t)
	g := dualStack(t, true)
	full := g.silence6()
	dead := netip.AddrPortFrom(loopback6, addrOf(g.target).Port())
	dialing := func(to netip.AddrPort) {
		t.Helper()
		g.flowIs(fmt.Sprintf("connects to %v", to), func(f *flow) bool { return f.phase == phaseDialing && f.target() == to })
	}
	c := dial(t, g.addr)
	write(t, c, []byte("early"))
	dialing(dead)
	g.pass(eyeballs.AttemptDelay - 1)
	dialing(dead)
	g.pass(1)
	s := g.accept()
	expect(t, s, []byte("early"))
	for range 5 { // at once: the clock stands
		dial(t, g.addr)
		s := g.accept()
		defer s.Close()
	}
	said := "IPv6 of dual.example does not answer; flows go to 127.0.0.1"
	nettest.Eventually(t, patience, func() bool { return strings.Contains(g.log.String(), said) }, g.log.String)
	if n := strings.Count(g.log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings: %s", n, g.log)
	}
	if said, want := g.relay.Snapshot().Tunnels[0].DeadFamilies, []string{said}; !slices.Equal(said, want) {
		t.Errorf("the status says %q, want %q", said, want)
	}
	if n := queued(full); n != 1 {
		t.Errorf("%d connections wait at the dead address, want the one that fills its queue", n)
	}
}

// TestLoserIsNotAccepted: both addresses answer a flow in the same turn of the loop. The first one is
// used, and the program behind the other sees no connection.
func TestLoserIsNotAccepted(t *testing.T) {
	nettest.CheckLeaks(t)
	never := make(chan struct{})
	g := newStoppedRig(t, func(o *rigOptions) {
		o.Workers = 1
		o.Tunnels[0].Forward[0].Host = "dual.example"
		o.Resolve = func(ctx context.Context, _ string) (names.Answer, error) {
			select {
			case <-never:
			case <-ctx.Done():
			}
			return names.Answer{}, ctx.Err()
		}
	})
	first, err := net.ListenTCP("tcp6", net.TCPAddrFromAddrPort(netip.AddrPortFrom(loopback6, addrOf(g.target).Port())))
	nettest.Must(t, err)
	defer first.Close()
	c := dial(t, g.addr)
	g.flowIs("waits for the resolver", func(f *flow) bool { return f.opening != nil && f.opening.lookup })
	w := g.relay.workers[0]
	w.do(func() {
		w.eachFlow(func(f *flow) {
			w.resolved(f.slot, f.gen, []netip.Addr{loopback6, loopback}, nil)
			w.nextBeside(f)
			info, err := tcpinfo.Get(int(f.legs[target].fd))
			if err != nil || len(f.opening.beside) != 1 || f.target() != addrOf(g.target) {
				t.Errorf("%d attempts are beside that at %v (%v)", len(f.opening.beside), f.target(), err)
			}
			if info.SegsOut > 1 {
				t.Error("the handshake's ACK does not wait for the race")
			}
			w.raced(f)
		})
	})
	s, err := first.AcceptTCP()
	nettest.Must(t, err)
	defer s.Close()
	write(t, c, []byte("x"))
	expect(t, s, []byte("x"))
	if to := g.relay.Snapshot().Flows[0].Target; to != addrOf(first) {
		t.Errorf("the flow is shown at %v, its target is %v", to, addrOf(first))
	}
	next := dial(t, addrOf(g.target))
	if s := g.accept(); s.RemoteAddr().String() != next.LocalAddr().String() {
		t.Errorf("the address that lost has a connection from %v", s.RemoteAddr())
	}
}

// TestLaterAttemptFails: the address beside which another one was tried in vain is the flow's target
// again, also once it answers.
func TestLaterAttemptFails(t *testing.T) {
	nettest.CheckLeaks(t)
	g := dualStack(t, true)
	full := g.silence6()
	first := netip.AddrPortFrom(loopback6, addrOf(g.target).Port())
	g.target.Close()
	dial(t, g.addr)
	g.flowIs("connects", func(f *flow) bool { return f.phase == phaseDialing && f.target() == first })
	g.pass(eyeballs.AttemptDelay)
	g.flowIs("is left with one attempt of two", func(f *flow) bool {
		return f.opening != nil && f.opening.raced && len(f.opening.beside) == 0
	})
	shown := func(state string) {
		t.Helper()
		if f := g.relay.Snapshot().Flows[0]; f.State != state || f.Target != first {
			t.Errorf("the flow is %s at %v, want %s at %v", f.State, f.Target, state, first)
		}
	}
	shown("dialing")
	for range 2 { // what filled the queue, and the flow
		fd := -1
		nettest.Eventually(t, patience, func() bool {
			var err error
			fd, _, err = unix.Accept(full)
			return err == nil
		}, func() string { return "no connection comes" })
		defer closeFD(fd)
	}
	g.flowIs("is open", func(f *flow) bool { return f.connected() })
	shown("open")
}

// TestRefusedFamily: an address that refuses costs no time, and is tried last.
func TestRefusedFamily(t *testing.T) {
	nettest.CheckLeaks(t)
	g := dualStack(t, true)
	for range 3 {
		dial(t, g.addr)
		s := g.accept()
		defer s.Close()
	}
	if h := g.hop(0); h.Failed != 0 || h.State != report.HopUp {
		t.Errorf("the hop is %+v", h)
	}
}

// TestNoAddressAnswers: the flow ends at the tunnel's timeout, and nothing of its attempts stays.
func TestNoAddressAnswers(t *testing.T) {
	nettest.CheckLeaks(t)
	full, address := fullListener(t)
	defer closeFD(full)
	g := newStoppedRig(t, func(o *rigOptions) {
		o.Workers = 1
		o.Tunnels[0].ConnectTimeout = 10 * time.Second
		o.Tunnels[0].Forward[0].Host, o.Tunnels[0].Forward[0].Port = "dual.example", address.Port()
		o.Resolve = func(context.Context, string) (names.Answer, error) {
			return names.Answer{Addrs: []netip.Addr{loopback, loopback6, loopback, loopback, loopback, loopback}, TTL: time.Hour}, nil
		}
	})
	g.target.Close()
	c := dial(t, g.addr)
	most := 0
	for range 40 {
		g.flowIs("connects", func(f *flow) bool {
			if f.opening != nil {
				most = max(most, 1+len(f.opening.beside))
			}
			return f.phase == phaseDialing
		})
		g.pass(eyeballs.AttemptDelay)
	}
	expectReset(t, c)
	g.expectReason(report.EndTargetUnreached)
	if most != eyeballs.MaxBeside {
		t.Errorf("%d attempts at a time, want %d", most, eyeballs.MaxBeside)
	}
	if h := g.hop(0); h.Failed != 1 {
		t.Errorf("the hop failed %d flows, want 1", h.Failed)
	}
}

// TestClientLeavesARace: the client resets while two attempts are in flight.
func TestClientLeavesARace(t *testing.T) {
	nettest.CheckLeaks(t)
	full, address := fullListener(t)
	defer closeFD(full)
	g := newStoppedRig(t, func(o *rigOptions) {
		o.Workers = 1
		o.Tunnels[0].Forward[0].Host, o.Tunnels[0].Forward[0].Port = "dual.example", address.Port()
		o.Resolve = func(context.Context, string) (names.Answer, error) {
			return names.Answer{Addrs: []netip.Addr{loopback, loopback}, TTL: time.Hour}, nil
		}
	})
	c := dial(t, g.addr)
	g.flowIs("connects", func(f *flow) bool { return f.target().IsValid() })
	g.pass(eyeballs.AttemptDelay)
	g.flowIs("races", func(f *flow) bool { return f.opening != nil && len(f.opening.beside) == 1 })
	reset(t, c)
	g.expectReason(report.EndClientReset)
}
