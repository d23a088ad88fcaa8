package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/proxyproto"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/carry/relay/names"
	"longhaul/test/nettest"
)

// testHello begins a check.
const testHello = "CHECK-ME"

// testIntegrityServer lets the test answer checks.
type testIntegrityServer struct {
	came chan *testIntegrityCheck
}

// testIntegrityCheck is a check that waits for the test's verdict.
type testIntegrityCheck struct {
	IntegrityCheck
	ctx  context.Context
	goOn chan bool
}

func newIntegrityServer() *testIntegrityServer {
	return &testIntegrityServer{make(chan *testIntegrityCheck, 100)}
}

func (*testIntegrityServer) Recognize(first []byte) Recognition {
	n := min(len(first), len(testHello))
	switch {
	case string(first[:n]) != testHello[:n]:
		return NoHello
	case n < len(testHello):
		return MaybeHello
	}
	return IsHello
}

func (c *testIntegrityServer) Serve(ctx context.Context, flow IntegrityCheck) bool {
	check := &testIntegrityCheck{IntegrityCheck: flow, ctx: ctx, goOn: make(chan bool, 1)}
	c.came <- check
	select {
	case goOn := <-check.goOn:
		return goOn
	case <-ctx.Done():
		return false
	}
}

// next waits for a check.
func (c *testIntegrityServer) next(t *testing.T) *testIntegrityCheck {
	t.Helper()
	select {
	case check := <-c.came:
		_ = check.Client.SetDeadline(time.Now().Add(patience))
		if check.Target != nil {
			_ = check.Target.SetDeadline(time.Now().Add(patience))
		}
		return check
	case <-time.After(patience):
		t.Fatal("no check came")
		return nil
	}
}

func integrityRig(t *testing.T, change func(*rigOptions)) (*rig, *testIntegrityServer) {
	t.Helper()
	return integrityRigOf(t, newRig, change)
}

// stoppedIntegrityRig stops the clock, so that a hello has unlimited time.
func stoppedIntegrityRig(t *testing.T, change func(*rigOptions)) (*rig, *testIntegrityServer) {
	t.Helper()
	return integrityRigOf(t, newStoppedRig, change)
}

func integrityRigOf(t *testing.T, rigOf func(testing.TB, func(*rigOptions)) *rig, change func(*rigOptions)) (*rig, *testIntegrityServer) {
	t.Helper()
	server := newIntegrityServer()
	return rigOf(t, func(o *rigOptions) {
		o.Tunnels[0].Integrity = server
		if change != nil {
			change(o)
		}
	}), server
}

func readFile(t *testing.T, f *os.File, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(f, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v, want %q", got[:n], err, want)
	}
}

func TestIntegrityCheckIsServed(t *testing.T) {
	nettest.CheckLeaks(t)
	g, server := integrityRig(t, nil)
	c, s := g.pair()
	write(t, c, []byte(testHello+"?"))
	check := server.next(t)
	if from := c.LocalAddr().(*net.TCPAddr).AddrPort(); check.From != from || check.Source != from.Addr() || check.Listen != g.addr || check.Dialed != addrOf(g.target) ||
		check.Forward != addrOf(g.target).String() || check.End != "" || check.Sent != 0 || check.ToClient != nil || check.ToTarget != nil {
		t.Errorf("the check is of %+v", check.IntegrityCheck)
	}
	if fd := int(check.Target.Fd()); getsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY) == 0 {
		t.Error("the target's socket has Nagle's algorithm")
	}
	readFile(t, check.Client, testHello+"?")
	if _, err := check.Client.WriteString("well"); err != nil {
		t.Fatal(err)
	}
	expect(t, c, []byte("well"))
	if flows := g.relay.Snapshot().Flows; len(flows) != 1 || flows[0].State != "check" {
		t.Errorf("flows: %+v", flows)
	}
	check.goOn <- false
	expectEnd(t, c) // and the target sees an end, after no byte
	expectEnd(t, s)
	r := g.expectReason(report.EndCheck)
	if r.Err != nil || r.BytesUp != 0 || r.BytesDown != 0 {
		t.Errorf("the record of an answered check is %+v", r)
	}
	if ts := g.relay.Snapshot().Tunnels[0]; ts.Errors+ts.Refused+ts.Denied+ts.Limited != 0 || ts.Checks != 1 || ts.FlowsNow != 0 {
		t.Errorf("counters: %+v", ts)
	}
}

func TestIntegrityCheckGoesOn(t *testing.T) {
	nettest.CheckLeaks(t)
	g, server := integrityRig(t, nil)
	c, s := g.pair()
	write(t, c, []byte(testHello))
	check := server.next(t)
	readFile(t, check.Client, testHello)
	check.goOn <- true

	// A second hello is a flow's bytes like any other, and bulk is spliced.
	data := append([]byte(testHello), pattern(3<<20)...)
	var both sync.WaitGroup
	for _, ends := range [][2]*net.TCPConn{{c, s}, {s, c}} {
		both.Go(func() { _, _ = ends[0].Write(data); ends[0].CloseWrite() })
		both.Go(func() {
			got, err := io.ReadAll(ends[1])
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, %v, want %d", len(got), err, len(data))
			}
		})
	}
	both.Wait()
	if r := g.expectReason(report.EndCheck); r.BytesUp != int64(len(data)) || r.BytesDown != int64(len(data)) {
		t.Errorf("the record of a check that went on is %+v", r)
	}
}

// Bytes that only begin like a check reach the target unchanged, after the time
// for a hello.
func TestNoIntegrityCheck(t *testing.T) {
	nettest.CheckLeaks(t)
	g, server := stoppedIntegrityRig(t, nil)
	for _, text := range []string{"hello", "C", "CHECK-", "CHECK-YOU", strings.Repeat("CHECK-", 100)} {
		c, s := g.pair()
		write(t, c, []byte(text))
		if strings.HasPrefix(testHello, text) {
			g.flowIs("waits for the rest of a hello", func(f *flow) bool { return f.hello == MaybeHello && f.holdUntil != 0 })
			g.pass(helloHold)
		}
		expect(t, s, []byte(text))
		write(t, c, []byte(testHello)) // too late to be one
		expect(t, s, []byte(testHello))
		write(t, s, []byte("reply"))
		expect(t, c, []byte("reply"))
		c.Close()
	}
	// In pieces, and with the end right behind.
	c, s := g.pair()
	for _, b := range []byte("CHECK-YOU") {
		write(t, c, []byte{b})
	}
	expect(t, s, []byte("CHECK-YOU"))
	c, s = g.pair()
	write(t, c, []byte("CHEC"))
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	expect(t, s, []byte("CHEC"))
	expectEnd(t, s)
	c, s = g.pair()
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	expectEnd(t, s)
	if len(server.came) != 0 {
		t.Error("one of them was taken for a check")
	}
}

// TestResetUnderLook: the client resets while its first bytes are peeked. Like
// a read, a peek consumes the socket's error, and the next read returns an end.
func TestResetUnderLook(t *testing.T) {
	nettest.CheckLeaks(t)
	for _, tt := range []struct{ name, first string }{{"nothing", ""}, {"part of a hello", testHello[:3]}} {
		t.Run(tt.name, func(t *testing.T) {
			g, _ := integrityRig(t, nil)
			for range 50 {
				c, s := g.pair()
				write(t, c, []byte(tt.first))
				reset(t, c)
				s.SetReadDeadline(time.Now().Add(patience))
				if got, err := io.ReadAll(s); !errors.Is(err, syscall.ECONNRESET) {
					t.Fatalf("the target read %q and then %v", got, err)
				}
				s.Close()
			}
			nettest.Eventually(t, patience, func() bool { return len(g.flows.all()) == 50 }, func() string { return "flows are left" })
			for _, rec := range g.flows.all() {
				if rec.Reason != report.EndClientReset {
					t.Fatalf("want a reset by the client, the record is %+v", rec)
				}
			}
		})
	}
}

func TestIntegrityCheckInPieces(t *testing.T) {
	nettest.CheckLeaks(t)
	g, server := stoppedIntegrityRig(t, nil)
	c, _ := g.pair()
	for _, b := range []byte(testHello) {
		write(t, c, []byte{b})
	}
	check := server.next(t)
	readFile(t, check.Client, testHello)
	check.goOn <- false
	expectEnd(t, c)
}

// The target speaks first. Its bytes do not wait for the client, and a later
// check gets them in order.
func TestIntegrityCheckBehindGreeting(t *testing.T) {
	nettest.CheckLeaks(t)
	g, server := integrityRig(t, nil)
	c, s := g.pair()
	write(t, s, []byte("220 ready\r\n"))
	expect(t, c, []byte("220 ready\r\n"))
	write(t, c, []byte(testHello))
	check := server.next(t)
	if check.Sent != 11 || len(check.ToClient) != 0 {
		t.Errorf("want 11 bytes sent and none to send, the check is %+v", check.IntegrityCheck)
	}
	check.goOn <- true
	write(t, s, []byte("still there"))
	expect(t, c, []byte("still there"))
	expect(t, s, []byte(testHello)) // nobody has read it
}

// The target floods a client that does not read. The bytes in the relay go to
// the client first.
func TestIntegrityCheckBehindFlood(t *testing.T) {
	nettest.CheckLeaks(t)
	g, server := integrityRig(t, nil)
	c, s := g.pair()
	data := pattern(64 << 20)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = s.Write(data)
		_ = s.CloseWrite()
	}()
	nettest.Eventually(t, patience, func() bool { return g.relay.Snapshot().Flows[0].HeldDown > 0 },
		func() string { return "the relay holds nothing" })
	write(t, c, []byte(testHello))
	check := server.next(t)
	if len(check.ToClient) == 0 || check.Sent == 0 {
		t.Fatalf("%d bytes were sent, and %d are held", check.Sent, len(check.ToClient))
	}
	go func() {
		_, _ = check.Client.Write(check.ToClient)
		check.goOn <- true
	}()
	expect(t, c, data)
	expectEnd(t, c)
	<-sent
}

func TestIntegrityCheckOfWhatCannotBeReached(t *testing.T) {
	nettest.CheckLeaks(t)
	dead := nobody(t)
	quiet := silent(t)
	for _, tt := range []struct {
		name   string
		change func(*Tunnel, *rigOptions)
		want   report.EndReason
		err    error
		waits  bool
	}{
		{"refused", func(tn *Tunnel, _ *rigOptions) { tn.Forward = forward(dead) }, report.EndTargetRefused, syscall.ECONNREFUSED, false},
		{"silent", func(tn *Tunnel, _ *rigOptions) { tn.Forward = forward(quiet) }, report.EndTargetUnreached, syscall.ETIMEDOUT, true},
		{"unresolved", func(tn *Tunnel, o *rigOptions) {
			tn.Forward = []hops.Target{{Host: "nowhere.test", Port: 1}}
			o.Resolve = func(ctx context.Context, _ string) (names.Answer, error) {
				<-ctx.Done()
				return names.Answer{}, ctx.Err()
			}
		}, report.EndTargetUnknown, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g, server := stoppedIntegrityRig(t, func(o *rigOptions) { tt.change(&o.Tunnels[0], o) })
			c := dial(t, g.addr)
			write(t, c, []byte(testHello))
			if tt.waits { // for the target, but not as long as an ordinary flow
				g.flowIs("was found to be a check", func(f *flow) bool { return f.hello == IsHello })
				g.pass(integrityConnect - 1)
				if len(server.came) != 0 {
					t.Error("the check gave the target up before its time")
				}
				g.pass(1)
			}
			check := server.next(t)
			if check.Target != nil || check.End != tt.want || check.Err == nil || tt.err != nil && !errors.Is(check.Err, tt.err) {
				t.Errorf("want no target and why, the check is %+v", check.IntegrityCheck)
			}
			readFile(t, check.Client, testHello)
			check.goOn <- true // which it cannot
			expectEnd(t, c)
			g.expectReason(report.EndCheck)
			if ts := g.relay.Snapshot().Tunnels[0]; ts.Refused+ts.Errors != 0 {
				t.Errorf("counters: %+v", ts)
			}
		})
	}
	// Other flows are reset: at once if they sent something else, later if they
	// sent nothing.
	g, server := stoppedIntegrityRig(t, func(o *rigOptions) { o.Tunnels[0].Forward = forward(dead) })
	for _, text := range []string{"", "hello", "CHEC"} {
		c, err := tryDial(g.addr)
		if err == nil {
			if text != "" {
				_, err = c.Write([]byte(text))
			}
			if err == nil {
				if strings.HasPrefix(testHello, text) {
					g.flowIs("is awaited", func(f *flow) bool { return f.phase == phaseAwaiting })
					g.pass(helloAwaited)
				}
				_, err = c.Read(make([]byte, 1))
			}
			c.Close()
		}
		if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			t.Errorf("after %q: %v, want a reset", text, err)
		}
	}
	nettest.Eventually(t, patience, func() bool { return g.relay.Snapshot().Tunnels[0].Refused == 3 },
		func() string { return fmt.Sprintf("%+v", g.relay.Snapshot().Tunnels[0]) })
	if len(server.came) != 0 {
		t.Error("one of them was taken for a check")
	}
}

// The number of clients that may still be checks is bounded while no target
// accepts.
func TestAwaitedChecksHaveABound(t *testing.T) {
	nettest.CheckLeaks(t)
	dead := nobody(t)
	g, _ := stoppedIntegrityRig(t, func(o *rigOptions) { o.Tunnels[0].Forward = forward(dead) })
	awaited := &g.relay.table.Load().tunnels[0].state.integrity.awaited
	awaited.Store(maxAwaitedHellos)
	if !refused(t, g.addr) { // at once: the clock stands
		t.Error("one client more than may be awaited is not reset")
	}
	awaited.Store(0)
	c := dial(t, g.addr)
	nettest.Eventually(t, patience, func() bool { return awaited.Load() == 1 }, func() string { return "a client is not awaited" })
	g.pass(helloAwaited)
	expectReset(t, c)
	if n := awaited.Load(); n != 0 {
		t.Errorf("%d clients are awaited after their time", n)
	}
}

// A target that accepts and resets may do so before the hello is seen, or after.
func TestIntegrityCheckOfTargetThatResets(t *testing.T) {
	nettest.CheckLeaks(t)
	g, server := integrityRig(t, nil)
	for range 20 {
		n := len(g.flows.all())
		c := dial(t, g.addr)
		_, _ = c.Write([]byte(testHello)) // the reset may have been passed on already
		reset(t, g.accept())
		nettest.Eventually(t, patience, func() bool { return len(g.flows.all()) > n || len(server.came) > 0 },
			func() string { return "nothing happens" })
		if len(server.came) == 0 {
			continue
		}
		check := server.next(t)
		if check.Target == nil && check.End != report.EndTargetReset {
			t.Errorf("a check without a target, for another reason than its reset: %+v", check.IntegrityCheck)
		}
		check.goOn <- true
		nettest.Eventually(t, patience, func() bool { return len(g.flows.all()) > n }, func() string { return "it does not end" })
	}
}

func TestIntegrityCheckBehindProxyHeader(t *testing.T) {
	nettest.CheckLeaks(t)
	proxied := func(o *rigOptions) {
		o.Tunnels[0].ProxyIn = ProxyIn{Required: true}
		o.Tunnels[0].ProxyOut = ProxyV2
	}
	header := proxyproto.AppendHeader(nil, 1, proxyproto.Header{
		Source: netip.MustParseAddrPort("192.0.2.1:1234"), Destination: netip.MustParseAddrPort("192.0.2.2:5678"),
	})
	onward := proxyproto.Header{
		Source: netip.MustParseAddrPort("192.0.2.1:1234"), Destination: netip.MustParseAddrPort("192.0.2.2:5678"),
	}
	named := string(namedHeader(onward, uniqueID))
	for _, pieces := range [][]string{
		{string(header) + testHello},
		{string(header), testHello},
		{string(header[:9]), string(header[9:]) + testHello[:3], testHello[3:]},
		{named + testHello},
		{named[:40], named[40:] + testHello[:3], testHello[3:]},
	} {
		g, server := stoppedIntegrityRig(t, proxied)
		c := dial(t, g.addr)
		for _, piece := range pieces {
			write(t, c, []byte(piece))
		}
		s := g.accept()
		check := server.next(t)
		if check.From != netip.MustParseAddrPort("192.0.2.1:1234") {
			t.Errorf("from %v", check.From)
		}
		readFile(t, check.Client, testHello)
		if _, err := check.Target.Write(check.ToTarget); err != nil {
			t.Fatal(err)
		}
		check.goOn <- true
		write(t, c, []byte("data"))
		expectHeader(t, s, onward) // once
		expect(t, s, []byte("data"))
		c.Close()
	}
	// A header with bytes of a flow behind it.
	g, _ := integrityRig(t, proxied)
	c := dial(t, g.addr)
	write(t, c, append(bytes.Clone(header), "data"...))
	s := g.accept()
	expectHeader(t, s, onward)
	expect(t, s, []byte("data"))
}

// The end of the relay ends its checks.
func TestCloseEndsChecks(t *testing.T) {
	nettest.CheckLeaks(t)
	g, server := integrityRig(t, nil)
	c, s := g.pair()
	write(t, c, []byte(testHello))
	check := server.next(t)
	g.relay.Close()
	<-check.ctx.Done()
	expectReset(t, c)
	expectReset(t, s)
	if r := g.expectReason(report.EndCheck); r.Tunnel != "t" {
		t.Errorf("the record of a check that the relay ended is %+v", r)
	}
}

// A drain waits for a check as for any flow, and its deadline ends the check.
func TestDrainWaitsForChecks(t *testing.T) {
	nettest.CheckLeaks(t)
	g, server := integrityRig(t, nil)
	c, _ := g.pair()
	write(t, c, []byte(testHello))
	check := server.next(t)
	ctx, cancel := context.WithCancel(t.Context())
	drained := make(chan int)
	go func() {
		left, _ := g.relay.Drain(ctx)
		drained <- len(left)
	}()
	nettest.Eventually(t, patience, func() bool { return g.relay.Snapshot().Draining }, func() string { return "it does not drain" })
	cancel()
	if left := <-drained; left != 1 {
		t.Errorf("%d were left", left)
	}
	<-check.ctx.Done()
	expectReset(t, c)
}

// BenchmarkPeekHello measures the cost of an integrity server per flow.
func BenchmarkPeekHello(b *testing.B) {
	g := newRig(b, nil)
	l := listen(b)
	c := dial(b, addrOf(l))
	server, err := l.AcceptTCP()
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	write(b, c, pattern(64))
	raw, err := server.SyscallConn()
	if err != nil {
		b.Fatal(err)
	}
	w := g.relay.workers[0]
	var f flow
	f.route = &route{tunnel: &Tunnel{Integrity: newIntegrityServer()}}
	_ = raw.Control(func(fd uintptr) { f.legs[client].fd = int32(fd) })
	w.do(func() {
		for b.Loop() {
			w.peekHello(&f)
		}
	})
	if f.hello != NoHello {
		b.Error("it may be a check")
	}
}
