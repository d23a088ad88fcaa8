package doctor

import (
	"fmt"

	"longhaul/internal/words/units"
)

var pacingCause = causeEntry{
	cause: Pacing, rule: pacing, glances: true, remedies: pacingRemedies,
	sentence: limited("The program itself limits the connection to %s."),
}

// pacing: the socket may not send faster (SO_MAX_PACING_RATE).
func pacing(c *patient) *Finding {
	if !(c.goodput > 0.85*c.f.PacedBps && c.goodput < 1.2*c.f.PacedBps) {
		return nil
	}
	return &Finding{Cause: Pacing, BoundBps: c.f.PacedBps, Evidence: []string{
		fmt.Sprintf("the program limits the socket to %s of data (SO_MAX_PACING_RATE), and it gets %s",
			units.FormatRate(c.f.PacedBps), units.FormatRate(c.goodput)),
	}}
}

func pacingRemedies(*patient) []Remedy {
	return []Remedy{{Action: "have the program pace higher, or not at all (SO_MAX_PACING_RATE)", Place: InProgram}}
}
