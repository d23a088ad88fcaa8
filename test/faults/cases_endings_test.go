package faults

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// sequences are the endings that bench/endings compares relays by.
const sequences = "../../bench/endings/sequences/"

// scripted are the cases that a script says all of. Each runs in all ways.
var scripted = []struct {
	number int
	file   string
	ends   string // in the log of the (first) relay; "" for one that is not asked for
	limits string // settings of the relays, of a case that waits for one of them
}{
	{1, sequences + "1-target-resets.tcp", "target-reset", ""},
	{1, "testdata/01-reset-after-end.tcp", "", ""},
	{2, "testdata/02-reset-behind-full-queue.tcp", "target-reset", ""},
	{2, "testdata/02-reset-and-nobody-reads.tcp", "target-reset", "reset_drain_timeout: 1s\n"},
	{3, sequences + "3-client-resets.tcp", "client-reset", ""},
	{3, "testdata/03-client-resets-upload.tcp", "client-reset", ""},
	{4, sequences + "4-half-close-up.tcp", "end", ""},
	{5, sequences + "5-half-close-down.tcp", "end", ""},
	{6, "testdata/06-both-end.tcp", "end", ""},
	{7, "testdata/07-end-behind-50M.tcp", "end", ""},
	{8, "testdata/08-half-closed-for-ever.tcp", "", "half_close_timeout: 4s\n"}, // of two relays in a row, one comes first
	{10, sequences + "2-target-refuses.tcp", "", ""},
	{12, "testdata/12-no-byte.tcp", "end", ""},
	{12, "testdata/12-no-byte-target-first.tcp", "end", ""},
	{17, "testdata/17-idle-but-alive.tcp", "end", quickKeepalive},
	{19, "testdata/19-target-says-nothing-client-resets.tcp", "client-reset", ""},
	{19, "testdata/19-target-says-nothing-client-closes.tcp", "", "half_close_timeout: 2s\n"},
	{19, "testdata/19-target-never-accepts.tcp", "client-reset", ""},
}

const quickKeepalive = `defaults:
  lan: {keepalive: {idle: 1s, interval: 1s, count: 3}}
  wan: {keepalive: {idle: 1s, interval: 1s, count: 3}}
`

func TestScriptedCases(t *testing.T) {
	t.Parallel()
	for _, c := range scripted {
		text, err := os.ReadFile(c.file)
		if err != nil {
			t.Fatal(err)
		}
		script, err := tcpscript.Parse(string(text))
		if err != nil {
			t.Fatalf("%s: %v", c.file, err)
		}
		name := fmt.Sprintf("%02d-%s", c.number, strings.TrimLeft(strings.TrimSuffix(filepath.Base(c.file), ".tcp"), "0123456789-"))
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, w := range ways {
				t.Run(w.name, func(t *testing.T) {
					t.Parallel()
					ch := w.start(t, c.limits)
					if err := script.Run(t.Context(), ch.env()); err != nil {
						t.Fatal(err)
					}
					if c.ends != "" {
						ch.relays[0].expectLog(`msg=flow .*\bend=` + c.ends + ` `)
					}
					ch.expectNothingLeft()
				})
			}
		})
	}
}

// way is how a client reaches its target.
type way struct {
	name        string
	host        string // an address of the loopback; of the target, if intercepted
	relays      int
	paired      bool
	intercepted bool
}

var ways = []way{
	{name: "one relay, IPv4", host: "127.79.0.1", relays: 1},
	{name: "one relay, IPv6", host: "::1", relays: 1},
	{name: "two relays", host: "127.79.0.1", relays: 2},
	{name: "a pair", host: "127.79.0.1", relays: 2, paired: true},
	{name: "intercepted, IPv4", host: routedTargets[0], relays: 1, intercepted: true},
	{name: "intercepted, IPv6", host: routedTargets[1], relays: 1, intercepted: true},
	{name: "an intercepting pair", host: routedTargets[0], relays: 2, paired: true, intercepted: true},
}

// chain is a row of relays on the loopback, and the target's address behind.
type chain struct {
	t      *testing.T
	relays []*daemon // the client's first
	dial   dialFunc
	listen func(context.Context) (net.Listener, error)
	before []daemonStatus
}

// start starts the relays, with further settings of each.
func (w way) start(t *testing.T, more string) *chain {
	t.Helper()
	if w.intercepted && w.paired {
		p := newRoutedPair(t)
		p.pairOf.moreNear, p.pairOf.moreFar = more, more
		p.start(", resume: 5s", "", "    pair_from: near")
		relays := []*daemon{p.pairOf.near, p.pairOf.far}
		return &chain{t, relays, p.dial(w.host), p.listen(w.host), []daemonStatus{relays[0].status(), relays[1].status()}}
	}
	if w.intercepted {
		s := newRouted(t)
		s.before = more
		s.start("")
		return &chain{t, []*daemon{s.relay}, s.dial(w.host), s.listen(w.host), []daemonStatus{s.relay.status()}}
	}
	target := nettest.FreeAddress(t, w.host)
	c := &chain{t: t, listen: tcpscript.ListenOn(target)}
	to := target
	if w.paired {
		p := (&pairOf{t: t, listen: nettest.FreeAddress(t, w.host), wan: nettest.FreeAddress(t, w.host), target: target,
			tunnelNear: ", resume: 5s", // how long the other relay waits for one that is killed
			moreNear:   "workers: 1\n" + more, moreFar: "workers: 1\n" + more}).start()
		c.relays, c.dial = []*daemon{p.near, p.far}, p.dial()
		c.before = []daemonStatus{p.near.status(), p.far.status()}
		return c
	}
	for range w.relays {
		listen := nettest.FreeAddress(t, w.host)
		d := startDaemon(t, nil, unsupervised, "workers: 1\n"+more+single(listen, to, ""))
		c.relays = append([]*daemon{d}, c.relays...)
		to = listen
	}
	c.dial = tcpscript.DialTo(to)
	for _, d := range c.relays {
		c.before = append(c.before, d.status())
	}
	return c
}

func (c *chain) env() tcpscript.Env {
	return tcpscript.Env{
		Dial:   c.dial,
		Listen: c.listen,
		Do: map[string]func() error{
			"expect-no-flows":  func() error { c.expectNoFlows(); return nil },
			"expect-flow-down": func() error { c.expectFlowDown(); return nil },
			"kill-relay": func() error {
				d := c.relays[rand.IntN(len(c.relays))]
				err := d.cmd.Process.Kill()
				<-d.exited
				return err
			},
		},
		Within: patience,
	}
}

// expectFlowDown waits until the client's relay has got some bytes of the target's.
func (c *chain) expectFlowDown() {
	c.t.Helper()
	const some = 256 << 10
	nettest.Eventually(c.t, patience, func() bool {
		flows := c.relays[0].status().Flows
		return len(flows) == 1 && flows[0].BytesDown >= some
	}, func() string { return fmt.Sprintf("the client's relay has not got %d bytes of the target's", some) })
}

// expectNoFlows waits until no relay has a flow.
func (c *chain) expectNoFlows() {
	c.t.Helper()
	for _, d := range c.relays {
		nettest.Eventually(c.t, patience, func() bool { return d.status().FlowsNow == 0 }, func() string { return "a relay still has flows" })
	}
}

// expectNothingLeft checks that the relays hold what they held before, but
// for the pipes that they keep.
func (c *chain) expectNothingLeft() {
	c.t.Helper()
	c.expectNoFlows()
	for i, d := range c.relays {
		nettest.Eventually(c.t, patience, func() bool {
			now := d.status()
			return now.Process.Descriptors-2*now.PipesOpen <= c.before[i].Process.Descriptors && now.Process.Goroutines <= c.before[i].Process.Goroutines
		}, func() string {
			return fmt.Sprintf("before: %+v\nafter: %+v, pipes %d", c.before[i].Process, d.status().Process, d.status().PipesOpen)
		})
	}
}

// Case 9: SIGKILL at any moment is a reset for both ends, never an end.
func TestCase09RelayIsKilled(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(sequences + "6-relay-killed.tcp")
	if err != nil {
		t.Fatal(err)
	}
	const moments = 8
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			for range moments {
				before := fmt.Sprintf("waits %dus\ndoes kill-relay", 1+rand.IntN(20_000))
				script := tcpscript.MustParse(strings.Replace(string(text), "does kill-relay", before, 1))
				if err := script.Run(t.Context(), w.start(t, "").env()); err != nil {
					t.Fatalf("%s: %v", before, err)
				}
			}
		})
	}
}

// Case 11: very many writes of one byte arrive as the bytes they were, and the relay
// sleeps when there is nothing more to do.
func TestCase11OneByteWrites(t *testing.T) {
	t.Parallel()
	oneByteWrites(t, 100_000, func(*daemon, string) {})
}

// oneByteWrites calls idle when the relay, which sleeps, has nothing to do.
func oneByteWrites(t *testing.T, writes int, idle func(relay *daemon, when string)) {
	t.Helper()
	c := ways[0].start(t, "")
	client, target := c.connect()
	got := make(chan error, 1)
	go func() {
		buf := make([]byte, 64<<10)
		for at := 0; at < writes; {
			n, err := target.Read(buf)
			for i, b := range buf[:n] {
				if b != oneByte(at+i) {
					got <- fmt.Errorf("byte %d is %d, want %d", at+i, b, oneByte(at+i))
					return
				}
			}
			if at += n; err != nil && at < writes {
				got <- fmt.Errorf("after %d bytes: %w", at, err)
				return
			}
		}
		got <- nil
	}()
	for i := range writes {
		if _, err := client.Write([]byte{oneByte(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	c.relays[0].expectAsleep("after the last byte")
	idle(c.relays[0], "after the last byte")
	client.CloseWrite()
	if n, err := target.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Fatalf("read %d bytes, %v; want the end", n, err)
	}
	c.relays[0].expectAsleep("half-closed")
	idle(c.relays[0], "half-closed")
	target.Close()
	c.expectNothingLeft()
}

// oneByte is the i-th byte: no run of writes looks like another.
func oneByte(i int) byte { return byte(i ^ i>>8 ^ i>>16) }

// connect opens a flow and returns its two ends.
func (c *chain) connect() (client, target *net.TCPConn) {
	c.t.Helper()
	l, err := c.listen(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	defer l.Close()
	a, err := c.dial(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { a.Close() })
	l.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
	b, err := l.Accept()
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { b.Close() })
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

// Case 12, more of it: connections that end at once, many of them, leave
// nothing behind.
func TestCase12ManyWithoutAByte(t *testing.T) {
	t.Parallel()
	c := ways[2].start(t, "")
	var accepted atomic.Int64
	l, err := c.listen(t.Context())
	nettest.Must(t, err)
	t.Cleanup(tcpserver.Serve(l, func(s net.Conn) {
		accepted.Add(1)
		tcpserver.Discard(s)
	}))
	const many = 300
	for i := range many {
		client, err := c.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			client.(*net.TCPConn).SetLinger(0)
		}
		client.Close()
	}
	c.expectNothingLeft()
	if n := accepted.Load(); n < many*2/3 {
		t.Errorf("the target saw %d of %d connections", n, many)
	}
}
