package relay

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
)

// setUpSides counts the legs that are set up for their paths.
type setUpSides struct {
	namedSides
	legs *atomic.Int32
}

func (s setUpSides) Established(fd int, dialed bool) (side, degraded string) {
	s.legs.Add(1)
	return s.namedSides.Established(fd, dialed)
}

// TestLegsAreSetUpWhenItMatters: a short flow's legs are not set up for their paths. Others are, before more
// than one small read has passed, after a second, or for a snapshot.
func TestLegsAreSetUpWhenItMatters(t *testing.T) {
	for name, tt := range map[string]struct {
		use  func(t *testing.T, g *rig, c, s *net.TCPConn)
		want int32
	}{
		"64 bytes each way": {func(t *testing.T, _ *rig, c, s *net.TCPConn) {
			write(t, c, pattern(64))
			expect(t, s, pattern(64))
			write(t, s, pattern(64))
			expect(t, c, pattern(64))
		}, 0},
		"bulk": {func(t *testing.T, _ *rig, c, s *net.TCPConn) {
			write(t, s, pattern(2*smallRead))
			expect(t, c, pattern(2*smallRead))
		}, 2},
		"small writes": {func(t *testing.T, _ *rig, c, s *net.TCPConn) {
			for range 64 {
				write(t, c, pattern(smallRead/64))
				expect(t, s, pattern(smallRead/64))
			}
		}, 2},
		"a second":   {func(_ *testing.T, g *rig, _, _ *net.TCPConn) { g.pass(lastingAge) }, 2},
		"a snapshot": {func(_ *testing.T, g *rig, _, _ *net.TCPConn) { g.relay.Snapshot() }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			nettest.CheckLeaks(t)
			var legs atomic.Int32
			g := newStoppedRig(t, func(o *rigOptions) {
				o.Tunnels[0].Transport = setUpSides{legs: &legs}
				o.LegStats = func(time.Duration) bool { return false }
			})
			c, s := g.pair()
			tt.use(t, g, c, s)
			c.Close()
			expectEnd(t, s)
			s.Close()
			g.flows.one(t)
			if n := legs.Load(); n != tt.want {
				t.Errorf("%d legs were set up, want %d", n, tt.want)
			}
		})
	}
}

// TestSecondWriteIsNotDelayed: the leg to the target has TCP_NODELAY before a second write, which Nagle's
// algorithm would hold until the first is acknowledged, and before one that may need two segments.
func TestSecondWriteIsNotDelayed(t *testing.T) {
	nettest.CheckLeaks(t)
	noDelay := func(f *flow) bool {
		return getsockoptInt(int(f.legs[target].fd), unix.IPPROTO_TCP, unix.TCP_NODELAY) != 0
	}
	for name, writes := range map[string][]int{"small": {64, 64}, "large": {oneSegment + 1}} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, nil)
			c, s := g.pair()
			for i, n := range writes {
				if i == len(writes)-1 {
					g.flowIs("has Nagle's algorithm still", func(f *flow) bool { return !noDelay(f) })
				}
				write(t, c, pattern(n))
				expect(t, s, pattern(n))
			}
			g.flowIs("sends at once", noDelay)
		})
	}
}
