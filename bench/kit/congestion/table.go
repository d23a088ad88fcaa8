package congestion

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"longhaul/internal/words/display"
)

// Tables fit into 80 columns.

// WriteText writes the result with a line for every algorithm.
func (r Result) WriteText(w io.Writer) error {
	table := newTable(w)
	fmt.Fprint(table, "sender\tMb/s\tspread\twhole\tsteady\tto 50\tto 90\tqueue p50\tp95\tsent\tretr\tRTO\tCPU\t\n")
	for _, c := range r.Cases {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", c.Name,
			digits(c.GoodputBps/1e6), halfRange(c.GoodputMinBps, c.GoodputMaxBps, c.GoodputBps, len(c.Runs)),
			percent(c.GoodputBps/c.LimitBps), percent(c.SteadyBps/c.LimitBps),
			c.SecondsTo50.format("%.1f"), c.SecondsTo90.format("%.1f"),
			c.QueueP50Ms.format("%.0f"), c.QueueP95Ms.format("%.0f"),
			c.SentPerDelivered.format("%.2f"), (100 * c.RetransmitRatio).format("%.1f%%"),
			c.Timeouts.format("%.0f"), c.SenderCPUPerGB.format("%.1f"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%s\n%s\n", wrapped(r.Path.String(), "; ", r.runs(), "."), wrapped(
		"whole, steady: goodput of the whole run and of its second half, of the limit: ", r.Path.limitInWords(),
		"; to 50, 90: seconds of data until that share of the limit was delivered; queue delay in ms; ",
		"sent: sent ÷ delivered; CPU: of the sending thread, s/GB."))
	return err
}

// runs returns a text with the number and duration of runs.
func (r Result) runs() string {
	seconds := fmt.Sprintf("%v s", r.Seconds)
	if len(r.Cases) > 0 && len(r.Cases[0].Runs) > 1 {
		return fmt.Sprintf("medians of %d runs of %s", len(r.Cases[0].Runs), seconds)
	}
	return "one run of " + seconds + " each"
}

// limitInWords explains the path's limit.
func (p Path) limitInWords() string {
	words := fmt.Sprintf("%s = rate × %d/%d", Rate(p.LimitBps()), p.MTUAB-52, p.MTUAB)
	if p.LossPlace == 1 && p.Loss.Probability > 0 {
		words += fmt.Sprintf(" × (1 - %g)", p.Loss.Probability)
	}
	return words
}

func newTable(w io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(w, 0, 0, 1, ' ', tabwriter.AlignRight)
}

// format writes the value, or a dash if it is missing.
func (v Value) format(verb string) string {
	if !v.Some() {
		return "-"
	}
	return fmt.Sprintf(verb, float64(v))
}

func percent(share float64) string {
	if share != share { // NaN: no measurement
		return "-"
	}
	if share < 0.0995 {
		return fmt.Sprintf("%.1f%%", 100*share)
	}
	return fmt.Sprintf("%.0f%%", 100*share)
}

// digits formats about three digits.
func digits(v float64) string {
	switch {
	case v < 0.995:
		return fmt.Sprintf("%.3f", v)
	case v < 9.95:
		return fmt.Sprintf("%.2f", v)
	case v < 99.5:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// halfRange returns half of the range in percent of the median.
func halfRange(lo, hi, mid float64, runs int) string {
	if runs < 2 || mid == 0 {
		return "-"
	}
	return fmt.Sprintf("±%.1f%%", 50*(hi-lo)/mid)
}

// wrapped joins sentences' parts and breaks them to lines of the tables' width.
func wrapped(parts ...string) string { return display.Fold(strings.Join(parts, ""), 79, 0) }
