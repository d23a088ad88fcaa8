package pair_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/test/nettest"
)

func parkSoon(_ *stand, o *pair.Options, _ *pair.LinkOptions) { o.ParkAfter = 50 * time.Millisecond }

// awaitParked waits until n flows are parked at both ends.
func (s *stand) awaitParked(n int) {
	s.t.Helper()
	nettest.Eventually(s.t, patience, func() bool {
		near, far := s.near.State().Sessions[0], s.farNode().State().Sessions
		return near.FlowsParked == n && len(far) == 1 && far[0].FlowsParked == n
	}, s.dump)
}

// TestParked holds that silent flows give their lanes back, and that either end's next
// bytes, end or reset find the other.
func TestParked(t *testing.T) { eachMode(t, testParked) }

func testParked(t *testing.T, in standOption) {
	t.Parallel()
	s := newStand(t, parkSoon, in)
	order := make(chan string)
	end := sync.OnceFunc(func() { close(order) })
	t.Cleanup(end) // the target's goroutine must not outlive a test that fails
	s.serve(func(c *net.TCPConn) {
		b := make([]byte, 4)
		_, _ = io.ReadFull(c, b)
		_, _ = c.Write(b)
		for word := range order {
			_, _ = io.WriteString(c, word)
		}
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	})
	c := s.dial()
	defer c.Close()
	s.roundTrip(c, "ping")
	for _, word := range []string{"one", "two"} {
		s.awaitParked(1)
		order <- word
		got := make([]byte, len(word))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != word {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	s.awaitParked(1)
	_, err := io.WriteString(c, "more")
	nettest.Must(t, err)
	s.awaitParked(1)
	end()
	if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
		t.Fatalf("got %q, %v", rest, err)
	}
	s.awaitParked(1)
	nettest.Must(t, c.CloseWrite())
	s.ends(flow.EndClean)
}

// local is a flow's own socket without anything of Go behind it.
type local struct{ mine []int }

func (l *local) pair(t testing.TB) int {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	nettest.Must(t, err)
	l.mine = append(l.mine, fds[0])
	return fds[1]
}

type localAcceptor struct {
	*stand
	local *local
}

func (a *localAcceptor) Dial(context.Context, flow.Open) (flow.Target, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return flow.Target{FD: a.local.pair(a.t), To: netip.MustParseAddrPort("192.0.2.1:1")}, nil
}

func countDescriptors(t testing.TB) int {
	entries, err := os.ReadDir("/proc/self/fd")
	nettest.Must(t, err)
	return len(entries)
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestFlowFitsItsClass holds that a flow fits one of the allocator's classes. The next one has 480 bytes.
func TestFlowFitsItsClass(t *testing.T) {
	const class = 448
	if n := unsafe.Sizeof(pair.Flow{}); n > class {
		t.Errorf("a flow has %d bytes, %d fit", n, class)
	}
}

// TestParkedCost holds a parked flow to one descriptor, no goroutine and 1 kB. It counts
// those of the process, so no other test runs beside it.
func TestParkedCost(t *testing.T) {
	const (
		batch = 50 // flows that begin at the same time, and wait until they are parked
		lanes = 2
	)
	var targets, clients local
	s := newStand(t, parkSoon, func(s *stand, _ *pair.Options, lo *pair.LinkOptions) {
		lo.Warm = lanes // whose buffers are not the flows'
		s.acceptor = &localAcceptor{s, &targets}
	})
	t.Cleanup(targets.close)
	t.Cleanup(clients.close)
	open := func(n int) {
		for range n {
			s.link.Carry(flow.Client{FD: clients.pair(t), From: addrOf(s.clients), Listen: addrOf(s.clients), Early: []byte("hello")}, nil)
		}
	}
	for range 2 { // lanes and their buffers get their size
		open(batch)
		s.awaitParked(len(clients.mine))
	}
	// So many that what lanes and earlier tests hold, some 100 kB, is little for each, and no more
	// than 4096 descriptors hold.
	flows := 900
	if raceDetector {
		flows = 100 // whose memory is not the relay's
	}
	s.awaitWarm(lanes)
	descriptors, goroutines, before := countDescriptors(t), runtime.NumGoroutine(), heap()
	for range 5 { // buffers that lanes still hold would hide as much
		before = min(before, heap())
	}
	for range flows / batch {
		open(batch)
		s.awaitParked(len(clients.mine))
	}
	// Buffers that lanes hold for a moment count too, so look until there are few.
	bytes := int64(0)
	nettest.Eventually(t, patience, func() bool {
		bytes = (heap() - before) / int64(2*flows)
		return bytes <= 1024 || raceDetector
	}, func() string { return fmt.Sprintf("a parked flow costs %d bytes", bytes) })
	t.Logf("%d bytes for each parked flow of one end", bytes)
	if n := countDescriptors(t) - descriptors; n > 4*flows+4 { // with those of the test
		t.Errorf("%d descriptors for %d parked flows", n, flows)
	}
	n := 0 // those of handshakes for the pool come and go
	nettest.Eventually(t, patience, func() bool {
		n = runtime.NumGoroutine() - goroutines
		return n <= 20
	}, func() string { return fmt.Sprintf("%d goroutines for %d parked flows", n, flows) })
}

func (l *local) close() {
	for _, fd := range l.mine {
		unix.Close(fd)
	}
}
