package doctor

import (
	"time"
	"unicode"
	"unicode/utf8"
)

// Strength is how far the evidence of a verdict goes.
type Strength string

// The strengths of a verdict.
const (
	Certain    Strength = "certain"     // no other cause shows the same figures
	Likely     Strength = "likely"      // the evidence is strong, and of one end alone
	NotCertain Strength = "not certain" // another cause shows the same figures
)

// The exit statuses of longhaul doctor with a verdict.
const (
	exitCertain    = 0
	exitLikely     = 4
	exitNotCertain = 5
)

// ExitStatus is the exit status of longhaul doctor with a verdict of this strength.
func (s Strength) ExitStatus() int {
	switch s {
	case Certain:
		return exitCertain
	case Likely:
		return exitLikely
	}
	return exitNotCertain
}

// HasVerdict reports whether an exit status of longhaul doctor is that of a verdict.
func HasVerdict(exitStatus int) bool {
	return exitStatus == exitCertain || exitStatus == exitLikely || exitStatus == exitNotCertain
}

// Weaker returns the weaker of two strengths.
func (s Strength) Weaker(other Strength) Strength {
	if other.ExitStatus() > s.ExitStatus() {
		return other
	}
	return s
}

// hedged puts a sentence as strongly as the evidence allows.
func (s Strength) hedged(sentence string) string {
	word := map[Strength]string{Likely: "Probably", NotCertain: "Perhaps"}[s]
	if word == "" {
		return sentence
	}
	first, size := utf8.DecodeRuneInString(sentence)
	return word + " " + string(unicode.ToLower(first)) + sentence[size:]
}

// strength returns how far the evidence of the first finding goes, and the doubt about it:
// why it is not certain, and how to make it so.
func (c *patient) strength(findings []Finding) (Strength, string) {
	first := findings[0]
	doubt := c.doubt(findings)
	switch entry := first.Cause.entry(); {
	case first.Cause == Unexplained:
		return NotCertain, doubt
	case c.captured() && c.counts.MinRTT > 0 && c.counts.MinRTT < time.Microsecond:
		return NotCertain, "round trips below a microsecond show that the times in the capture are not those of a network"
	case c.starved(entry):
		return NotCertain, c.starvedDoubt()
	case first.strength != "":
		return first.strength, first.doubt
	case doubt == "":
		return Certain, ""
	case entry.likely != nil && entry.likely(c):
		return Likely, doubt
	}
	return NotCertain, doubt
}
