// Package report writes what a history tells: lists, single records and
// comparisons as text that fits 80 columns, records as CSV and JSON.
package report

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/words/display"
	"longhaul/internal/words/units"
)

// screenWidth is the number of columns that texts fit into.
const screenWidth = 80

// WriteList writes records as a table that fits 80 columns, or a wider terminal.
// The extent is that of the history, now the time that dates are seen from.
func WriteList(w io.Writer, records []monitor.Record, q history.Query, e history.Extent, now time.Time) {
	if len(records) == 0 {
		WriteNone(w, e)
		return
	}
	width := screenWidth
	if columns, ok := display.TerminalWidth(w); ok {
		width = max(width, columns)
	}
	// Times of the last day need no date.
	layout := time.TimeOnly
	for i := range records {
		if now.Sub(records[i].End) > 20*time.Hour || records[i].End.After(now) {
			layout = "01-02 15:04"
		}
	}
	id, tunnel, client := 2, 6, 6
	for i := range records {
		r := &records[i]
		id = max(id, len(strconv.FormatInt(r.ID, 10)))
		tunnel = max(tunnel, len(r.Tunnel))
		client = max(client, len(hostText(r.Client)))
	}
	const why = 15
	if over := id + len(layout) + tunnel + client + why + 4*5 + 7 - width; over > 0 {
		// Addresses of IPv4 have 15 characters; names of tunnels differ at both ends.
		tunnel = max(tunnel-over, min(tunnel, 8))
		client = min(client, width-(id+len(layout)+tunnel+why+4*5+7))
	}
	const row = "%*s %-*s %-*s %-*s %5s %5s %5s %4s %s\n"
	fmt.Fprintf(w, row, id, "ID", len(layout), "ENDED", tunnel, "TUNNEL", client, "CLIENT", "TIME", "BYTES", "BIT/S", "RETR", "WHY")
	for i := range records {
		r := &records[i]
		fmt.Fprintf(w, row, id, strconv.FormatInt(r.ID, 10), len(layout), r.End.Local().Format(layout), tunnel, display.Shorten(r.Tunnel, tunnel),
			client, display.Shorten(hostText(r.Client), client), display.Span(r.Elapsed.Duration()), display.Quantity(r.BytesUp+r.BytesDown), goodputText(r), display.Share(retransmittedShare(r)), display.Shorten(whyText(r), why))
	}
	if q.MinBytes == 0 && (q.Order == history.Slowest || q.Order == history.Retransmitted) {
		fmt.Fprintf(w, "of flows that moved %s bytes or more; --min-bytes 0 takes all\n", display.Quantity(history.DefaultMinBytes))
	}
	if len(records) == q.Limit {
		fmt.Fprintf(w, "there may be more: the history has %s; --limit N lists more\n", display.Plural(int(e.Records), "record"))
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
