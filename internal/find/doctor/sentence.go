package doctor

import (
	"fmt"

	"longhaul/internal/words/units"
)

// Sentence returns the verdict for a reader without knowledge of TCP.
func (r Report) Sentence() string { return r.Cause.entry().sentence(&r) }

func (r *Report) gets() string { return units.FormatRate(r.GoodputBps) }

// could says what the best remedy brings; empty if it is little or unknown.
func (r *Report) could() string {
	best := 0.0
	for _, remedy := range r.Remedies {
		best = max(best, remedy.PredictedBps)
	}
	if best >= Worthwhile*r.GoodputBps && best > 0 {
		return fmt.Sprintf(" It could be about %s.", units.FormatRate(best))
	}
	return ""
}
