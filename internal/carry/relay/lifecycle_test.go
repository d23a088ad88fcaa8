package relay

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/hops"
	"longhaul/test/nettest"
)

func TestNewRejects(t *testing.T) {
	ok := Tunnel{Name: "a", Listen: []netip.AddrPort{freePort}, Forward: []hops.Target{{Host: "127.0.0.1", Port: 1}}}
	for _, tt := range []struct {
		tunnels []Tunnel
		want    string
	}{
		{[]Tunnel{ok, ok}, `two tunnels are named "a"; give each its own name`},
		{[]Tunnel{{Name: "a", Forward: ok.Forward}}, `tunnel "a" has no listening address; add one`},
		{[]Tunnel{{Name: "a", Listen: ok.Listen}}, `tunnel "a" leads nowhere; add a target`},
		{[]Tunnel{{Name: "a", Listen: ok.Listen, Forward: ok.Forward, ProxyOut: 3}},
			`tunnel "a" asks for PROXY protocol version 3; use 1 or 2`},
	} {
		if _, err := New(Options{}).Prepare(tt.tunnels); err == nil || err.Error() != tt.want {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
}

// TestPrepareBindsAllOrNone: if one address is taken, nothing stays bound.
func TestPrepareBindsAllOrNone(t *testing.T) {
	nettest.CheckLeaks(t)
	taken := listen(t)
	first := nobody(t)
	r := New(Options{})
	_, err := r.Prepare([]Tunnel{
		{Name: "a", Listen: []netip.AddrPort{first}, Forward: forward(addrOf(taken))},
		{Name: "b", Listen: []netip.AddrPort{addrOf(taken)}, Forward: forward(addrOf(taken))},
	})
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), addrOf(taken).String()) ||
		!strings.Contains(err.Error(), "; stop what listens there") {
		t.Errorf("got %v, want an error that names the address and the remedy", err)
	}
	if c, err := tryDial(first); err == nil {
		c.Close()
		t.Error("the first address is still bound")
	}
	r.Close()
}

// TestWildcards: "::" accepts IPv4 connections unless an IPv4 wildcard has its
// port.
func TestWildcards(t *testing.T) {
	nettest.CheckLeaks(t)
	port := nobody(t).Port()
	v4 := netip.AddrPortFrom(netip.IPv4Unspecified(), port)
	v6 := netip.AddrPortFrom(netip.IPv6Unspecified(), port)
	for _, tt := range []struct {
		name   string
		listen []netip.AddrPort
	}{{"one for both", []netip.AddrPort{v6}}, {"one each", []netip.AddrPort{v6, v4}}} {
		t.Run(tt.name, func(t *testing.T) {
			g := newRig(t, func(o *rigOptions) { o.Tunnels[0].Listen = tt.listen })
			for _, to := range []netip.Addr{loopback, netip.IPv6Loopback()} {
				g.addr = netip.AddrPortFrom(to, port)
				c, s := g.pair()
				write(t, c, []byte("x"))
				expect(t, s, []byte("x"))
				if f := g.relay.Snapshot().Flows; f[len(f)-1].Listen != g.addr || f[len(f)-1].Client.Addr() != to {
					t.Errorf("the flow is %v to %v, want %v", f[len(f)-1].Client, f[len(f)-1].Listen, g.addr)
				}
				reset(t, c)
				nettest.Eventually(t, patience, func() bool { return g.relay.Snapshot().FlowsNow == 0 },
					func() string { return "the flow does not end" })
			}
		})
	}
}

func (g *rig) reload(change func(*Tunnel)) error {
	tunnels := []Tunnel{{Name: "t", Listen: []netip.AddrPort{g.addr}, Forward: []hops.Target{targetOf(g.target)}}}
	if change != nil {
		change(&tunnels[0])
	}
	return setTunnels(g.relay, tunnels)
}

// fixed starts a relay on a port that stays the same across reloads.
func fixed(t *testing.T) *rig {
	t.Helper()
	addr := nobody(t)
	return newRig(t, func(o *rigOptions) { o.Tunnels[0].Listen[0] = addr })
}

// TestReloadUnderLoad changes the tunnel many times while clients connect and
// one long flow moves bytes. No client notices.
func TestReloadUnderLoad(t *testing.T) {
	nettest.CheckLeaks(t)
	g := fixed(t)
	g.echo()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var served atomic.Int64
	for i := range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := exchange(g.addr, uint64(i), 20_000); err != nil {
					t.Errorf("a client failed during a reload: %v", err)
					return
				}
				served.Add(1)
			}
		})
	}
	long := dial(t, g.addr)
	data := pattern(10_000)
	const reloads = 100
	for i := range reloads {
		for before := served.Load(); served.Load() == before && !t.Failed(); { // clients come and go in between
			write(t, long, data)
			expect(t, long, data)
		}
		write(t, long, data)
		err := g.reload(func(tu *Tunnel) {
			if i%2 == 0 {
				tu.IdleTimeout = time.Duration(i+1) * time.Minute
				tu.Allow = prefixes("127.0.0.0/8")
			}
			if i%3 == 0 { // another address comes and goes
				tu.Listen = append(tu.Listen, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.3"), g.addr.Port()))
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		expect(t, long, data)
	}
	close(stop)
	wg.Wait()
	s := g.relay.Snapshot()
	if len(s.Tunnels) != 1 || s.Tunnels[0].FlowsTotal != served.Load()+1 {
		t.Errorf("%d clients were served, counted are %+v", served.Load(), s.Tunnels)
	}
}

func TestReloadTakesEffectForNewFlows(t *testing.T) {
	nettest.CheckLeaks(t)
	g := fixed(t)
	c, s := g.pair()
	before := g.relay.table.Load().tunnels[0].listeners[0]
	other := listen(t)
	if err := g.reload(func(tu *Tunnel) { tu.Forward = []hops.Target{targetOf(other)} }); err != nil {
		t.Fatal(err)
	}
	if g.relay.table.Load().tunnels[0].listeners[0] != before {
		t.Error("the listening socket was replaced")
	}
	write(t, c, []byte("old"))
	expect(t, s, []byte("old"))
	g.target = other
	c2, s2 := g.pair()
	write(t, c2, []byte("new"))
	expect(t, s2, []byte("new"))

	// A removed tunnel refuses connections, and its flows go on.
	if err := setTunnels(g.relay, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := tryDial(g.addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dialing a removed tunnel gave %v", err)
	}
	write(t, s, []byte("still"))
	expect(t, c, []byte("still"))
	snap := g.relay.Snapshot()
	if len(snap.Tunnels) != 1 || snap.Tunnels[0].State != "removed" || snap.Tunnels[0].FlowsNow != 2 {
		t.Errorf("the removed tunnel is shown as %+v", snap.Tunnels)
	}
}

func TestReloadFailsWhole(t *testing.T) {
	nettest.CheckLeaks(t)
	g := fixed(t)
	taken := listen(t)
	err := setTunnels(g.relay, []Tunnel{
		{Name: "t", Listen: []netip.AddrPort{g.addr}, Forward: forward(addrOf(taken)), Allow: prefixes("10.0.0.0/8")},
		{Name: "new", Listen: []netip.AddrPort{freePort}, Forward: forward(addrOf(taken))},
		{Name: "bad", Listen: []netip.AddrPort{addrOf(taken)}, Forward: forward(addrOf(taken))},
	})
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("got %v", err)
	}
	c, s := g.pair() // with the old allow list and the old target
	write(t, c, []byte("x"))
	expect(t, s, []byte("x"))
	if n := len(g.relay.Snapshot().Tunnels); n != 1 {
		t.Errorf("%d tunnels after a failed reload", n)
	}
	clash := setTunnels(g.relay, []Tunnel{
		{Name: "a", Listen: []netip.AddrPort{g.addr}, Forward: forward(addrOf(taken))},
		{Name: "b", Listen: []netip.AddrPort{g.addr}, Forward: forward(addrOf(taken))},
	})
	if clash == nil || !strings.Contains(clash.Error(), "both listen on "+g.addr.String()) {
		t.Errorf("got %v", clash)
	}
}

func TestDrain(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	c, s := g.pair()
	ctx, cancel := context.WithTimeout(context.Background(), 6*patience)
	defer cancel()
	drained := g.drain(ctx)
	nettest.Eventually(t, patience, func() bool {
		c, err := tryDial(g.addr)
		if err == nil {
			reset(t, c) // nobody accepts at its target, where an end would not end the flow
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	}, func() string { return "a draining relay accepts" })
	write(t, c, []byte("last words"))
	expect(t, s, []byte("last words"))
	select {
	case r := <-drained:
		t.Fatalf("Drain returned %+v while a flow was open", r)
	default:
	}
	c.Close()
	expectEnd(t, s)
	s.Close()
	if r := <-drained; len(r.left) != 0 || r.err != nil {
		t.Errorf("Drain returned %+v", r)
	}
	if err := g.reload(nil); !errors.Is(err, ErrClosed) {
		t.Errorf("a drained relay's reload gave %v", err)
	}
}

func TestDrainDeadline(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	var all []*net.TCPConn
	for range 3 {
		c, s := g.pair()
		all = append(all, c, s)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	left, err := g.relay.Drain(ctx)
	if len(left) != 3 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Drain returned %+v, %v", left, err)
	}
	for _, c := range all {
		expectReset(t, c)
	}
	for _, r := range g.flows.all() {
		if r.Reason != report.EndDrain {
			t.Errorf("a flow ended with %q", r.Reason)
		}
	}
}

func TestCloseResetsFlows(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	c, s := g.pair()
	g.relay.Close()
	expectReset(t, c)
	expectReset(t, s)
	g.relay.Close() // again does nothing
	if s := g.relay.Snapshot(); s.FlowsNow != 0 || len(s.Flows) != 0 {
		t.Errorf("after Close: %+v", s)
	}
}

// TestInheritedSocket takes over a socket that another process has bound, in
// place of an address and in addition.
func TestInheritedSocket(t *testing.T) {
	nettest.CheckLeaks(t)
	outer := listen(t)
	f, err := outer.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	addr := addrOf(outer)
	outer.Close()
	for _, tt := range []struct {
		name   string
		listen []netip.AddrPort
	}{{"in place", []netip.AddrPort{addr}}, {"in addition", nil}} {
		t.Run(tt.name, func(t *testing.T) {
			g := newRig(t, func(o *rigOptions) {
				o.Tunnels[0].Listen = tt.listen
				o.Tunnels[0].Inherited = []*os.File{f}
			})
			if g.addr != addr {
				t.Fatalf("the relay listens on %v, want %v", g.addr, addr)
			}
			c, s := g.pair()
			reset(t, s) // accepted sockets inherit the zero linger
			expectReset(t, c)
			tunnels := []Tunnel{{Name: "t", Listen: tt.listen, Inherited: []*os.File{f}, Forward: []hops.Target{targetOf(g.target)}}}
			if err := setTunnels(g.relay, tunnels); err != nil {
				t.Fatal(err)
			}
			g.pair()
		})
	}
}

// TestClientsBeforeActivation: connections from before the takeover, like the
// one that activates a service, end by a reset like all others. It failed at
// 1818be3.
func TestClientsBeforeActivation(t *testing.T) {
	nettest.CheckLeaks(t)
	const clients = 5
	early := func(t *testing.T, change func(*rigOptions)) (g *rig, conns []*net.TCPConn) {
		outer := listen(t)
		f, err := outer.File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for range clients {
			conns = append(conns, dial(t, addrOf(outer)))
		}
		outer.Close()
		g = newRig(t, func(o *rigOptions) {
			o.Tunnels[0].Listen, o.Tunnels[0].Inherited = nil, []*os.File{f}
			change(o)
		})
		return g, conns
	}
	t.Run("target resets", func(t *testing.T) {
		g, conns := early(t, func(*rigOptions) {})
		data := pattern(50_000)
		var reads []reading
		for _, c := range conns {
			reads = append(reads, readAll(c))
		}
		for range conns {
			s := g.accept()
			write(t, s, data)
			awaitSent(t, s)
			reset(t, s)
		}
		for _, read := range reads {
			read.expectReset(t, data)
		}
	})
	t.Run("denied", func(t *testing.T) {
		_, conns := early(t, func(o *rigOptions) { o.Tunnels[0].Allow = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} })
		for _, c := range conns {
			expectReset(t, c)
		}
	})
	t.Run("the relay is killed", func(t *testing.T) {
		g, conns := early(t, func(*rigOptions) {})
		for range conns {
			g.accept()
		}
		g.relay.Close() // closes like the kernel, with the armed linger
		for _, c := range conns {
			expectReset(t, c)
		}
	})
	t.Run("prepared once more", func(t *testing.T) {
		var prepared countingTransport
		g, conns := early(t, func(o *rigOptions) { o.Tunnels[0].Transport = &prepared })
		for range conns {
			g.accept()
		}
		g.pair()
		if n := prepared.accepted.Load(); n != 1+clients { // the listener, and the earlier connections
			t.Errorf("%d sockets were prepared, want %d", n, 1+clients)
		}
	})
}

// TestOutOfDescriptors: accepting pauses, flows go on, and accepting recovers.
func TestOutOfDescriptors(t *testing.T) {
	nettest.CheckLeaks(t)
	to := listen(t)
	p := startProcess(t, to, 40)
	g := &rig{t: t, target: to, addr: p.addr}
	c, s := g.pair()
	g.echo()
	const clients = 60
	var conns []*net.TCPConn
	for range clients {
		conns = append(conns, dial(t, g.addr))
	}
	nettest.Eventually(t, patience, func() bool { return strings.Contains(p.log.String(), "accepting is paused") },
		func() string { return "accepting was not paused: " + p.log.String() })
	data := pattern(1_000_000)
	go s.Write(data)
	expect(t, c, data)
	// Every client is served in the end: waiting clients replace leaving ones.
	for i, conn := range conns {
		write(t, conn, data[:1000])
		got := make([]byte, 1000)
		if _, err := io.ReadFull(conn, got); err != nil {
			t.Fatalf("client %d: %v\n%s", i, err, p.log)
		}
		conn.Close()
	}
	nettest.Eventually(t, patience, func() bool { return strings.Contains(p.log.String(), "accepting goes on") },
		func() string { return "accepting did not recover: " + p.log.String() })
	if n := strings.Count(p.log.String(), "accepting is paused"); n > 3 {
		t.Errorf("the pause was logged %d times", n)
	}
	write(t, c, []byte("alive"))
	expect(t, s, []byte("alive"))
}

func TestSnapshotJSON(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, func(o *rigOptions) { o.Tunnels[0].Transport = namedSides{} })
	c, s := g.pair()
	write(t, c, []byte("12345"))
	expect(t, s, []byte("12345"))
	b, err := json.Marshal(g.relay.Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		FlowsNow int `json:"flows_now"`
		Tunnels  []struct {
			Name    string   `json:"name"`
			State   string   `json:"state"`
			Forward []string `json:"forward"`
			BytesUp int      `json:"bytes_up"`
		} `json:"tunnels"`
		Flows []struct {
			State     string            `json:"state"`
			Client    string            `json:"client"`
			BytesUp   int               `json:"bytes_up"`
			ClientLeg map[string]string `json:"client_leg"`
			TargetLeg map[string]string `json:"target_leg"`
		} `json:"flows"`
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if got.FlowsNow != 1 || len(got.Tunnels) != 1 || len(got.Flows) != 1 {
		t.Fatalf("want one flow, one tunnel and one flow now, got %s", b)
	}
	tu, f := got.Tunnels[0], got.Flows[0]
	if tu.Name != "t" || tu.State != "listening" || tu.Forward[0] != addrOf(g.target).String() || tu.BytesUp != 5 {
		t.Errorf("tunnel: %s", b)
	}
	if f.State != "open" || f.Client != c.LocalAddr().String() || f.BytesUp != 5 ||
		f.ClientLeg["side"] != "lan" || f.TargetLeg["side"] != "wan" || f.TargetLeg["degraded"] != "no pacing" {
		t.Errorf("flow: %s", b)
	}
	if n := strings.Count(g.log.String(), "no pacing"); n != 1 {
		t.Errorf("the degraded leg was logged %d times", n)
	}
	c.CloseWrite()
	expectEnd(t, s)
	if st := g.relay.Snapshot().Flows[0].State; st != "client-ended" {
		t.Errorf("a half-closed flow is shown as %s", st)
	}
	s.Close()
	if r := g.flows.one(t); r.ClientLeg.Side != "lan" || r.TargetLeg.Side != "wan" {
		t.Errorf("the record has the sides %q and %q", r.ClientLeg.Side, r.TargetLeg.Side)
	}
}

// countingTransport changes nothing and counts the prepared sockets on the
// clients' side.
type countingTransport struct {
	namedSides
	accepted atomic.Int32
}

func (c *countingTransport) Prepare(_ int, dialed bool) error {
	if !dialed {
		c.accepted.Add(1)
	}
	return nil
}

// namedSides is a transport that changes nothing and reports the dialed leg as
// the WAN leg.
type namedSides struct{}

func (namedSides) Prepare(int, bool) error { return nil }

func (namedSides) Early(bool) bool { return false }

func (namedSides) Established(_ int, dialed bool) (side, degraded string) {
	if dialed {
		return "wan", "no pacing"
	}
	return "lan", ""
}

func (namedSides) Lasting(int, string) error { return nil }

// A leg that outlives its first second gets Lasting exactly once.
func TestLastingLeg(t *testing.T) {
	nettest.CheckLeaks(t)
	lasting := make(chan string, 8)
	g := newStoppedRig(t, func(o *rigOptions) { o.Tunnels[0].Transport = lastingSides{lasting: lasting} })
	g.pair()
	g.flowIs("is open", func(f *flow) bool { return f.phase == phaseMoving })
	g.pass(lastingAge - 1)
	if n := len(lasting); n > 0 {
		t.Errorf("set %d times before the first second has passed", n)
	}
	for range 3 {
		g.pass(time.Second)
	}
	if n := len(lasting); n != 1 {
		t.Fatalf("set %d times, want once", n)
	}
	if side := <-lasting; side != "wan" {
		t.Errorf("the leg was said to be on the side %q", side)
	}
}

type lastingSides struct {
	namedSides
	lasting chan<- string
}

func (l lastingSides) Lasting(_ int, side string) error {
	l.lasting <- side
	return nil
}
