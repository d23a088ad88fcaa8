package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/carry/relay/names"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/test/nettest"
)

// twoHops is a rig whose tunnel has a second target, for the same flows.
func twoHops(t *testing.T, change func(*rigOptions)) (g *rig, second *net.TCPListener) {
	t.Helper()
	second = listen(t)
	g = newRig(t, func(o *rigOptions) {
		o.Tunnels[0].Forward = append(o.Tunnels[0].Forward, targetOf(second))
		if change != nil {
			change(o)
		}
	})
	return g, second
}

// takes has a flow go through and returns which of the listeners got it.
func (g *rig) takes(listeners ...*net.TCPListener) int {
	g.t.Helper()
	c := dial(g.t, g.addr)
	write(g.t, c, []byte("x"))
	accepted := make(chan int, len(listeners))
	for i, l := range listeners {
		_ = l.SetDeadline(time.Now().Add(patience))
		go func() {
			if s, err := l.AcceptTCP(); err == nil {
				g.t.Cleanup(func() { s.Close() })
				accepted <- i
			} else {
				accepted <- -1
			}
		}()
	}
	got := -1
	for range listeners {
		if i := <-accepted; i >= 0 {
			got = i
			for _, l := range listeners {
				_ = l.SetDeadline(time.Now()) // wakes the others
			}
		}
	}
	if got < 0 {
		g.t.Fatal("no target got the flow")
	}
	return got
}

func (g *rig) hop(i int) report.Hop { return g.relay.Snapshot().Tunnels[0].Hops[i] }

// TestHopIsEjectedByItsFlows kills the first of two hops: flows go on to the
// other, at first after a refusal and then without.
func TestHopIsEjectedByItsFlows(t *testing.T) {
	nettest.CheckLeaks(t)
	g, second := twoHops(t, func(o *rigOptions) {
		o.Tunnels[0].Health = hops.Health{EjectAfter: 3, EjectFor: time.Hour, Interval: time.Hour}
	})
	if i := g.takes(g.target, second); i != 0 {
		t.Fatalf("the first flow went to hop %d", i)
	}
	nettest.Eventually(t, patience, func() bool { return g.hop(0).FlowsTotal == 1 }, func() string { return "its success is not counted" })
	g.target.Close()
	for range 5 {
		g.takes(second)
	}
	first := g.hop(0)
	if first.State != report.HopEjected || first.Failed != 3 || first.FlowsTotal != 1 || first.FlowsNow != 1 || !strings.Contains(first.LastError, "refused") {
		t.Errorf("the hop that was killed is %+v", first)
	}
	if s := g.hop(1); s.State != report.HopUp || s.FlowsTotal != 5 || s.FlowsNow != 5 {
		t.Errorf("the other is %+v", s)
	}
	if text := g.log.String(); strings.Count(text, "hop gets no new flows") != 1 {
		t.Errorf("the log says:\n%s", text)
	}
	// A reload of other settings keeps the hops' state.
	tunnels := []Tunnel{*g.relay.table.Load().tunnels[0].tunnel}
	tunnels[0].MaxFlows = 100
	if err := setTunnels(g.relay, tunnels); err != nil {
		t.Fatal(err)
	}
	if s := g.hop(0); s.State != report.HopEjected {
		t.Errorf("after a reload it is %s", s.State)
	}
	for _, f := range g.relay.Snapshot().Flows {
		if f.Hop == "" {
			t.Errorf("the flow %+v has no hop", f)
		}
	}
}

// TestLateRefusalIsNotTheNextHops: a hop refuses just when the flow has moved
// to the next hop. The event belongs to the first hop.
func TestLateRefusalIsNotTheNextHops(t *testing.T) {
	for _, named := range []bool{false, true} {
		t.Run(fmt.Sprintf("named=%v", named), func(t *testing.T) { testLateRefusal(t, named) })
	}
}

func testLateRefusal(t *testing.T, named bool) {
	nettest.CheckLeaks(t)
	refused := make(chan struct{}) // the name is not resolved before
	// A listener with a full queue answers no SYN; after it is closed, the
	// kernel refuses the next one.
	full, address := fullListener(t)
	var second *net.TCPListener
	g := newRig(t, func(o *rigOptions) {
		second = listen(t)
		o.Workers = 1
		o.Tunnels[0].Forward = []hops.Target{{Host: address.Addr().String(), Port: address.Port()}, targetOf(second)}
		if named {
			o.Tunnels[0].Forward[1].Host = "slow.example"
			o.Resolve = func(ctx context.Context, _ string) (names.Answer, error) {
				select {
				case <-refused:
				case <-ctx.Done():
				}
				return names.Answer{Addrs: []netip.Addr{addrOf(second).Addr()}}, nil
			}
		}
	})
	c := dial(t, g.addr)
	w := g.relay.workers[0]
	var connecting int
	nettest.Eventually(t, patience, func() bool {
		w.do(func() {
			w.eachFlow(func(f *flow) {
				if f.phase == phaseDialing {
					connecting = int(f.legs[target].fd)
				}
			})
		})
		return connecting > 0
	}, func() string { return "no flow connects" })
	blocked, release := make(chan struct{}), make(chan struct{})
	w.post(func() { close(blocked); <-release })
	<-blocked
	w.post(func() { w.eachFlow(func(f *flow) { w.moveOn(f, f.hop) }) })
	closeFD(full)
	nettest.Eventually(t, patience, func() bool {
		info, err := tcpinfo.Get(connecting)
		return err == nil && info.State == tcpinfo.Closed
	}, func() string { return "the closed listener does not refuse" })
	close(release)
	w.do(func() {}) // in a batch after the one with the refusal
	w.do(func() {})
	close(refused)
	_ = second.SetDeadline(time.Now().Add(patience))
	s, err := second.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	write(t, c, []byte("x"))
	expect(t, s, []byte("x"))
}

// TestHopThatWasLeftIsTriedAgain: a flow moves from a silent hop to one that
// refuses, and returns to the first, which answers now.
func TestHopThatWasLeftIsTriedAgain(t *testing.T) {
	nettest.CheckLeaks(t)
	full, address := fullListener(t)
	defer closeFD(full)
	gone := listen(t)
	g := newRig(t, func(o *rigOptions) {
		o.Workers = 1
		o.Tunnels[0].Forward = []hops.Target{{Host: address.Addr().String(), Port: address.Port()}, targetOf(gone)}
	})
	gone.Close()
	c := dial(t, g.addr)
	w := g.relay.workers[0]
	moved := false
	nettest.Eventually(t, patience, func() bool {
		w.do(func() {
			w.eachFlow(func(f *flow) {
				if !moved && f.phase == phaseDialing {
					moved = true
					w.moveOn(f, f.hop)
				}
			})
		})
		return moved
	}, func() string { return "no flow connects" })
	write(t, c, []byte("x"))
	// Accepting the connection that fills its queue makes room for the flow.
	for range 2 {
		var fd int
		nettest.Eventually(t, patience, func() (ok bool) {
			var err error
			fd, _, err = unix.Accept4(full, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			return err == nil
		}, func() string { return "the hop that answers after all gets no flow" })
		defer closeFD(fd)
	}
}

// fullListener is a listening socket with a full queue.
func fullListener(t *testing.T) (fd int, address netip.AddrPort) {
	t.Helper()
	fd, errno := newSocket(unix.AF_INET)
	if errno != 0 {
		t.Fatal(errno)
	}
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	address = localAddr(fd)
	dial(t, address) // fills the queue
	nettest.Eventually(t, patience, func() bool {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		return err == nil && info.Unacked == 1 // the accept queue's length
	}, func() string { return "the connection does not wait in the listener's queue" })
	return fd, address
}

// TestAllHopsOut: without another hop even an ejected hop is tried, because the
// target may be back.
func TestAllHopsOut(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, func(o *rigOptions) {
		o.Tunnels[0].Health = hops.Health{EjectAfter: 1, EjectFor: time.Hour, Interval: time.Hour}
	})
	at := addrOf(g.target)
	g.target.Close()
	if c, err := tryDial(g.addr); err == nil {
		defer c.Close()
		expectReset(t, c)
	}
	g.expectReason(report.EndTargetRefused)
	if s := g.hop(0).State; s != report.HopEjected {
		t.Fatalf("the hop is %s", s)
	}
	back, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	g.takes(back)
}

// probeSays is a Prober with results set by the test.
type probeSays struct {
	mu   sync.Mutex
	down map[netip.AddrPort]bool
}

func (p *probeSays) Probe(_ context.Context, to netip.AddrPort) (time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down[to] {
		return 0, errors.New("it says no")
	}
	return time.Millisecond, nil
}

func (p *probeSays) set(to netip.AddrPort, down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down == nil {
		p.down = map[netip.AddrPort]bool{}
	}
	p.down[to] = down
}

func (g *rig) becomes(i int, want report.HopState) {
	g.t.Helper()
	nettest.Eventually(g.t, patience, func() bool { return g.hop(i).State == want },
		func() string {
			return "hop " + g.hop(i).Name + " is " + string(g.hop(i).State) + ", not " + string(want)
		})
}

// TestCheckedHop: probes take a hop down and bring it back, and a flow that is
// connecting to it moves on.
func TestCheckedHop(t *testing.T) {
	nettest.CheckLeaks(t)
	hole := silent(t)
	says := &probeSays{}
	live := listen(t)
	g := newRig(t, func(o *rigOptions) {
		o.Tunnels[0].Forward = append(forward(hole), targetOf(live))
		o.Tunnels[0].ConnectTimeout = time.Hour
		o.Tunnels[0].Health = hops.Health{Probe: says, Interval: 10 * time.Millisecond, Timeout: patience, SlowReturn: -1}
	})
	nettest.Eventually(t, patience, func() bool { return g.hop(0).Checked }, func() string { return "the hop is never checked" })
	c := dial(t, g.addr)
	write(t, c, []byte("x"))
	nettest.Eventually(t, patience, func() bool { return g.hop(0).FlowsNow == 1 },
		func() string { return "the flow does not connect to the first hop" })
	says.set(hole, true)
	// Otherwise it would connect to the silent hop for half an hour.
	_ = live.SetDeadline(time.Now().Add(patience))
	s, err := live.Accept()
	if err != nil {
		t.Fatalf("the flow did not move on: %v", err)
	}
	defer s.Close()
	expect(t, s.(*net.TCPConn), []byte("x"))
	g.becomes(0, report.HopDown)
	if h := g.hop(0); h.FlowsNow != 0 || h.Failed != 0 || h.LastError != "it says no" {
		t.Errorf("the hop is %+v", h)
	}
	g.takes(live)
	says.set(hole, false)
	g.becomes(0, report.HopUp)
	nettest.Eventually(t, patience, func() bool { return strings.Contains(g.log.String(), "hop gets new flows again") }, g.log.String)
	// Without probes no hop is down.
	says.set(hole, true)
	g.becomes(0, report.HopDown)
	tunnels := []Tunnel{*g.relay.table.Load().tunnels[0].tunnel}
	tunnels[0].Health.Probe = nil
	if err := setTunnels(g.relay, tunnels); err != nil {
		t.Fatal(err)
	}
	g.becomes(0, report.HopUp)
}

func TestConnectProbe(t *testing.T) {
	nettest.CheckLeaks(t)
	l := listen(t)
	rtt, err := hops.ConnectProbe{}.Probe(t.Context(), addrOf(l))
	if err != nil || rtt <= 0 {
		t.Errorf("a listener answers %v after %v", err, rtt)
	}
	l.Close()
	if _, err := (hops.ConnectProbe{}).Probe(t.Context(), addrOf(l)); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a closed port answers %v", err)
	}
	quiet := silent(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := (hops.ConnectProbe{}).Probe(ctx, quiet); err == nil || !strings.Contains(err.Error(), "no answer in time") {
		t.Errorf("a silent host answers %v", err)
	}
}

func TestDrainedHop(t *testing.T) {
	nettest.CheckLeaks(t)
	g, second := twoHops(t, nil)
	name := targetOf(g.target).String()
	if tunnels, err := g.relay.DrainHop("", name, true); err != nil || len(tunnels) != 1 || tunnels[0] != "t" {
		t.Fatalf("draining says %v, %v", tunnels, err)
	}
	g.becomes(0, report.HopDrained)
	if i := g.takes(g.target, second); i != 1 {
		t.Errorf("a flow went to the drained hop")
	}
	if _, err := g.relay.DrainHop("t", targetOf(second).String(), true); err != nil {
		t.Fatal(err)
	}
	if c, err := tryDial(g.addr); err == nil {
		defer c.Close()
		expectReset(t, c)
	}
	g.expectReason(report.EndNoHop)
	if _, err := g.relay.DrainHop("t", name, false); err != nil {
		t.Fatal(err)
	}
	g.takes(g.target)
	var unknown *UnknownHopError
	if _, err := g.relay.DrainHop("t", "elsewhere:1", true); !errors.As(err, &unknown) || len(unknown.Known) != 2 {
		t.Errorf("an unknown hop gives %v", err)
	}
	if _, err := g.relay.DrainHop("other", name, true); err == nil {
		t.Error("a hop of an unknown tunnel can be drained")
	}
}

// TestResumedHopIsTried: a flow begins while one hop is drained, and the other
// refuses it. By then the first is back and is tried.
func TestResumedHopIsTried(t *testing.T) {
	nettest.CheckLeaks(t)
	asked, answer := make(chan struct{}), make(chan struct{})
	gone := nobody(t)
	g := newRig(t, func(o *rigOptions) {
		o.Tunnels[0].Forward = append(o.Tunnels[0].Forward, hops.Target{Host: "slow.example", Port: gone.Port()})
		o.Resolve = func(ctx context.Context, _ string) (names.Answer, error) {
			close(asked)
			select {
			case <-answer:
			case <-ctx.Done():
			}
			return names.Answer{Addrs: []netip.Addr{gone.Addr()}}, nil
		}
	})
	name := targetOf(g.target).String()
	if _, err := g.relay.DrainHop("t", name, true); err != nil {
		t.Fatal(err)
	}
	c := dial(t, g.addr)
	<-asked
	if _, err := g.relay.DrainHop("t", name, false); err != nil {
		t.Fatal(err)
	}
	close(answer)
	s := g.accept()
	write(t, c, []byte("x"))
	expect(t, s, []byte("x"))
}

func TestBadHops(t *testing.T) {
	for name, change := range map[string]func(*Tunnel){
		"twice":   func(t *Tunnel) { t.Forward = append(t.Forward, t.Forward[0]) },
		"balance": func(t *Tunnel) { t.Balance = "leastconn" },
	} {
		tunnel := Tunnel{Name: "t", Listen: []netip.AddrPort{freePort}, Forward: []hops.Target{{Host: "a", Port: 1}}}
		change(&tunnel)
		if _, err := New(Options{}).Prepare([]Tunnel{tunnel}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
