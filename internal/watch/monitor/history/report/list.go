// Package report writes what a history tells: lists, single records and
// comparisons as text that fits 80 columns, records as CSV and JSON.
package report

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/words/display"
	"longhaul/internal/words/units"
)

// screenWidth is the number of columns that texts fit into.
const screenWidth = 80

// List is what a table of records is about.
type List struct {
	history.Query
	history.Extent           // of the history; of a database without its figures
	Now            time.Time // that dates are seen from
	OfRelays       bool      // the records are of several relays
}

// listColumn is a column whose width follows its texts.
type listColumn struct {
	title string
	text  func(*monitor.Record) string
	width int
	least int // below this it shows too little
}

// WriteList writes records as a table that fits 80 columns, or a wider terminal.
func WriteList(w io.Writer, records []monitor.Record, l List) {
	if len(records) == 0 {
		WriteNone(w, l.Extent)
		return
	}
	width := screenWidth
	if columns, ok := display.TerminalWidth(w); ok {
		width = max(width, columns)
	}
	// Times of the last day need no date.
	layout := time.TimeOnly
	for i := range records {
		if l.Now.Sub(records[i].End) > 20*time.Hour || records[i].End.After(l.Now) {
			layout = "01-02 15:04"
		}
	}
	why := 15
	columns := []*listColumn{
		{title: "TUNNEL", text: func(r *monitor.Record) string { return r.Tunnel }, least: 8},
		{title: "CLIENT", text: func(r *monitor.Record) string { return hostText(r.Client) }, least: 0},
	}
	if l.OfRelays {
		columns = append([]*listColumn{{title: "RELAY", text: shortRelays(records), least: 8}}, columns...)
		if width < 100 { // there is room for one of both
			columns = slices.Delete(columns, 1, 2)
			why = 12
		}
	}
	id, used := 2, len(layout)+why+4*5+5
	for i := range records {
		id = max(id, len(strconv.FormatInt(records[i].ID, 10)))
	}
	used += id
	for _, c := range columns {
		c.width = len(c.title)
		for i := range records {
			c.width = max(c.width, len(c.text(&records[i])))
		}
		used += c.width + 1
	}
	for _, c := range columns { // addresses last: names differ at both ends
		if over := used - width; over > 0 {
			less := min(over, max(c.width-max(c.least, len(c.title)), 0))
			c.width -= less
			used -= less
		}
	}
	line := func(id, ended string, text func(*listColumn) string, rest ...any) {
		fmt.Fprintf(w, "%s %-*s ", id, len(layout), ended)
		for _, c := range columns {
			fmt.Fprintf(w, "%-*s ", c.width, display.Shorten(text(c), c.width))
		}
		fmt.Fprintf(w, "%5s %5s %5s %4s %s\n", rest...)
	}
	line(fmt.Sprintf("%*s", id, "ID"), "ENDED", func(c *listColumn) string { return c.title }, "TIME", "BYTES", "BIT/S", "RETR", "WHY")
	for i := range records {
		r := &records[i]
		line(fmt.Sprintf("%*d", id, r.ID), r.End.Local().Format(layout), func(c *listColumn) string { return c.text(r) },
			display.Span(r.Elapsed.Duration()), display.Quantity(r.BytesUp+r.BytesDown), goodputText(r), display.Share(retransmittedShare(r)), display.Shorten(whyText(r), why))
	}
	if l.MinBytes == 0 && (l.Order == history.Slowest || l.Order == history.Retransmitted) {
		fmt.Fprintf(w, "of flows that moved %s bytes or more; --min-bytes 0 takes all\n", display.Quantity(history.DefaultMinBytes))
	}
	switch {
	case len(records) != l.Limit:
	case l.OfRelays:
		fmt.Fprintln(w, "there may be more: --limit N lists more")
	default:
		fmt.Fprintf(w, "there may be more: the history has %s; --limit N lists more\n", display.Plural(int(l.Records), "record"))
	}
}

// shortRelays writes relays without the domain that all of them have.
func shortRelays(records []monitor.Record) func(*monitor.Record) string {
	_, domain, _ := strings.Cut(records[0].Relay, ".")
	for i := range records {
		if _, other, _ := strings.Cut(records[i].Relay, "."); other != domain {
			domain = ""
		}
	}
	return func(r *monitor.Record) string {
		if domain == "" {
			return r.RelayName()
		}
		return strings.TrimSuffix(r.RelayName(), "."+domain)
	}
}

// WriteNone says what a history holds of which nothing is selected.
func WriteNone(w io.Writer, e history.Extent) {
	fmt.Fprintf(w, "no such flows; the history has %s", display.Plural(int(e.Records), "record"))
	if !e.Oldest.IsZero() {
		fmt.Fprintf(w, ", from %s on", e.Oldest.Local().Format("2006-01-02 15:04"))
	}
	fmt.Fprintln(w)
}

func hostText(a flow.Address) string {
	if !a.IsValid() {
		return "-"
	}
	if p := a.Truncated(); p.IsValid() {
		return p.String()
	}
	return a.Addr().String()
}

func goodputText(r *monitor.Record) string {
	if g := r.GoodputBps(); g > 0 {
		return display.Quantity(int64(g))
	}
	return "-"
}

// retransmittedShare is the share of the data sent that was retransmitted, both legs
// together; negative: unknown.
func retransmittedShare(r *monitor.Record) float64 {
	var sent, retransmitted int64
	for _, leg := range []*flow.LegRecord{&r.ClientLeg, &r.TargetLeg} {
		if leg.BytesSent > 0 {
			sent += leg.BytesSent
			retransmitted += max(leg.BytesRetransmitted, 0)
		}
	}
	if sent == 0 {
		return -1
	}
	return float64(retransmitted) / float64(sent)
}

// cleanEnd is the reason of a flow that both sides ended.
const cleanEnd = "end"

func whyText(r *monitor.Record) string {
	switch {
	case r.Reason != cleanEnd && r.Reason != "":
		return string(r.Reason)
	case r.Cause != "":
		return string(r.Cause)
	}
	return "-"
}

// WriteHealth writes what a sound history holds.
func WriteHealth(w io.Writer, h history.Health) {
	fmt.Fprintf(w, "%s is sound: %s, %sB on disk\n", h.File, display.Plural(int(h.Records), "record"), display.Quantity(h.Bytes))
	if h.Records > 0 {
		fmt.Fprintf(w, "flows that ended %s\n", units.Period{From: h.Oldest, To: h.Newest})
	}
	if !h.SummariesSince.IsZero() {
		fmt.Fprintf(w, "summaries reach back to %s\n", h.SummariesSince.Local().Format("2006-01-02 15:04"))
	}
}
