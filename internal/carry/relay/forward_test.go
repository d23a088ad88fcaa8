package relay

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	xnettest "golang.org/x/net/nettest"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/sys/splice"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

// echo starts an echoing target.
func (g *rig) echo() {
	g.t.Cleanup(tcpserver.Serve(g.target, tcpserver.Echo))
}

// exchange sends size random bytes to an echoing target and compares hashes.
func exchange(addr netip.AddrPort, seed uint64, size int) error {
	c, err := tryDial(addr)
	if err != nil {
		return err
	}
	defer c.Close()
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	sent := sha256.New()
	failed := make(chan error, 1)
	go func() {
		src := io.LimitReader(rand.NewChaCha8(key), int64(size))
		_, err := io.Copy(c, io.TeeReader(src, sent))
		if err == nil {
			err = c.CloseWrite()
		}
		failed <- err
	}()
	got := sha256.New()
	n, err := io.Copy(got, c)
	if e := <-failed; e != nil {
		return fmt.Errorf("sending: %w", e)
	}
	if err != nil || n != int64(size) {
		return fmt.Errorf("got %d of %d bytes, %w", n, size, err)
	}
	if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		return fmt.Errorf("%d bytes came back changed", size)
	}
	return nil
}

func TestManyFlowsAtOnce(t *testing.T) {
	nettest.CheckLeaks(t)
	for _, tt := range []struct {
		name  string
		pipes func() func() *splice.Pipe
	}{
		{"pipes", func() func() *splice.Pipe { return splice.Open }},
		{"no pipes", func() func() *splice.Pipe { return func() *splice.Pipe { return nil } }},
		{"three pipes", func() func() *splice.Pipe {
			var n atomic.Int32
			return func() *splice.Pipe {
				if n.Add(1) > 3 {
					return nil
				}
				return splice.Open()
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newRig(t, func(o *rigOptions) { o.openPipe = tt.pipes() })
			g.echo()
			const flows = 200
			errs := make(chan error, flows)
			for i := range flows {
				go func() { errs <- exchange(g.addr, uint64(i), 1<<(i%21)+i) }()
			}
			for range flows {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			nettest.Eventually(t, patience, func() bool { return g.relay.Snapshot().FlowsNow == 0 },
				func() string { return "flows are left" })
			s := g.relay.Snapshot()
			if ts := s.Tunnels[0]; ts.FlowsTotal != flows || ts.BytesUp != ts.BytesDown || ts.BytesUp == 0 {
				t.Errorf("counters are wrong: %+v", ts)
			}
			for _, r := range g.flows.all() {
				if r.Reason != report.EndClean || r.BytesUp != r.BytesDown || r.ClientLeg.CongestionControl == "" || r.TargetLeg.RTT == 0 {
					t.Errorf("record is wrong: %+v", r)
				}
			}
		})
	}
}

func TestOneByteWrites(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	c, s := g.pair()
	data := pattern(100_000)
	go func() {
		for i := range data {
			if _, err := c.Write(data[i : i+1]); err != nil {
				t.Error(err)
				return
			}
		}
		c.CloseWrite()
	}()
	expect(t, s, data)
	expectEnd(t, s)
}

// TestIdleFlowHoldsTwoDescriptors counts descriptors after bulk transfer.
func TestIdleFlowHoldsTwoDescriptors(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	const flows = 20
	data := pattern(3_000_000)
	for range flows {
		c, s := g.pair()
		go c.Write(data)
		expect(t, s, data)
	}
	for _, f := range g.relay.Snapshot().Flows {
		if f.HeldUp != 0 || f.HeldDown != 0 {
			t.Errorf("an idle flow holds bytes: %+v", f)
		}
	}
	for _, w := range g.relay.workers {
		w.do(func() {
			w.eachFlow(func(f *flow) {
				for _, d := range f.dirs {
					if d.pipe != nil || d.own != nil {
						t.Error("an idle flow holds a pipe or a buffer")
					}
				}
			})
		})
	}
	if s := g.relay.Snapshot(); s.PipesOpen > 4 {
		t.Errorf("%d pipes are open after %d flows, one after another", s.PipesOpen, flows)
	}
}

// TestBulkDoesNotStarvePingPong runs both in one event loop.
// TestPingPongBesideBulk measures the round trips.
func TestBulkDoesNotStarvePingPong(t *testing.T) {
	nettest.CheckLeaks(t)
	pingPongBesideBulk(t, 100)
}

func pingPongBesideBulk(t *testing.T, rounds int) {
	t.Helper()
	g := newRig(t, func(o *rigOptions) { o.Workers = 1 })
	bulk, sink := g.pair()
	var moved atomic.Int64
	go io.Copy(io.Discard, counted{sink, &moved})
	stop := sendUntilError(bulk, pattern(1<<20))
	nettest.Eventually(t, patience, func() bool { return moved.Load() > 1<<20 }, func() string { return "the bulk flow moves no bytes" })
	c, s := g.pair()
	ping := make([]byte, 64)
	for range rounds {
		write(t, c, ping)
		expect(t, s, ping)
		write(t, s, ping)
		expect(t, c, ping)
	}
	bulk.Close()
	<-stop
}

// TestConnThroughPair runs the conformance tests of net.Conn over a chain of
// two relays.
func TestConnThroughPair(t *testing.T) {
	nettest.CheckLeaks(t)
	far := newRig(t, nil)
	near := newRig(t, func(o *rigOptions) {
		o.Tunnels[0].Forward = []hops.Target{{Host: far.addr.Addr().String(), Port: far.addr.Port()}}
	})
	var mu sync.Mutex
	xnettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		mu.Lock()
		defer mu.Unlock()
		c1, err = tryDial(near.addr)
		if err != nil {
			return nil, nil, nil, err
		}
		far.target.SetDeadline(time.Now().Add(patience))
		c2, err = far.target.AcceptTCP()
		if err != nil {
			c1.Close()
			return nil, nil, nil, err
		}
		c1.SetDeadline(time.Time{})
		return c1, c2, func() { c1.Close(); c2.Close() }, nil
	})
}

func BenchmarkBulk(b *testing.B) {
	g := newRig(b, func(o *rigOptions) { o.OnFlows = nil })
	c, s := g.pair()
	const chunk = 256 << 10
	b.SetBytes(chunk)
	go func() {
		buf := make([]byte, chunk)
		for range b.N {
			if _, err := c.Write(buf); err != nil {
				b.Error(err)
				return
			}
		}
		c.CloseWrite()
	}()
	buf := make([]byte, 1<<20)
	total := 0
	b.ResetTimer()
	for {
		n, err := s.Read(buf)
		total += n
		if err != nil {
			break
		}
	}
	if total != b.N*chunk {
		b.Fatalf("%d bytes arrived, want %d", total, b.N*chunk)
	}
}

func BenchmarkPingPong(b *testing.B) {
	g := newRig(b, func(o *rigOptions) { o.OnFlows = nil })
	g.echo()
	c := dial(b, g.addr)
	buf := make([]byte, 64)
	b.ResetTimer()
	for range b.N {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkConnect(b *testing.B) {
	g := newRig(b, func(o *rigOptions) { o.OnFlows = nil })
	g.echo()
	one := []byte{1}
	for range b.N {
		c, err := tryDial(g.addr)
		if err != nil {
			b.Fatal(err)
		}
		c.Write(one)
		c.CloseWrite()
		if _, err := io.ReadAll(c); err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
}
