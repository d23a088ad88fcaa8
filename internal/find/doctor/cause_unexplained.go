package doctor

import (
	"fmt"
	"math"

	"longhaul/internal/words/units"
)

var unexplainedCause = causeEntry{
	cause: Unexplained, byTiming: true, needsNone: true, doubt: unexplainedDoubt,
	sentence: func(r *Report) string {
		return fmt.Sprintf("The connection gets %s, and no figure explains its limit.", r.gets())
	},
}

// unexplained names what was counted.
func (c *patient) unexplained() Finding {
	f, evidence := c.f, c.counts.facts()
	if f.Steady > steadyQueue && f.CwndUsed > 0.5 && math.IsInf(c.capacity, 1) && !c.captured() {
		evidence = append(evidence, fmt.Sprintf("packets wait %s in a queue, which this connection or others fill", milliseconds(f.RTT-f.MinRTT)))
	}
	if len(evidence) == 0 {
		evidence = []string{"no figure stands out"}
	}
	return Finding{Cause: Unexplained, Evidence: evidence}
}

func unexplainedDoubt(c *patient) string {
	capture := c.o.Capture
	if c.o.Capacity != nil || c.lacks() || capture == nil || !capture.AtSender || !capture.Handshake {
		return capacityDoubt(c)
	}
	if c.goodput < ownQueue*c.path && !math.IsInf(c.path, 1) {
		return fmt.Sprintf("bursts cross the path at %s, so the program, its pacing or its send buffer may limit it: "+
			"%s on the sending host tells them apart", units.FormatRate(c.path), c.live())
	}
	return "a capture does not show the program and its buffers: run " + c.live() + " on the sending host"
}
