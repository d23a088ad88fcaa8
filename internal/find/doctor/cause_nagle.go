package doctor

import (
	"fmt"

	"longhaul/internal/words/units"
)

var nagleCause = causeEntry{
	cause: Nagle, rule: nagle, glances: true, remedies: nagleRemedies,
	sentence: limited("The sending program writes messages in pieces, and TCP holds back the last piece of each until " +
		"the one before is acknowledged (Nagle's algorithm): that limits it to %s."),
}

// nagle: the connection waits for acknowledgements with less than a segment to send, which
// the other end delays until it has something to answer (RFC 1122, 4.2.3.2 and 4.2.3.4).
// The wait counts only in an exchange, where the program waits meanwhile.
func nagle(c *patient) *Finding {
	f := c.f
	if c.captured() || !c.holdsBack() || !(c.exchange() > 0) { // a capture does not show what waits
		return nil
	}
	finding := &Finding{Cause: Nagle, BoundBps: c.goodput, Evidence: []string{
		fmt.Sprintf("in %s of the samples %s waited, less than a segment of %d, though both windows had room",
			percent(f.Held), units.FormatSize(f.HeldBytes), f.MSS),
		c.exchangeEvidence(),
	}}
	if f.RTT > f.MinRTT*3/2 {
		finding.Evidence = append(finding.Evidence, fmt.Sprintf("round trips take %s, and %s at least: the other end delays acknowledgements",
			milliseconds(f.RTT), milliseconds(f.MinRTT)))
	}
	if f.MinRTT > 0 {
		// What is left of an exchange is the time in which nothing was held back, and at
		// least a round trip.
		left := min(c.exchange()*8/f.MinRTT.Seconds(), c.path)
		if f.Held < 0.99 {
			left = min(left, c.goodput/(1-f.Held))
		}
		finding.PredictedBps, finding.Next = max(left, c.goodput), "the round trips of the exchange"
	}
	return finding
}

// holdsBack reports whether Nagle's algorithm holds data back for much of the time. Two
// samples have to show it both.
func (c *patient) holdsBack() bool {
	if c.glances() {
		return c.f.Held == 1
	}
	return c.f.Held > 0.3
}

// maybeNagle reports whether the program sends several segments before each answer, of which
// Nagle's algorithm may hold one back: two samples need not show it.
func (c *patient) maybeNagle() bool {
	return c.exchange() > 0 && float64(c.f.Sent) > 1.5*float64(c.f.Answers)
}

// maxExchange is the data for an answer above which a program does not wait for it: it
// sends a stream, and the other end says now and then how far it is.
const maxExchange = 64 << 10

// exchange returns the bytes that the program sends for each answer; 0 if it sends a stream.
func (c *patient) exchange() float64 {
	f := c.f
	if f.Answers < 3 {
		return 0
	}
	if each := c.goodput / 8 * f.Time.Seconds() / float64(f.Answers); each <= maxExchange {
		return each
	}
	return 0
}

func (c *patient) exchangeEvidence() string {
	return fmt.Sprintf("the two programs take turns: %d answers came, one for each %s", c.f.Answers, units.FormatSize(c.exchange()))
}

func nagleRemedies(*patient) []Remedy {
	return []Remedy{{Action: "have the program write each message at once (writev), or set TCP_NODELAY", Place: InProgram}}
}
