package doctor

import (
	"fmt"
	"math"

	"longhaul/internal/words/units"
)

// receives reports whether this end mostly receives. The clocks and windows of its
// sending do not show the limit then.
func (c *patient) receives() bool { return c.f.Received > 3*c.goodput }

// diagnoseReceiver checks the two limits that the receiving end shows: its own program
// and its own window. Only the sender shows others.
func (c *patient) diagnoseReceiver(r Report) Report {
	f := c.f
	c.goodput, r.GoodputBps = f.Received, f.Received
	r.Observation.Elsewhere, r.Certain = true, true
	window := f.Announced * 8 / f.RTT.Seconds()
	switch {
	case f.RecvQueue > 16*float64(f.MSS) && f.RecvQueue > 0.1*f.Announced:
		r.Findings = []Finding{{Cause: Reader, BoundBps: f.Received, Evidence: []string{
			fmt.Sprintf("%s of received data usually wait to be read: the program of this end reads slowly",
				units.FormatSize(f.RecvQueue)),
		}}}
		r.Remedies = []Remedy{{Place: InProgram, Action: "have the program of this end read faster: larger reads, reading and writing at once, several connections"}}
	case f.Received > 0.8*window:
		r.Findings = []Finding{{Cause: ReceiverWindow, BoundBps: window, Evidence: []string{
			fmt.Sprintf("this end announces a window of %s; per round trip of %s that is %s, and %s come", units.FormatSize(f.Announced), milliseconds(f.RTT), units.FormatRate(window), units.FormatRate(f.Received)),
		}}}
		r.Remedies = c.against(ReceiverWindow)
		// A trial sends from this end, and shows the other direction.
		c.capacity, c.path = math.Inf(1), math.Inf(1)
		if pair := c.relayPair(r.Findings); pair != nil {
			pair.Outlook = Outlook{Unknown: unknownCapacity}
			r.Remedies = append(r.Remedies, *pair)
		}
	default:
		r.Findings = []Finding{{Cause: Unexplained, Evidence: []string{
			"this end reads the received data in time, and its window has room for more",
		}}}
		r.Certain, r.Doubt = false,
			"only the far host, which sends, shows the limit: run doctor there, or longhaul doctor HOST --receive here"
	}
	r.Cause = r.Findings[0].Cause
	for i := range r.Remedies {
		if r.Remedies[i].Causes == nil {
			r.Remedies[i].Causes = []Cause{r.Cause}
		}
	}
	return r
}
