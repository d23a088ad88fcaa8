package doctor

import (
	"cmp"
	"fmt"
	"math"

	"longhaul/internal/words/units"
)

var randomLossCause = causeEntry{
	cause: RandomLoss, rule: randomLoss, byTiming: true, relayed: true, doubt: capacityDoubt,
	remedies: func(c *patient) []Remedy { return []Remedy{c.haul()} },
	sentence: limited("The path loses packets. The sender takes that for congestion and slows down to %s."),
}

// hardlyQueued reports whether packets do not wait in a queue. Without a trial a delay that
// varies from packet to packet may still be one.
func (c *patient) hardlyQueued() bool {
	return c.f.Steady < queued && (c.f.Queue < queued || !math.IsInf(c.capacity, 1))
}

// randomLoss: the path loses segments without a full queue.
func randomLoss(c *patient) *Finding {
	f := c.f
	if !(c.lost > 0 && c.hardlyQueued()) || f.SlowStart || c.reorderingExplains() || spurious(c) != nil || !c.lossLimits() || policer(c) != nil || c.idle() || math.IsInf(c.lossBound(), 1) {
		return nil
	}
	return &Finding{Cause: RandomLoss, BoundBps: max(c.goodput, c.lossBound()), Evidence: []string{
		fmt.Sprintf("%s of the segments are lost while packets hardly wait (%s at least, %s usually)", percent(c.lost), milliseconds(f.MinRTT), milliseconds(f.RTT)),
		fmt.Sprintf("%s reaches %s with that, by its model", cmp.Or(c.o.CongestionControl, "the congestion control"), units.FormatRate(c.lossBound())),
	}}
}

// lossLimits reports whether a capture shows enough losses to limit the sender: several, of
// full segments, for which the congestion control's model is not far above the goodput.
func (c *patient) lossLimits() bool {
	n := &c.counts
	return !c.captured() || n.Retransmitted-n.Spurious >= severalLost && c.sendsFull() && c.lossBound() < maxOfModel*c.goodput
}

// maxOfModel is how far a congestion control's model may be above the goodput for losses to
// be the limit.
const maxOfModel = 2.5

// severalLost is the number of losses that are no accident.
const severalLost = 3

// reorderingExplains reports whether reordering explains most retransmissions.
func (c *patient) reorderingExplains() bool {
	finding := reordering(c)
	return finding != nil && finding.strength != NotCertain
}
