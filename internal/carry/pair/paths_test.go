package pair_test

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/pair/preface"
	"longhaul/test/nettest"
)

// twoPaths gives the link two paths, from addresses of their own, the second one perhaps for standby.
func twoPaths(second **path, standby bool) standOption {
	return func(s *stand, _ *pair.Options, l *pair.LinkOptions) {
		*second = newPath(s.t, s.lanes.Addr().String())
		s.t.Cleanup((*second).close)
		for i, p := range []*path{s.path, *second} {
			l.Paths = append(l.Paths, pair.PathOptions{Name: []string{"first", "second"}[i], Local: netip.MustParseAddr([]string{"127.0.0.2", "127.0.0.3"}[i]),
				Addresses: func(context.Context) ([]netip.AddrPort, error) { return []netip.AddrPort{p.address}, nil }})
		}
		l.Paths[1].Standby = standby
	}
}

func (s *stand) paths() []flow.Path {
	sessions := s.near.State().Sessions
	return sessions[len(sessions)-1].Paths
}

// awaitPaths waits until the two paths are as they are to be.
func (s *stand) awaitPaths(ok func(first, second flow.Path) bool) {
	s.t.Helper()
	nettest.Eventually(s.t, patience, func() bool {
		all := s.paths()
		return len(all) == 2 && ok(all[0], all[1])
	}, s.dump)
}

// stream sends bytes to the target, which sends them back, until stop is closed. The channel
// gets whether the same came back.
func (s *stand) stream(stop chan struct{}) (moved *atomic.Int64, same chan bool) {
	s.serve(echo)
	c := s.dial()
	_ = c.SetDeadline(time.Now().Add(patience))
	moved, same = new(atomic.Int64), make(chan bool, 1)
	sent := make(chan []byte, 1)
	go func() {
		var all []byte
		for chunk := pattern(64<<10, 7); ; {
			select {
			case <-stop:
				_ = c.CloseWrite()
				sent <- all
				return
			default:
			}
			chunk[0]++
			if _, err := c.Write(chunk); err != nil {
				s.t.Error(err)
				sent <- all
				return
			}
			all = append(all, chunk...)
			time.Sleep(2 * time.Millisecond)
		}
	}()
	go func() {
		defer c.Close()
		got, err := readCounting(c, 256<<10, moved)
		same <- err == nil && slices.Equal(got, <-sent)
	}()
	return moved, same
}

// endStream ends such a stream, which must have come back unchanged.
func (s *stand) endStream(stop chan<- struct{}, same <-chan bool) {
	s.t.Helper()
	close(stop)
	if !<-same {
		s.t.Error("the stream came back changed")
	}
	s.ends(flow.EndClean)
}

func (s *stand) awaitMore(moved *atomic.Int64) {
	s.t.Helper()
	from := moved.Load()
	nettest.Eventually(s.t, patience, func() bool { return moved.Load() > from+1<<20 }, s.dump)
}

// TestSeveralPaths holds that a flow that moves much uses both of two paths, goes on over one
// when the other is lost, and uses it again when it is back.
func TestSeveralPaths(t *testing.T) {
	t.Parallel()
	var second *path
	s := newStand(t, striped(1), twoPaths(&second, false))
	stop := make(chan struct{})
	moved, same := s.stream(stop)
	both := func(a, b flow.Path) bool { return a.Busy == 1 && b.Busy == 1 && a.Control != b.Control }
	s.awaitPaths(both)
	for _, lost := range []*path{s.path, second} {
		lost.cut(true)
		s.awaitPaths(func(a, b flow.Path) bool {
			gone, stays := a, b
			if lost == second {
				gone, stays = b, a
			}
			return !gone.Up && gone.Error != "" && gone.Busy == 0 && stays.Up && stays.Busy == 1 && stays.Control
		})
		s.awaitMore(moved)
		lost.cut(false)
		s.awaitPaths(both)
		s.awaitMore(moved)
	}
	s.endStream(stop, same)
	for i, p := range s.paths() {
		if p.Sent < 1<<20 || p.Received < 1<<20 {
			t.Errorf("path %d has carried %d and %d bytes", i, p.Sent, p.Received)
		}
	}
}

// TestLocalAddresses holds that connections come from the address of their path.
func TestLocalAddresses(t *testing.T) {
	t.Parallel()
	var second *path
	s := newStand(t, striped(1), twoPaths(&second, false))
	s.awaitPaths(func(a, b flow.Path) bool { return a.Lanes == 2 && b.Lanes == 2 })
	for want, p := range map[string]*path{"127.0.0.2": s.path, "127.0.0.3": second} {
		p.mu.Lock()
		for h := range p.pairs {
			if got := h.a.RemoteAddr().(*net.TCPAddr).IP.String(); got != want {
				t.Errorf("a connection comes from %s, want %s", got, want)
			}
		}
		p.mu.Unlock()
	}
}

// TestStandby holds that a path for standby carries nothing while another one stands, takes
// over when none does, and gives back when one is there again.
func TestStandby(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]standOption{"large flow": {striped(2)}, "small flow": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var second *path
			s := newStand(t, append(options, twoPaths(&second, true))...)
			stop := make(chan struct{})
			moved, same := s.stream(stop)
			first := func(a, b flow.Path) bool {
				return a.Up && a.Control && a.Busy > 0 && b.Up && !b.Active && b.Lanes == 0
			}
			s.awaitPaths(first)
			s.awaitMore(moved)
			s.path.cut(true)
			s.awaitPaths(func(a, b flow.Path) bool { return !a.Up && b.Control && b.Active && b.Busy > 0 })
			s.awaitMore(moved)
			s.path.cut(false)
			s.awaitPaths(first)
			s.awaitMore(moved)
			s.endStream(stop, same)
		})
	}
}

// TestPathsOfReload holds that flows leave a path that the configuration has no more.
func TestPathsOfReload(t *testing.T) {
	t.Parallel()
	var second *path
	s := newStand(t, striped(1), twoPaths(&second, false))
	stop := make(chan struct{})
	moved, same := s.stream(stop)
	s.awaitPaths(func(a, b flow.Path) bool { return a.Busy == 1 && b.Busy == 1 })
	s.change(func(o *pair.LinkOptions) { o.Paths = o.Paths[1:] })
	nettest.Eventually(t, patience, func() bool {
		s.path.mu.Lock()
		defer s.path.mu.Unlock()
		return len(s.path.pairs) == 0
	}, s.dump)
	nettest.Eventually(t, patience, func() bool {
		st := s.session() // a probe is neither
		return len(second.of(preface.Lane)) == st.LanesBusy+st.LanesWarm
	}, func() string { return "the only path keeps its probe: " + s.dump() })
	s.awaitMore(moved)
	s.endStream(stop, same)
}
