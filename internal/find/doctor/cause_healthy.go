package doctor

import (
	"fmt"
	"longhaul/internal/words/units"
	"math"
)

var healthyCause = causeEntry{
	cause: Healthy, rule: healthy, needsNone: true, doubt: capacityDoubt,
	sentence: func(r *Report) string {
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
	case math.IsInf(c.capacity, 1) && f.Queue > 0.1 && f.CwndUsed > 0.5 && !(c.goodput < ownQueue*c.path && !math.IsInf(c.path, 1)):
		return &Finding{Cause: Healthy, Evidence: []string{
			fmt.Sprintf("it fills the path: packets wait %s in its queue", milliseconds(f.RTT-f.MinRTT)),
		}}
	}
	return nil
}
