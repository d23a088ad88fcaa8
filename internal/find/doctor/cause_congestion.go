package doctor

import (
	"fmt"
	"math"

	"longhaul/internal/words/units"
)

var congestionCause = causeEntry{
	cause: Congestion, rule: congestion, byTiming: true, needsNone: true, doubt: capacityDoubt,
	sentence: func(r *Report) string {
		return fmt.Sprintf("Nothing to fix at the hosts: the path is full of other traffic, and the connection gets %s as its share.", r.gets())
	},
}

// queued is the threshold of Queue for a queue.
const queued = 0.27

// steadyQueue is the threshold of Steady for a queue.
const steadyQueue = 0.15

// congestion: there is a queue of other connections.
func congestion(c *patient) *Finding {
	f := c.f
	if policer(c) != nil || !(f.Queue > queued && f.Steady > steadyQueue && f.CwndUsed > 0.5 && !c.oftenPauses() && c.goodput < ownQueue*c.capacity && !math.IsInf(c.capacity, 1)) {
		return nil
	}
	return &Finding{Cause: Congestion, Evidence: []string{
		fmt.Sprintf("packets wait %s in a queue, at %s of the %s that the path carries: others fill it", milliseconds(f.RTT-f.MinRTT), units.FormatRate(c.goodput), units.FormatRate(c.capacity)),
	}}
}
