package history

import (
	"fmt"
	"strconv"
	"time"

	"longhaul/internal/words/display"
)

// The thresholds of a comparison.
const (
	noteworthy = 1.05 // ratio of two times that counts as a change
	unlike     = 3    // ratio of two loads that makes their times say little
)

// Judge writes the verdict and the warnings of a comparison from its summaries.
func (c *Comparison) Judge() {
	c.Verdict, c.Warnings = c.verdict(), c.warnings()
}

func (c *Comparison) verdict() string {
	b, a := &c.Before, &c.After
	count := func(s *Summary) string { return display.Quantity(s.Transfers) }
	switch {
	case b.Transfers == 0 && a.Transfers == 0:
		return "No transfer ended in either period."
	case b.Transfers == 0:
		return fmt.Sprintf("No transfer ended in the period before. %s ended after it: half of them took at most %s.", count(a), timeText(a.TransferTime.P50))
	case a.Transfers == 0:
		return fmt.Sprintf("No transfer ended in the period after. %s ended before it: half of them took at most %s.", count(b), timeText(b.TransferTime.P50))
	case b.TransferTime.P50 <= 0 || a.TransferTime.P50 <= 0:
		return "The times of the transfers are not known in both periods."
	}
	times := fmt.Sprintf("half of them take at most %s, before %s.", timeText(a.TransferTime.P50), timeText(b.TransferTime.P50))
	switch longer := a.TransferTime.P50 / b.TransferTime.P50; {
	case longer >= noteworthy:
		return "Transfers are slower: they take " + Factor(longer) + " times as long; " + times
	case longer <= 1/noteworthy:
		return "Transfers are faster: they are " + Factor(1/longer) + " times as fast; " + times
	}
	return "Transfers take as long as before: " + times
}

// warnings says where the two loads are not alike.
func (c *Comparison) warnings() []string {
	b, a := &c.Before, &c.After
	if b.Transfers == 0 || a.Transfers == 0 {
		return nil
	}
	var all []string
	add := func(what string, before, after float64, format func(float64) string) {
		if ratio := after / before; ratio >= unlike || ratio <= 1/float64(unlike) {
			all = append(all, fmt.Sprintf("the loads differ: %s %s, before %s", format(after), what, format(before)))
		}
	}
	each := func(s *Summary) float64 { return max(1, float64(s.BytesUp+s.BytesDown)/float64(s.Transfers)) }
	add("per transfer", each(b), each(a), func(v float64) string { return display.Quantity(int64(v)) + "B" })
	hours := func(s *Summary) float64 { return s.Period.Until.Sub(s.Period.Since).Hours() }
	if hours(b) > 0 && hours(a) > 0 && !b.Period.Since.IsZero() && !a.Period.Since.IsZero() {
		add("flows an hour", float64(b.Flows)/hours(b), float64(a.Flows)/hours(a), Factor)
	}
	return all
}

// Factor writes a ratio in three digits, and never with an exponent.
func Factor(v float64) string {
	if v >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

func timeText(seconds float64) string {
	return display.Span(time.Duration(seconds * float64(time.Second)))
}
