package transfers

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"longhaul/internal/words/display"
)

// WriteText prints the result in 80 columns.
func (r Result) WriteText(w io.Writer) error {
	direct := 0.0
	for _, c := range r.Cases {
		if c.Name == "direct" {
			direct = c.GoodputBps
		}
	}
	captured := slices.ContainsFunc(r.Cases, func(c CaseResult) bool { return c.Segments != nil })
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	// What is of no case's interest has no column: there are 80 characters.
	columns := []resultColumn{
		{"case", true, func(c CaseResult) string { return shortCase(c.Name) }},
		{"goodput", true, func(c CaseResult) string { return fmt.Sprintf("%.1f", c.GoodputBps/1e6) }},
		{"spread", !captured || r.Cases[0].Runs > 1, func(c CaseResult) string {
			if c.Runs == 1 || c.GoodputBps == 0 {
				return "-"
			}
			return fmt.Sprintf("±%.1f%%", 50*(c.GoodputMaxBps-c.GoodputMinBps)/c.GoodputBps)
		}},
		{"of limit", true, func(c CaseResult) string { return fmt.Sprintf("%.1f%%", 100*c.GoodputBps/c.LimitBps) }},
		{"× direct", !captured, func(c CaseResult) string {
			if direct == 0 {
				return "-"
			}
			return fmt.Sprintf("%.1f", c.GoodputBps/direct)
		}},
		{"retrans", true, func(c CaseResult) string { return fmt.Sprintf("%.2f%%", 100*c.RetransmitRatio) }},
		{"CPU s/GB", !captured, func(c CaseResult) string {
			if c.RelayCPUPerGB == nil {
				return "-"
			}
			return fmt.Sprintf("%.2f", *c.RelayCPUPerGB)
		}},
		{"MSS A", captured, ofSegments(func(s Segments) int { return s.MSSOfA })},
		{"MSS B", captured, ofSegments(func(s Segments) int { return s.MSSOfB })},
		{"sent", captured, ofSegments(func(s Segments) int { return s.Sent })},
		{"report", true, func(c CaseResult) string {
			switch {
			case c.ReferenceBps == nil:
				return "-"
			case c.ReferenceBps[1] != c.ReferenceBps[0]:
				return fmt.Sprintf("%.0f-%.0f", c.ReferenceBps[0]/1e6, c.ReferenceBps[1]/1e6)
			}
			return fmt.Sprintf("%.0f", c.ReferenceBps[0]/1e6)
		}},
	}
	columns = slices.DeleteFunc(columns, func(c resultColumn) bool { return !c.shown })
	for _, c := range columns {
		fmt.Fprint(table, c.head, "\t")
	}
	fmt.Fprintln(table)
	for _, result := range r.Cases {
		for _, c := range columns {
			fmt.Fprint(table, c.cell(result), "\t")
		}
		fmt.Fprintln(table)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	least, most := r.Cases[0].LimitBps, r.Cases[0].LimitBps
	for _, c := range r.Cases {
		least, most = min(least, c.LimitBps), max(most, c.LimitBps)
	}
	fmt.Fprintf(w, "goodput and the report's figures in Mb/s; the limit is %s", display.Rate(least))
	if most > least {
		fmt.Fprintf(w, " to %s", display.Rate(most))
	}
	if n := r.Cases[0].Runs; n > 1 {
		fmt.Fprintf(w, "; medians of %d runs", n)
	}
	fmt.Fprintln(w)
	if captured {
		fmt.Fprintln(w, "captured at A: the MSS that each end announced, and the bytes of most segments")
	}
	for _, c := range r.Cases {
		if c.Hung > 0 {
			fmt.Fprintf(w, "%s hung, and was broken off\n", c.Name)
		}
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(w, "%s was not run: %s\n", s.Name, s.Reason)
	}
	return nil
}

// resultColumn is one column of the table of results.
type resultColumn struct {
	head  string
	shown bool
	cell  func(CaseResult) string
}

// ofSegments is a cell of what was captured.
func ofSegments(figure func(Segments) int) func(CaseResult) string {
	return func(c CaseResult) string {
		if c.Segments == nil || figure(*c.Segments) == 0 {
			return "-"
		}
		return strconv.Itoa(figure(*c.Segments))
	}
}

// shortCase keeps the table within 80 columns.
func shortCase(name string) string { return strings.Replace(name, "kernel-defaults", "kernel", 1) }
