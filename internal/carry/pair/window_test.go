package pair

import (
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/test/nettest"
)

func TestWindow(t *testing.T) {
	const rtt = 100 * time.Millisecond
	for _, test := range []struct {
		name   string
		rates  []float64 // MB/s, one after the other, each for a round trip
		full   bool
		rounds float64
		open   float64 // MB
		want   float64 // MB
	}{
		{"nothing is known", nil, false, 2, 0.1, 0.5},
		{"congestion windows while it grows", []float64{10, 20, 40}, false, 2, 6, 12},
		{"the rate, once it grows no more", []float64{40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40}, false, 2, 5, 8},
		{"congestion windows at least", []float64{40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40}, false, 2, 9, 9},
		{"the highest rate of late", []float64{40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 20}, false, 2, 1, 8},
		{"a rate that has fallen", []float64{40, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10}, false, 2, 1, 2},
		{"congestion windows while the window holds it back", []float64{40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 20}, true, 2, 6, 12},
		{"more than any flow has", []float64{900, 900}, false, 2, 1, 64 << 20 / 1e6},
	} {
		var w window
		now := stamp(time.Second)
		w.note(now, 0, rtt, false)
		for _, rate := range test.rates {
			now += stamp(rtt)
			w.note(now, rate*1e6*rtt.Seconds(), rtt, test.full)
		}
		if got := float64(w.size(now, test.rounds, test.open*1e6, rtt)) / 1e6; got < 0.99*test.want || got > 1.06*test.want {
			t.Errorf("%s: %.2f MB, want %.2f", test.name, got, test.want)
		}
	}
}

func TestBudget(t *testing.T) {
	const limit = 16 << 20
	var b budget
	b.limit.Store(limit)
	held := map[int]int{}
	for moved := true; moved; { // some stores take as much as they get
		moved = false
		for i := range 15 {
			if b.Take(32<<10, held[i]) {
				held[i], moved = held[i]+32<<10, true
			}
		}
	}
	for i := range held {
		if held[i] < limit/20 || held[i] > limit/15 {
			t.Errorf("store %d of 15 has %d of %d bytes", i, held[i], limit)
		}
	}
	if used := b.used.Load(); used > limit-limit/8 {
		t.Errorf("%d of %d bytes are taken", used, limit)
	}
	if !b.fits(limit/20, 0) {
		t.Error("nothing is left for another store")
	}
	b.Force(limit)
	if !b.Take(4<<10, 0) || b.Take(4<<10, leastHeld) {
		t.Error("a store has not just the least memory where none is left")
	}
}

// TestStripedUnderMemory holds that many flows, of which some are striped, go on under a small
// bound of memory, slowly and all of them.
func TestStripedUnderMemory(t *testing.T) {
	t.Parallel()
	const first, flows, limit = 6, 40, 8 << 20
	s := newStand(t, striped(4), func(s *stand, o *Options, _ *LinkOptions) {
		s.deadline = time.Minute
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
		_ = c.SetDeadline(time.Now().Add(3 * time.Minute))
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
	nettest.Eventually(t, 60*time.Second, func() bool {
		st := s.near.State()
		return len(st.Sessions) > 0 && st.Sessions[0].FlowsStriped > 0 // memory may not suffice for more
	}, s.dump)
	for range flows - first {
		begin(func() bool { return false })
	}
	crowded.Store(true)
	go func() { all.Wait(); done.Store(true) }()
	most := int64(0)
	nettest.Eventually(t, 3*time.Minute, func() bool {
		most = max(most, s.near.State().RetainedBytes, s.farNode().State().RetainedBytes)
		return done.Load()
	}, s.dump)
	for range flows {
		s.ends(flow.EndClean)
	}
	if bound := int64(limit/4 + 2*flows*leastHeld); most > bound {
		t.Errorf("%d bytes were held, bound %d", most, bound)
	}
	nettest.Eventually(t, 30*time.Second, func() bool {
		return s.near.budget.used.Load() == 0 && s.farNode().budget.used.Load() == 0
	}, func() string { return "memory is lost: " + s.dump() })
}

// TestWaitsForPath holds that a flow to a target that reads nothing does not count as one that
// waits for the path, and that one in an outage does.
func TestWaitsForPath(t *testing.T) {
	t.Parallel()
	flows := make(chan *Flow, 1)
	s := newStand(t, func(s *stand, _ *Options, _ *LinkOptions) { s.carried = func(f *Flow) { flows <- f } })
	s.stall()
	c := s.dial()
	defer c.Close()
	fill(c)
	f := <-flows
	nettest.Eventually(t, 30*time.Second, func() bool {
		fill(c) // on a busy machine the first one ended before the target's buffers were full
		return f.Figures().Retained > 0 && !f.WaitsForPath()
	}, s.dump)
	s.path.cut(true)
	nettest.Eventually(t, 30*time.Second, f.WaitsForPath, s.dump)
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
	flows := make(chan *Flow, 1)
	s.carried = func(f *Flow) { flows <- f }
	s.serve(echo)
	c := s.dial()
	defer c.Close()
	f := <-flows
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
	same := make(chan bool, 1)
	go func() {
		b, n, good := make([]byte, 64<<10), int64(0), true
		for {
			m, err := c.Read(b)
			for i := range m {
				good = good && b[i] == byte((n+int64(i))%251)
			}
			if n += int64(m); err != nil {
				same <- good && err == io.EOF && n == sent.Load()
				return
			}
		}
	}()
	held := func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return int64(f.sf.Out.Length()-f.sf.Out.Acknowledged()) > f.sf.Out.Kept()
	}
	for range 3 {
		nettest.Eventually(t, 60*time.Second, held, s.dump)
		s.path.cut(true)
		s.path.cut(false)
	}
	close(stop)
	if !<-same {
		t.Error("the stream came back changed")
	}
	s.ends(flow.EndClean)
}
