package pair_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/test/nettest"
)

// TestStripedUnderMemory holds that many flows, of which some are striped, go on under a small
// bound of memory, slowly and all of them.
func TestStripedUnderMemory(t *testing.T) {
	t.Parallel()
	const first, flows, limit = 6, 40, 8 << 20
	s := newStand(t, striped(4), func(_ *stand, o *pair.Options, _ *pair.LinkOptions) {
		o.RetainedLimit = func() int64 { return limit / 4 }
	})
	s.path.setPace(time.Millisecond)
	s.serve(echo)
	data := pattern(1<<20, 3)
	var all sync.WaitGroup
	var crowded, done atomic.Bool
	var received atomic.Int64
	begin := func(goOn func() bool) {
		c := s.dial()
		all.Go(func() {
			for again := true; again; again = goOn() {
				if _, err := c.Write(data); err != nil {
					t.Error(err)
					break
				}
			}
			_ = c.CloseWrite()
		})
		all.Go(func() {
			defer c.Close()
			got, err := readCounting(c, 64<<10, &received)
			if err != nil || len(got) == 0 || len(got)%len(data) != 0 {
				t.Errorf("%v after %d bytes", err, len(got))
				return
			}
			for ; len(got) > 0; got = got[len(data):] {
				checkEqual(t, got[:len(data)], data)
			}
		})
	}
	for range first {
		begin(func() bool { return !crowded.Load() })
	}
	nettest.Eventually(t, patience, func() bool {
		st := s.near.State()
		return len(st.Sessions) > 0 && st.Sessions[0].FlowsStriped > 0 // memory may not suffice for more
	}, s.dump)
	for range flows - first {
		begin(func() bool { return false })
	}
	crowded.Store(true)
	go func() { all.Wait(); done.Store(true) }()
	most := int64(0)
	nettest.Eventually(t, patience, func() bool {
		most = max(most, s.near.State().RetainedBytes, s.farNode().State().RetainedBytes)
		return done.Load()
	}, s.dump)
	for range flows {
		s.ends(flow.EndClean)
	}
	if bound := int64(limit/4 + 2*flows*pair.LeastHeld); most > bound {
		t.Errorf("%d bytes were held, bound %d", most, bound)
	}
	nettest.Eventually(t, patience, func() bool {
		return s.near.State().RetainedBytes == 0 && s.farNode().State().RetainedBytes == 0
	}, func() string { return "memory is lost: " + s.dump() })
}

// TestWaitsForPath holds that a flow to a target that reads nothing does not count as one that
// waits for the path, and that one in an outage does.
func TestWaitsForPath(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.stall()
	c := s.dial()
	defer c.Close()
	fill(c)
	f := s.flow(0)
	nettest.Eventually(t, patience, func() bool {
		fill(c) // on a busy machine the first one ended before the target's buffers were full
		return f.Figures().Retained > 0 && !f.WaitsForPath()
	}, s.dump)
	s.path.cut(true)
	nettest.Eventually(t, patience, f.WaitsForPath, s.dump)
	s.path.cut(false)
	nettest.Must(t, c.SetLinger(0))
	c.Close()
	s.ends(flow.EndClientReset)
}

// TestHeldAcrossLanes holds that what the far relay holds before its turn need not be kept at the
// near one, and that the flow goes on when all lanes are lost then.
func TestHeldAcrossLanes(t *testing.T) {
	t.Parallel()
	s := newStand(t, striped(4))
	s.path.setPace(2 * time.Millisecond)
	s.serve(echo)
	c := s.dial()
	defer c.Close()
	f := s.flow(0)
	stop := make(chan struct{})
	var sent atomic.Int64
	go func() {
		defer func() { _ = c.CloseWrite() }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			b := make([]byte, 64<<10)
			for i := range b {
				b[i] = byte((sent.Load() + int64(i)) % 251)
			}
			if _, err := c.Write(b); err != nil {
				t.Error(err)
				return
			}
			sent.Add(int64(len(b)))
		}
	}()
	var back atomic.Int64
	same := make(chan bool, 1)
	go func() {
		b, n, good := make([]byte, 64<<10), int64(0), true
		for {
			m, err := c.Read(b)
			for i := range m {
				good = good && b[i] == byte((n+int64(i))%251)
			}
			back.Add(int64(m))
			if n += int64(m); err != nil {
				same <- good && err == io.EOF && n == sent.Load()
				return
			}
		}
	}()
	for range 3 { // on lanes of such a pace something is held nearly always
		from := back.Load()
		nettest.Eventually(t, patience, func() bool { return f.Figures().Lanes == 4 && back.Load() > from+256<<10 }, s.dump)
		s.path.cut(true)
		s.path.cut(false)
	}
	close(stop)
	if !<-same {
		t.Error("the stream came back changed")
	}
	s.ends(flow.EndClean)
}

// TestLimitedByMemory holds that a flow says when the budget alone bounds what it keeps, and no longer
// once there is more.
func TestLimitedByMemory(t *testing.T) {
	t.Parallel()
	var limit atomic.Int64
	limit.Store(1 << 20)
	s := newStand(t, func(_ *stand, o *pair.Options, _ *pair.LinkOptions) { o.RetainedLimit = limit.Load })
	s.path.setDelay(100 * time.Millisecond)
	s.serve(func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
	c := s.dial()
	defer c.Close()
	var writing sync.WaitGroup
	stop := make(chan struct{})
	writing.Go(func() {
		for b := make([]byte, 64<<10); ; {
			select {
			case <-stop:
				_ = c.CloseWrite()
				return
			default:
			}
			if _, err := c.Write(b); err != nil {
				t.Error(err)
				return
			}
		}
	})
	f := s.flow(0)
	says := func(limited bool) func() bool {
		return func() bool {
			one := s.near.State().Sessions[0]
			return f.Figures().MemoryLimited == limited && (one.FlowsMemoryLimited == 1) == limited &&
				strings.Contains(strings.Join(one.Notes(), " "), "1 flow limited by memory") == limited
		}
	}
	nettest.Eventually(t, patience, says(true), s.dump)
	if kept := s.near.State().RetainedBytes; kept > limit.Load() {
		t.Errorf("%d bytes are kept of %d", kept, limit.Load())
	}
	limit.Store(1 << 30)
	nettest.Eventually(t, patience, says(false), s.dump)
	close(stop)
	writing.Wait()
	s.ends(flow.EndClean)
}
