package relay

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/carry/relay/names"
	"longhaul/test/nettest"
)

// follow starts a relay that takes over another's sockets, as a succeeding
// process would, and makes the other relinquish them.
func (g *rig) follow(t *testing.T, tunnels []Tunnel) *Relay {
	t.Helper()
	handed, err := g.relay.Listeners()
	if err != nil {
		t.Fatal(err)
	}
	next, err := Start(Options{Workers: 2, Listeners: handed, Drained: g.relay.Drained(), OnFlows: g.flows.add}, tunnels)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(next.Close)
	for _, l := range handed {
		l.File.Close()
	}
	if err := g.relay.Relinquish(); err != nil {
		t.Fatal(err)
	}
	next.Sweep()
	return next
}

// TestHandOverUnderLoad: relays succeed each other while clients connect, and
// one flow of each moves bytes. No client notices.
func TestHandOverUnderLoad(t *testing.T) {
	nettest.CheckLeaks(t)
	g := fixed(t)
	g.echo()
	tunnels := []Tunnel{{Name: "t", Listen: []netip.AddrPort{g.addr}, Forward: []hops.Target{targetOf(g.target)}}}
	stop := make(chan struct{})
	var clients, draining sync.WaitGroup
	var served atomic.Int64
	for i := range 4 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := exchange(g.addr, uint64(i), 3_000); err != nil {
					t.Errorf("a client failed: %v", err)
					return
				}
				served.Add(1)
			}
		})
	}
	data := pattern(10_000)
	long := dial(t, g.addr)
	write(t, long, data)
	expect(t, long, data)
	const rounds = 40
	for range rounds {
		for before := served.Load(); served.Load() == before && !t.Failed(); { // clients come and go in between
			write(t, long, data)
			expect(t, long, data)
		}
		old := g.relay
		g.relay = g.follow(t, tunnels)
		if _, err := old.Listeners(); !errors.Is(err, ErrClosed) {
			t.Fatalf("a relay that has left its sockets says %v", err)
		}
		draining.Go(func() {
			if left, err := old.Drain(context.Background()); len(left) > 0 || err != nil {
				t.Errorf("%+v are left, %v", left, err)
			}
			old.Close()
		})
		// A single client shows whether a connection is forgotten in the queue:
		// no later one wakes a loop.
		if err := exchange(g.addr, 9, 100); err != nil {
			t.Fatal(err)
		}
		write(t, long, data)
		expect(t, long, data)
	}
	close(stop)
	clients.Wait()
	long.Close()
	draining.Wait()
	runtime.GC() // frees the pipes of the clients' splicing
	runtime.GC()
	t.Logf("%d clients were served by %d relays in turn", served.Load(), rounds+1)
}

// TestHandOverLosesNoConnection: the next relay accepts the connections that
// wait while no relay accepts.
func TestHandOverLosesNoConnection(t *testing.T) {
	nettest.CheckLeaks(t)
	g := fixed(t)
	release := make(chan struct{})
	for _, w := range g.relay.workers {
		w.post(func() { <-release })
	}
	handed, err := g.relay.Listeners()
	if err != nil {
		t.Fatal(err)
	}
	waiting := dial(t, g.addr) // the kernel wakes a stuck loop
	left := make(chan error, 1)
	go func() { left <- g.relay.Relinquish() }()
	// Its loops drop their listeners before they see any event.
	close(release)
	if err := <-left; err != nil {
		t.Fatal(err)
	}
	renamed := []Tunnel{{Name: "renamed", Listen: []netip.AddrPort{g.addr}, Forward: []hops.Target{targetOf(g.target)}}}
	next, err := Start(Options{Workers: 1, Listeners: handed}, renamed)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	for _, l := range handed {
		l.File.Close()
	}
	next.Sweep()
	s := g.accept()
	write(t, waiting, []byte("x"))
	expect(t, s, []byte("x"))
}

// TestHandOverOfOtherAddresses: the next relay takes the sockets of its tunnels
// and binds new addresses. Other sockets end when the files are closed.
func TestHandOverOfOtherAddresses(t *testing.T) {
	nettest.CheckLeaks(t)
	fresh := nobody(t)
	gone := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.3"), fresh.Port())
	g := newRig(t, func(o *rigOptions) {
		o.Tunnels[0].Listen = append(o.Tunnels[0].Listen, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), 0))
		o.Tunnels = append(o.Tunnels,
			Tunnel{Name: "gone", Listen: []netip.AddrPort{gone}, Forward: o.Tunnels[0].Forward},
			Tunnel{Name: "drained", Listen: []netip.AddrPort{{}}, Forward: o.Tunnels[0].Forward})
		o.Tunnels[2].Listen[0] = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.4"), fresh.Port())
	})
	if err := g.relay.DrainTunnel("drained"); err != nil {
		t.Fatal(err)
	}
	before := g.relay.Snapshot()
	drained := before.Tunnels[2].Listen[0]
	forward := []hops.Target{targetOf(g.target)}
	old := g.relay
	g.relay = g.follow(t, []Tunnel{
		{Name: "t", Listen: []netip.AddrPort{freePort, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), 0)}, Forward: forward},
		{Name: "new", Listen: []netip.AddrPort{fresh}, Forward: forward},
		{Name: "drained", Listen: []netip.AddrPort{drained}, Forward: forward},
	})
	old.Close()
	after := g.relay.Snapshot()
	for i := range 2 {
		if before.Tunnels[0].Listen[i] != after.Tunnels[0].Listen[i] {
			t.Errorf("a free port was %v and is %v", before.Tunnels[0].Listen[i], after.Tunnels[0].Listen[i])
		}
	}
	for _, addr := range append(after.Tunnels[0].Listen, fresh) {
		c := dial(t, addr)
		s := g.accept()
		write(t, c, []byte("x"))
		expect(t, s, []byte("x"))
	}
	expectRefused(t, gone, "a tunnel that is gone")
	expectRefused(t, drained, "a tunnel that was drained before")
	if err := g.relay.ResumeTunnel("drained"); err != nil {
		t.Fatal(err)
	}
	dial(t, drained)
	g.accept()
}

// TestHopMemory: the next relay does not prefer hops that this one knows to be
// unusable, and restores them as this one would.
func TestHopMemory(t *testing.T) {
	nettest.CheckLeaks(t)
	good := listen(t)
	dead := nobody(t)
	to := func(a netip.AddrPort) hops.Target { return hops.Target{Host: a.Addr().String(), Port: a.Port()} }
	tunnels := func() []Tunnel {
		checked := hops.Health{Probe: hops.ConnectProbe{}, Interval: 20 * time.Millisecond, Timeout: patience, Fall: 1, Rise: 1}
		unchecked := hops.Health{EjectAfter: 1, EjectFor: time.Hour, Interval: time.Hour}
		second := addrOf(good)
		return []Tunnel{
			{Name: "checked", Listen: []netip.AddrPort{freePort}, Forward: []hops.Target{to(dead), to(second)}, Health: checked},
			{Name: "ejected", Listen: []netip.AddrPort{freePort}, Forward: []hops.Target{to(dead), to(second)}, Health: unchecked},
			{Name: "drained", Listen: []netip.AddrPort{freePort}, Forward: []hops.Target{to(dead), to(second)}, Health: unchecked},
		}
	}
	g := newRig(t, func(o *rigOptions) { o.Tunnels = tunnels() })
	g.target = good
	if _, err := g.relay.DrainHop("drained", to(dead).String(), true); err != nil {
		t.Fatal(err)
	}
	states := func() string {
		var all []string
		for _, tunnel := range g.relay.Snapshot().Tunnels {
			all = append(all, string(tunnel.Hops[0].State))
		}
		return strings.Join(all, " ")
	}
	g.addr = g.relay.Snapshot().Tunnels[1].Listen[0]
	g.pair() // discovers that the first hop refuses
	nettest.Eventually(t, patience, func() bool {
		return states() == "down ejected drained" && len(g.relay.Hops()) == 5 // the check of the second hop has passed too
	}, states)

	knew := g.relay.Hops()
	old := g.relay
	handed, err := old.Listeners()
	if err != nil {
		t.Fatal(err)
	}
	next := tunnels()
	next[0].Health.Interval = time.Hour // the next relay cannot discover it by itself
	if g.relay, err = Start(Options{Workers: 1, Listeners: handed, Hops: knew}, next); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.relay.Close)
	for _, l := range handed {
		l.File.Close()
	}
	if got := states(); got != "down ejected drained" {
		t.Errorf("the next relay begins with %s", got)
	}
	if again := g.relay.Hops(); len(again) != 5 || again[2].Ejections != 1 || again[2].EjectedFor <= 0 || again[2].EjectedFor > knew[2].EjectedFor || !again[3].Worked || again[0].Reason == "" {
		t.Errorf("knows %+v of %+v", again, knew)
	}
	if err := old.Relinquish(); err != nil {
		t.Fatal(err)
	}
	old.Close()

	// Without probes nothing would bring the hop back, so it is not down.
	next[0].Health.Probe = nil
	other, err := Start(Options{Workers: 1, Hops: knew}, next[:1])
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if s := other.Snapshot().Tunnels[0].Hops[0].State; s != report.HopUntried {
		t.Errorf("without checks the hop is %s", s)
	}
}

// TestNameMemory: the next relay has the names of this one, even if no name
// server answers.
func TestNameMemory(t *testing.T) {
	nettest.CheckLeaks(t)
	to := listen(t)
	asked := atomic.Int64{}
	forward := []hops.Target{{Host: "far.example", Port: addrOf(to).Port()}}
	tunnels := []Tunnel{{Name: "t", Listen: []netip.AddrPort{freePort}, Forward: forward}}
	g := newRig(t, func(o *rigOptions) {
		o.Tunnels = tunnels
		o.Resolve = func(context.Context, string) (names.Answer, error) {
			asked.Add(1)
			return names.Answer{Addrs: []netip.Addr{loopback}, TTL: time.Minute}, nil
		}
	})
	g.target = to
	g.pair()
	knew := g.relay.Names()
	if len(knew) != 1 || knew[0].Host != "far.example" || knew[0].Until > time.Minute || knew[0].Until <= 0 || asked.Load() != 1 {
		t.Fatalf("after %d questions it knows %+v", asked.Load(), knew)
	}
	for _, runOut := range []bool{false, true} {
		if runOut {
			knew[0].Refresh, knew[0].Until = -time.Minute, -time.Second
		}
		next, err := Start(Options{Workers: 1, Names: knew, Resolve: func(context.Context, string) (names.Answer, error) {
			return names.Answer{}, errors.New("no name server answers")
		}}, tunnels)
		if err != nil {
			t.Fatal(err)
		}
		g.addr = next.Snapshot().Tunnels[0].Listen[0]
		c, s := g.pair()
		write(t, c, []byte("x"))
		expect(t, s, []byte("x"))
		next.Close()
	}
}

// TestReclaim restores shared sockets that another process has changed.
func TestReclaim(t *testing.T) {
	nettest.CheckLeaks(t)
	g := fixed(t)
	handed, err := g.relay.Listeners()
	if err != nil {
		t.Fatal(err)
	}
	fd := int(handed[0].File.Fd())
	defer handed[0].File.Close()
	setLinger(fd, false)
	if err := unix.Shutdown(fd, unix.SHUT_RDWR); err != nil {
		t.Fatal(err)
	}
	expectRefused(t, g.addr, "another process has shut it")
	if err := g.relay.Reclaim(); err != nil {
		t.Fatal(err)
	}
	c, s := g.pair()
	reset(t, s) // the zero linger is armed again
	expectReset(t, c)

	if err := g.relay.DrainTunnel("t"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		t.Fatal(err)
	}
	dial(t, g.addr)
	if err := g.relay.Reclaim(); err != nil {
		t.Fatal(err)
	}
	expectRefused(t, g.addr, "drained, and another process had it listen")
	if err := g.relay.ResumeTunnel("t"); err != nil {
		t.Fatal(err)
	}
	g.pair()
}
