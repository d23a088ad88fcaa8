// Package report writes the results of measurements: as text, as CSV, and as JSON
// under iperf3's names.
package report

import "longhaul/internal/find/measure"

// Writer writes the results of a test, or of several in turn.
type Writer interface {
	// Interval takes the figures of an interval when it ends, and how much of
	// the test is over by then, from 0 to 1.
	Interval(i measure.Interval, share float64)
	// Summary takes the figures of a whole test, or of what there was of it before a
	// failure. It returns the first error of the writing.
	Summary(s measure.Summary, failure error) error
}

// Progress tells how much of a test is over.
type Progress struct {
	options measure.Options
	moved   int64 // bytes, in a test of an amount, in the direction that is behind
}

// NewProgress begins at the start of a test.
func NewProgress(o measure.Options) *Progress { return &Progress{options: o} }

// Share is how much of the test is over after another interval, from 0 to 1.
func (p *Progress) Share(i measure.Interval) float64 {
	o := &p.options
	if o.Bytes == 0 {
		return min(1, float64(i.End+o.Omit)/float64(o.Duration+o.Omit))
	}
	sums := map[bool]int64{}
	for _, s := range i.Streams {
		sums[s.Sends] += s.Bytes
	}
	least := int64(-1)
	for _, n := range sums {
		if least < 0 || n < least {
			least = n
		}
	}
	p.moved += max(least, 0)
	return min(1, float64(p.moved)/float64(o.Bytes))
}

// byReceiver reports whether the receiver's count of a stream is known.
func byReceiver(s measure.StreamSummary) bool { return s.ReceivedBytes >= 0 }

// direction names the direction of a stream.
func direction(sends bool) string {
	if sends {
		return "sent"
	}
	return "received"
}
