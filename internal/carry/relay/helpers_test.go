package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/carry/relay/monotime"
	"longhaul/test/nettest"
)

const patience = 30 * time.Second // bounds every wait

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		os.Exit(child(role))
	}
	nettest.Main(m)
}

var loopback = netip.MustParseAddr("127.0.0.1")

// freePort requests any port on the loopback address.
var freePort = netip.AddrPortFrom(loopback, 0)

// flowLog collects flow records.
type flowLog struct {
	mu      sync.Mutex
	records []report.Record
}

func (l *flowLog) add(records []report.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, records...)
}

func (l *flowLog) all() []report.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]report.Record(nil), l.records...)
}

// one waits for the first record.
func (l *flowLog) one(t testing.TB) report.Record {
	t.Helper()
	nettest.Eventually(t, patience, func() bool { return len(l.all()) > 0 },
		func() string { return "no flow record was written" })
	return l.all()[0]
}

// logText is a log that tests can wait for.
type logText struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// rig is a relay with one tunnel to a listener that the test serves.
type rig struct {
	t      testing.TB
	relay  *Relay
	flows  *flowLog
	log    *logText
	target *net.TCPListener
	addr   netip.AddrPort
	clock  *stoppedClock // nil: the loops use the real clock
}

// newRig starts a relay in front of a new target. change may change the options.
func newRig(t testing.TB, change func(*rigOptions)) *rig {
	t.Helper()
	g := &rig{t: t, flows: &flowLog{}, log: &logText{}, target: listen(t)}
	opts := rigOptions{
		Options: Options{
			Workers: 2,
			OnFlows: g.flows.add,
			Log:     slog.New(slog.NewTextHandler(g.log, nil)),
		},
		Tunnels: []Tunnel{{Name: "t", Listen: []netip.AddrPort{freePort}, Forward: []hops.Target{targetOf(g.target)}}},
	}
	if change != nil {
		change(&opts)
	}
	r, err := Start(opts.Options, opts.Tunnels)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	g.relay = r
	g.addr = r.Snapshot().Tunnels[0].Listen[0]
	return g
}

// rigOptions are a relay's and the tunnels that it begins with.
type rigOptions struct {
	Options
	Tunnels []Tunnel
}

// setTunnels gives a relay other tunnels.
func setTunnels(r *Relay, tunnels []Tunnel) error {
	c, err := r.Prepare(tunnels)
	if err != nil {
		return err
	}
	return c.Commit()
}

// newStoppedRig starts a relay whose event loops see time pass only by g.pass.
func newStoppedRig(t testing.TB, change func(*rigOptions)) *rig {
	t.Helper()
	clock := &stoppedClock{}
	clock.now.Store(monotime.Now())
	g := newRig(t, func(o *rigOptions) {
		o.clock = clock.now.Load
		if change != nil {
			change(o)
		}
	})
	g.clock = clock
	return g
}

// stoppedClock is a clock moved by the test.
type stoppedClock struct{ now monotime.Atomic }

// pass moves a stopped clock, and returns when the loops have done everything
// due.
func (g *rig) pass(d time.Duration) {
	g.t.Helper()
	g.clock.now.Store(g.clock.now.Load() + d)
	g.turn()
}

// turn makes every event loop process everything ready and due. The first
// command runs before the due work of its turn, the second after it.
func (g *rig) turn() {
	for range 2 {
		for _, w := range g.relay.workers {
			w.do(func() {})
		}
	}
}

// flowIs waits until the only flow is in a state.
func (g *rig) flowIs(what string, is func(*flow) bool) {
	g.t.Helper()
	nettest.Eventually(g.t, patience, func() (so bool) {
		for _, w := range g.relay.workers {
			w.do(func() { w.eachFlow(func(f *flow) { so = so || is(f) }) })
		}
		return so
	}, func() string { return "no flow " + what })
}

func listen(t testing.TB) *net.TCPListener {
	t.Helper()
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

// nobody is an address without a listener.
func nobody(t testing.TB) netip.AddrPort {
	t.Helper()
	return netip.MustParseAddrPort(nettest.FreeAddress(t, loopback.String()))
}

func addrOf(l net.Listener) netip.AddrPort { return l.Addr().(*net.TCPAddr).AddrPort() }

func targetOf(l net.Listener) hops.Target {
	a := addrOf(l)
	return hops.Target{Host: a.Addr().String(), Port: a.Port()}
}

func dial(t testing.TB, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	c, err := tryDial(to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func tryDial(to netip.AddrPort) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: patience}
	d.SetMultipathTCP(false)
	c, err := d.Dial("tcp", to.String())
	if err != nil {
		return nil, err
	}
	tc := c.(*net.TCPConn)
	tc.SetDeadline(time.Now().Add(6 * patience))
	return tc, nil
}

// expectResetOf checks that a connection to an address is reset, even before
// Dial returns.
func expectResetOf(t *testing.T, at netip.AddrPort) {
	t.Helper()
	c, err := tryDial(at)
	if err == nil {
		defer c.Close()
		expectReset(t, c)
	} else if !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
}

func (g *rig) accept() *net.TCPConn {
	g.t.Helper()
	g.target.SetDeadline(time.Now().Add(patience))
	c, err := g.target.AcceptTCP()
	if err != nil {
		g.t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(6 * patience))
	g.t.Cleanup(func() { c.Close() })
	return c
}

// pair opens a flow and returns its two ends.
func (g *rig) pair() (client, target *net.TCPConn) {
	g.t.Helper()
	client = dial(g.t, g.addr)
	return client, g.accept()
}

// drained is the result of Drain.
type drained struct {
	left []Leftover
	err  error
}

// drain begins to drain the relay.
func (g *rig) drain(ctx context.Context) <-chan drained {
	g.t.Helper()
	done := make(chan drained, 1)
	go func() {
		left, err := g.relay.Drain(ctx)
		done <- drained{left, err}
	}()
	nettest.Eventually(g.t, patience, func() bool { return g.relay.Snapshot().Draining },
		func() string { return "the relay does not drain" })
	return done
}

func reset(t testing.TB, c *net.TCPConn) {
	t.Helper()
	if err := errors.Join(c.SetLinger(0), c.Close()); err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, c *net.TCPConn, p []byte) {
	t.Helper()
	if _, err := c.Write(p); err != nil {
		t.Fatal(err)
	}
}

// expect reads exactly these bytes.
func expect(t testing.TB, c *net.TCPConn, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil {
		t.Fatalf("after %d of %d bytes: %v", n, len(want), err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%d bytes differ from what was sent", len(want))
	}
}

func expectEnd(t testing.TB, c *net.TCPConn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Fatalf("read %d bytes, %v; want a clean end", n, err)
	}
}

func expectReset(t testing.TB, c *net.TCPConn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("read %d bytes, %v; want a reset", n, err)
	}
}

// pattern makes bytes in which a lost or displaced byte shows.
func pattern(n int) []byte {
	p := make([]byte, n)
	x := uint32(2463534242)
	for i := range p {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		p[i] = byte(x)
	}
	return p
}

func (g *rig) expectReason(want report.EndReason) report.Record {
	g.t.Helper()
	r := g.flows.one(g.t)
	if r.Reason != want {
		g.t.Fatalf("the flow ended with %q (%v), want %q", r.Reason, r.Err, want)
	}
	return r
}
