package pair_test

import (
	"fmt"
	"io"
	"math"
	mathrand "math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/pair/wire"
	"longhaul/test/nettest"
)

// striped gives flows n lanes as soon as they move.
func striped(n int) standOption {
	return func(_ *stand, o *pair.Options, l *pair.LinkOptions) { o.StripeAfter, l.Lanes = 1, n }
}

// TestManyLanes moves random bytes both ways over lanes of different and changing speed, of
// which one after the other is lost, stalls, or all are lost at once.
func TestManyLanes(t *testing.T) {
	t.Parallel()
	for n, m := range map[int]mode{3: modes[0], 16: modes[1]} {
		t.Run(fmt.Sprintf("%d lanes, %s", n, m.name), func(t *testing.T) {
			t.Parallel()
			testManyLanes(t, n, m.in())
		})
	}
}

func testManyLanes(t *testing.T, lanes int, in standOption) {
	s := newStand(t, in, striped(lanes))
	s.path.setPace(2 * time.Millisecond)
	s.serve(echo)
	const flows, size = 2, 4 << 20
	var all sync.WaitGroup
	var received atomic.Int64
	var several atomic.Bool // further lanes have carried bytes
	for i := range flows {
		c := s.dial()
		var sent atomic.Pointer[[]byte]
		all.Go(func() {
			// Handshakes of further lanes may take longer than 4 MiB.
			random := mathrand.NewChaCha8([32]byte{byte(i)})
			var data []byte
			chunk := make([]byte, 64<<10)
			for len(data) < size || !several.Load() {
				_, _ = random.Read(chunk)
				data = append(data, chunk...)
				if _, err := c.Write(chunk); err != nil {
					t.Error(err)
					break
				}
			}
			sent.Store(&data)
			_ = c.CloseWrite()
		})
		all.Go(func() {
			defer c.Close()
			got, err := readCounting(c, 256<<10, &received)
			if err != nil {
				t.Errorf("flow %d: %v after %d bytes", i, err, len(got))
				return
			}
			if want := sent.Load(); want == nil {
				t.Errorf("flow %d ends after %d bytes, and its client sends", i, len(got))
			} else {
				checkEqual(t, got, *want)
			}
		})
	}
	for i := range int64(12) {
		at := i * flows * size / 13
		nettest.Eventually(t, patience, func() bool {
			if state := s.near.State().Sessions; len(state) > 0 && state[0].LanesBusy > flows {
				several.Store(true)
			}
			// The last cuts come once the flows have several lanes.
			return received.Load() >= at && (i < 8 || several.Load())
		}, s.dump)
		switch i % 4 {
		case 3:
			s.path.cut(false)
		default:
			s.path.cutOne()
		}
	}
	all.Wait()
	for range flows {
		for name, ends := range map[string]chan flow.End{"near": s.nearEnds, "far": s.farEnds} {
			if e := <-ends; e.Reason != flow.EndClean {
				t.Errorf("%s relay ended by %q: %v", name, e.Reason, e.Err)
			}
		}
	}
	nettest.Eventually(t, patience, func() bool {
		return s.near.State().RetainedBytes == 0 && s.farNode().State().RetainedBytes == 0
	}, func() string { return "memory of stores is lost: " + s.dump() })
}

// TestLanesParked holds that a striped flow that falls silent gives all lanes back, and
// goes on.
func TestLanesParked(t *testing.T) {
	t.Parallel()
	s := newStand(t, parkSoon, striped(4))
	s.serve(func(c *net.TCPConn) { echo(c) })
	c := s.dial()
	defer c.Close()
	for range 3 {
		want := pattern(6<<20, 1)
		go func() { _, _ = c.Write(want) }()
		got := make([]byte, len(want))
		_, err := io.ReadFull(c, got)
		nettest.Must(t, err)
		checkEqual(t, got, want)
		s.awaitParked(1)
	}
	nettest.Must(t, c.CloseWrite())
	_, _ = io.ReadAll(c)
	s.ends(flow.EndClean)
}

// TestLaneThatSwallows holds that a flow goes on although one of its lanes takes bytes that
// never arrive, and something acknowledges them.
func TestLaneThatSwallows(t *testing.T) {
	t.Parallel()
	s := newStand(t, striped(4))
	s.path.setPace(time.Millisecond)
	var got atomic.Int64
	s.serve(func(c *net.TCPConn) {
		n, _ := io.Copy(countWriter{&got}, onlyReader{c})
		_, _ = fmt.Fprint(c, n)
		_ = c.CloseWrite()
	})
	c := s.dial()
	defer c.Close()
	stalled := make(chan struct{})
	var sent atomic.Int64
	go func() {
		const more = 16 << 20
		for last := int64(math.MaxInt64); sent.Load() < last; {
			n, err := c.Write(pattern(256<<10, 1))
			if sent.Add(int64(n)); err != nil {
				return
			}
			select {
			case <-stalled:
				last = min(last, sent.Load()+more)
			default:
			}
		}
		_ = c.CloseWrite()
	}()
	nettest.Eventually(t, patience, func() bool {
		return got.Load() > 2<<20 && s.near.State().Sessions[0].LanesBusy == 4
	}, s.dump)
	s.path.stallBusiest()
	close(stalled)
	if b, err := io.ReadAll(c); err != nil || string(b) != fmt.Sprint(sent.Load()) {
		t.Errorf("the target got %q bytes of %d: %v", b, sent.Load(), err)
	}
	s.ends(flow.EndClean)
}

// TestOlderFarRelay holds that a far relay that knows one lane gets one.
func TestOlderFarRelay(t *testing.T) {
	t.Parallel()
	s := newStand(t, striped(4), func(_ *stand, o *pair.Options, _ *pair.LinkOptions) { o.Without = wire.FeatureLanes })
	s.serve(echo)
	c := s.dial()
	defer c.Close()
	s.roundTrip(c, string(pattern(4<<20, 2)))
	if n := s.flow(0).Figures().Lanes; n != 1 {
		t.Errorf("the flow has %d lanes", n)
	}
	want := pattern(4<<20, 1)
	go func() {
		_, _ = c.Write(want)
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	nettest.Must(t, err)
	checkEqual(t, got, want)
	s.ends(flow.EndClean)
}

type countWriter struct{ n *atomic.Int64 }

func (w countWriter) Write(b []byte) (int, error) {
	w.n.Add(int64(len(b)))
	return len(b), nil
}

// TestPoolKeepsLanes holds that the lanes of a flow with many wait for the next one.
func TestPoolKeepsLanes(t *testing.T) {
	t.Parallel()
	const lanes = 6
	s := newStand(t, striped(lanes))
	stop := make(chan struct{})
	_, same := s.stream(stop)
	nettest.Eventually(t, patience, func() bool { return s.link.Kept() == lanes }, s.dump)
	s.endStream(stop, same)
	s.awaitWarm(lanes)
}
