package relay

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/hops"
	"longhaul/test/nettest"
)

// sourceNumber is one of the loopback device's addresses.
func sourceNumber(n int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 1, byte(n)}) }

// entryOf counts a new flow of an address.
func entryOf(s *sources, st *tunnelState, from netip.Addr, now time.Duration) entry {
	src := s.of(sourceKey{tunnel: st, from: from}, now)
	return entry{src, src}
}

// dialFrom connects from a given address.
func dialFrom(t testing.TB, from netip.Addr, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	c, err := tryDialFrom(from, to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func tryDialFrom(from netip.Addr, to netip.AddrPort) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: patience, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
	d.SetMultipathTCP(false)
	c, err := d.Dial("tcp", to.String())
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(6 * patience))
	return c.(*net.TCPConn), nil
}

// admitted opens a flow from an address and reports whether it was admitted.
func (g *rig) admitted(from netip.Addr) bool {
	g.t.Helper()
	before := len(g.flows.all())
	refused := func() bool { return len(g.flows.all()) > before }
	c, err := tryDialFrom(from, g.addr)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		g.t.Fatal(err)
	}
	if err == nil {
		g.t.Cleanup(func() { c.Close() })
	}
	// Its record may arrive after the reset, and must not be taken for the next
	// one's.
	nettest.Eventually(g.t, patience, func() bool { return refused() || err == nil && g.has(c) },
		func() string { return "the relay neither takes nor refuses a connection" })
	return !refused()
}

// has reports whether the relay has a flow of this client.
func (g *rig) has(c *net.TCPConn) bool {
	for _, f := range g.relay.Snapshot().Flows {
		if f.Client == c.LocalAddr().(*net.TCPAddr).AddrPort() {
			return true
		}
	}
	return false
}

// TestSourcesShareFlows: one source cannot take all flows of a tunnel. At
// 1818be3 it could, because max_flows did not distinguish sources.
func TestSourcesShareFlows(t *testing.T) {
	for _, test := range []struct {
		name      string
		most, per int
		want      []int // flows per source; each takes as many as it can, one after the other
	}{
		{"a share", 45, 0, []int{40, 4, 1}},
		{"a number", 45, 12, []int{12, 12, 12}},
		{"no bound", 45, -1, []int{45, 0}},
		{"no bound on all", 0, 12, []int{12, 12}},
		{"few", 5, 0, []int{5, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			nettest.CheckLeaks(t)
			g := newRig(t, func(o *rigOptions) { o.Tunnels[0].MaxFlows, o.Tunnels[0].MaxFlowsPerSource = test.most, test.per })
			for n, want := range test.want {
				got := 0
				for got <= want && g.admitted(sourceNumber(n)) {
					got++
				}
				if got != want {
					t.Errorf("source %d gets %d flows, want %d", n, got, want)
				}
			}
		})
	}
}

// TestSourcesShareWhatThereIs: one source may have as many flows as there is
// room for. Then another still gets flows, until the reserve is used up. At
// 1818be3 the other one was refused.
func TestSourcesShareWhatThereIs(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	g.relay.Shed("descriptors", 16, 2)
	for _, source := range []struct{ number, want int }{{0, 16}, {1, 1}, {2, 1}, {3, 0}} {
		got := 0
		for got <= source.want && g.admitted(sourceNumber(source.number)) {
			got++
		}
		if got != source.want {
			t.Errorf("source %d gets %d flows, want %d", source.number, got, source.want)
		}
	}
	if s := g.relay.Overview(); s.Shedding != "descriptors" || s.Tunnels[0].ShedBy["descriptors"] != 4 {
		t.Errorf("want 4 connections shed for want of descriptors, the relay is %+v", s)
	}
}

// TestSourcesShareRates: a source that requests more new flows than the rate
// allows leaves some to others.
func TestSourcesShareRates(t *testing.T) {
	const second = time.Second
	for _, test := range []struct {
		name       string
		total, per float64
		hogs       int
		each       [2]int // least and most that each hog gets in a second
		newcomer   bool
	}{
		{"alone", 90, 0, 1, [2]int{80, 95}, true},
		{"ten", 900, 0, 10, [2]int{80, 100}, true},
		{"a number", 900, 20, 2, [2]int{20, 25}, true},
		{"no bound", 90, -1, 1, [2]int{85, 95}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			tun := &Tunnel{NewFlowsPerSecond: test.total, NewFlowsPerSecondPerSource: test.per}
			var s sources
			st := &tunnelState{}
			got := make([]int, test.hogs)
			for now := second; now < 6*second; now += second / 1000 {
				for n := range got {
					if s.rateAllows(tun, st, entryOf(&s, st, sourceNumber(n), now), now) && now >= 5*second {
						got[n]++
					}
				}
			}
			for n, got := range got {
				if got < test.each[0] || got > test.each[1] {
					t.Errorf("source %d gets %d new flows in a second, want %d to %d", n, got, test.each[0], test.each[1])
				}
			}
			now := 6*second - second/1000
			if came := s.rateAllows(tun, st, entryOf(&s, st, sourceNumber(100), now), now); came != test.newcomer {
				t.Errorf("a newcomer is let in: %v", came)
			}
		})
	}
}

// TestSourcesAreForgotten: a source without flows does not stay in memory for
// long.
func TestSourcesAreForgotten(t *testing.T) {
	var s sources
	st := &tunnelState{}
	stays := s.of(sourceKey{tunnel: st, from: loopback}, 1)
	for n := range 100_000 {
		now := time.Duration(n) * time.Millisecond
		s.of(sourceKey{tunnel: st, from: netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})}, now).flows.Add(-1)
	}
	if len(s.all) > 4*minSources {
		t.Errorf("%d sources are kept", len(s.all))
	}
	if again := s.of(sourceKey{tunnel: st, from: loopback}, 1); again != stays {
		t.Error("a source with a flow was forgotten")
	}
}

// hoard opens a flow from an address, asks for more than fits, and reads
// nothing.
func (g *rig) hoard(from netip.Addr) *net.TCPConn {
	g.t.Helper()
	c := dialFrom(g.t, from, g.addr)
	s := g.accept()
	go func() { _, _ = io.Copy(s, zeros{}) }() // until the flow ends
	return c
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// TestHoarders: clients that request much and read nothing lock out no other
// client, and lose their flows. At 1818be3 six of them, with a limit of 16 MiB,
// stopped every tunnel from accepting for good.
func TestHoarders(t *testing.T) {
	nettest.CheckLeaks(t)
	other := listen(t)
	g := newStoppedRig(t, func(o *rigOptions) {
		o.MemoryLimitBytes = 16 * mib
		o.Tunnels = append(o.Tunnels, Tunnel{Name: "other", Listen: []netip.AddrPort{freePort}, Forward: []hops.Target{targetOf(other)}})
	})
	served := func(when string) {
		t.Helper()
		c := dialFrom(t, sourceNumber(200), g.addr)
		s := g.accept()
		write(t, c, []byte(when))
		expect(t, s, []byte(when))
		write(t, s, []byte("yes"))
		expect(t, c, []byte("yes"))
		c.Close()

		c = dialFrom(t, sourceNumber(200), g.relay.Snapshot().Tunnels[1].Listen[0])
		o := &rig{t: t, target: other}
		s = o.accept()
		write(t, s, []byte(when))
		expect(t, c, []byte(when))
		c.Close()
	}
	var hoarders []*net.TCPConn
	for range 6 {
		hoarders = append(hoarders, g.hoard(loopback))
	}
	full := func() bool {
		g.pass(time.Millisecond)
		m := *g.relay.Snapshot().Memory
		return m.Short && m.UsedBytes > m.LimitBytes*7/8
	}
	nettest.Eventually(t, patience, full, func() string { return fmt.Sprintf("memory does not fill: %+v", g.relay.Snapshot().Memory) })
	served("while memory is short")
	if state := g.relay.Snapshot().Tunnels[0].State; state != "listening" {
		t.Errorf("the tunnel is %s", state)
	}
	if n := g.relay.Flows(); n < 6 {
		t.Fatalf("%d flows: some were reset before their time", n)
	}
	g.pass(DefaultStallTimeout)
	g.look()
	var stalled []report.Record
	for _, r := range g.flows.all() {
		if r.Reason == report.EndStalled {
			stalled = append(stalled, r)
		}
	}
	if len(stalled) == 0 {
		t.Fatalf("no flow is reset: %+v", g.flows.all())
	}
	if m := g.relay.Snapshot().Memory; float64(m.UsedBytes) > memoryShort*float64(m.LimitBytes) {
		t.Errorf("%d of %d bytes are held still, %d flows were reset", m.UsedBytes, m.LimitBytes, len(stalled))
	}
	if len(stalled) == len(hoarders) {
		t.Errorf("all %d were reset, more than had to be", len(stalled))
	}
	served("afterwards")
	nettest.Eventually(t, patience, func() bool { g.look(); return g.admitted(loopback) },
		func() string { return "the source of those that were reset is kept out" })
}

// TestPatienceWithStalledFlows: the more memory is used, the sooner one is reset.
func TestPatienceWithStalledFlows(t *testing.T) {
	var g memoryGuard
	g.limit.Store(1000)
	for _, test := range []struct {
		used    int64
		timeout time.Duration
		want    time.Duration
	}{
		{749, time.Minute, 0},
		{750, time.Minute, time.Minute},
		{1000, time.Minute, stallFull},
		{1500, time.Minute, stallOver},
		{1000, time.Second / 2, time.Second / 2},
		{9000, -1, 0},
	} {
		if got := g.patience(test.timeout, test.used); got != test.want {
			t.Errorf("with %d of 1000 used and a timeout of %v: %v, want %v", test.used, test.timeout, got, test.want)
		}
	}
}
