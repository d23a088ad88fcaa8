package doctor

import (
	"fmt"
	"math"
	"time"

	"longhaul/internal/words/units"
)

var healthyCause = causeEntry{
	cause: Healthy, rule: healthy, byTiming: true, needsNone: true, doubt: capacityDoubt,
	sentence: func(r *Report) string {
		if len(r.Findings) > 1 {
			return fmt.Sprintf("Little to fix: the connection gets %s, and no remedy would bring a fifth more.", r.gets())
		}
		if r.Strength != Certain && r.Observation.Capacity == nil {
			return fmt.Sprintf("Nothing to fix: the connection gets %s, and fills a queue on the path.", r.gets())
		}
		return fmt.Sprintf("Nothing to fix: the connection gets %s, which is what the path carries.", r.gets())
	},
}

// ownQueue is the minimum share of the path's capacity at which a queue counts as the
// connection's own. A congestion control that overflows a queue leaves the path idle
// at times, even without other connections.
const ownQueue = 0.65

// healthy: the connection fills the path's capacity.
func healthy(c *patient) *Finding {
	f := c.f
	switch {
	case c.goodput >= c.capacity/Worthwhile || c.goodput >= ownQueue*c.capacity && f.Queue+f.RTTSpread > 0.25:
		return &Finding{Cause: Healthy, Evidence: []string{
			fmt.Sprintf("it gets %s; several connections at once get %s", units.FormatRate(c.goodput), units.FormatRate(c.capacity)),
		}}
	case math.IsInf(c.capacity, 1) && c.fillsQueue() && f.CwndUsed > 0.5 && !(c.goodput < ownQueue*c.path && !math.IsInf(c.path, 1)):
		return &Finding{Cause: Healthy, Evidence: []string{
			fmt.Sprintf("it fills the path: packets wait %s in its queue", milliseconds(f.RTT-f.MinRTT)),
		}}
	}
	return nil
}

// leastQueue is the delay below which a queue is none: programs and acknowledgements take
// as long.
const leastQueue = 5 * time.Millisecond

// fillsQueue reports whether a queue is the connection's own: without a trial only a
// connection with much under way, for which nothing at the ends waits, fills one.
func (c *patient) fillsQueue() bool {
	f, n := c.f, &c.counts
	if f.RTT-f.MinRTT < leastQueue || f.Rwnd > 0.15 || c.idle() || c.bufferFull() {
		return false
	}
	if !c.captured() {
		return f.Steady > 0.1 && f.InFlight >= manyFull && c.alone() && !c.oftenPauses()
	}
	return f.Queue > 0.1 && c.sendsFull() && (n.MaxFlight >= manyFull*int64(f.MSS) || c.o.Capture.Bursts > 1) &&
		n.ZeroWindows == 0 && c.windowFullShare() < 0.15 && n.lossShare() < 0.05
}

// steadyRate is the coefficient of variation of a rate that a link keeps.
const steadyRate = 0.02

// alone reports whether the goodput keeps to one rate while the congestion window moves:
// that is the rate of a link with one connection on it. A share of a link varies.
func (c *patient) alone() bool { return c.f.Variation < steadyRate }
