package pair_test

import (
	"io"
	"testing"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/test/nettest"
)

// TestCounters holds that each flow gets what was sent for it, and not what its lane sent
// for the flows before it, or to open its window.
func TestCounters(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(_ *stand, _ *pair.Options, o *pair.LinkOptions) { o.Warm = 1 })
	s.serve(echo)
	s.awaitWarm(1)
	for _, size := range []int{4 << 20, 1000, 2 << 20, 1000} {
		ahead := 0 // bytes that went over the control connection, ahead of a lane
		c := s.dial()
		s.roundTrip(c, string(pattern(size/2, 1)))
		if size > 1000 {
			s.path.cut(false) // what goes over the next lane counts as well
			ahead = size / 2
		}
		want := pattern(size/2, 2)
		go func() {
			_, _ = c.Write(want)
			_ = c.CloseWrite()
		}()
		got, err := io.ReadAll(c)
		nettest.Must(t, err)
		checkEqual(t, got, want)
		c.Close()
		for name, ends := range map[string]chan flow.End{"near": s.nearEnds, "far": s.farEnds} {
			e := <-ends
			// At most: with heads and records, and bytes that were sent twice.
			if e.Reason != flow.EndClean || e.Lanes.BytesSent < int64(size-ahead) || e.Lanes.BytesSent > 2*int64(size)+20_000 || e.CongestionControl == "" {
				t.Errorf("%d bytes: the %s flow ends by %q and sent %+v by %q", size, name, e.Reason, e.Lanes, e.CongestionControl)
			}
		}
		s.awaitWarm(1)
	}
}
