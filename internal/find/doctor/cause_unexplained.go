package doctor

import (
	"fmt"
	"longhaul/internal/words/units"
	"math"
)

var unexplainedCause = causeEntry{
	cause: Unexplained, needsNone: true, doubt: unexplainedDoubt,
	sentence: func(r *Report) string {
		return fmt.Sprintf("The connection gets %s, and no figure explains its limit.", r.gets())
	},
}

func unexplainedDoubt(c *patient) string {
	capture := c.o.Capture
	if c.o.Capacity != nil || capture == nil || !capture.AtSender || !capture.Handshake {
		return capacityDoubt(c)
	}
	if c.goodput < ownQueue*c.path && !math.IsInf(c.path, 1) {
		return fmt.Sprintf("bursts cross the path at %s, so the program, its pacing or its send buffer may limit it: "+
			"longhaul doctor --remote on the sending host tells them apart", units.FormatRate(c.path))
	}
	return "a capture does not show the program and its buffers: run longhaul doctor --remote on the sending host"
}
