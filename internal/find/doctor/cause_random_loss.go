package doctor

import (
	"fmt"
	"longhaul/internal/words/units"
	"math"
)

var randomLossCause = causeEntry{
	cause: RandomLoss, rule: randomLoss, relayed: true, doubt: capacityDoubt,
	remedies: func(c *patient) []Remedy { return []Remedy{c.haul()} },
	sentence: limited("The path loses packets. The sender takes that for congestion and slows down to %s."),
}

// randomLoss: the path loses segments without a full queue.
func randomLoss(c *patient) *Finding {
	f := c.f
	if !(c.lost > 0 && f.Queue < queued) || f.SlowStart || reordering(c) != nil || policer(c) != nil || c.idle() || math.IsInf(c.lossBound(), 1) {
		return nil
	}
	return &Finding{Cause: RandomLoss, BoundBps: max(c.goodput, c.lossBound()), Evidence: []string{
		fmt.Sprintf("%s of the segments are lost while packets hardly wait (%s at least, %s usually)", percent(c.lost), milliseconds(f.MinRTT), milliseconds(f.RTT)),
		fmt.Sprintf("%s reaches %s with that, by its model", orDefault(c.o.CongestionControl, "the congestion control"), units.FormatRate(c.lossBound())),
	}}
}
