//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"longhaul/internal/display"
	"longhaul/internal/monitor"
	"longhaul/internal/monitor/history"
	"longhaul/internal/units"
)

// historyList is the JSON of `longhaul history`.
type historyList struct {
	File    string           `json:"file"`
	Records []monitor.Record `json:"records"`
}

// writeHistory prints a table that fits 80 columns, or a wider terminal.
func writeHistory(w io.Writer, records []monitor.Record, q history.Query, e history.Extent, now time.Time) {
	if len(records) == 0 {
		writeHeld(w, e)
		return
	}
	width := helpWidth
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
	fmt.Fprintf(w, row, id, "ID", len(layout), "ENDED", tunnel, "TUNNEL", client, "CLIENT", "TIME", "BYTES", "BIT/S", "AGN", "WHY")
	for i := range records {
		r := &records[i]
		fmt.Fprintf(w, row, id, strconv.FormatInt(r.ID, 10), len(layout), r.End.Local().Format(layout), tunnel, display.Shorten(r.Tunnel, tunnel),
			client, display.Shorten(hostText(r.Client), client), lengthText(r.Elapsed), display.Quantity(r.BytesUp+r.BytesDown), goodputText(r), portionText(againShare(r)), display.Shorten(whyText(r), why))
	}
	if q.MinBytes == 0 && (q.Order == history.Slowest || q.Order == history.Retransmitted) {
		fmt.Fprintf(w, "of flows that moved %s bytes or more; --min-bytes 0 takes all\n", display.Quantity(history.DefaultMinBytes))
	}
	if len(records) == q.Limit {
		fmt.Fprintf(w, "there may be more: the history has %s; --limit N lists more\n", display.Plural(int(e.Records), "record"))
	}
}

// writeHeld says what there is, where nothing of it is selected.
func writeHeld(w io.Writer, e history.Extent) {
	fmt.Fprintf(w, "no such flows; the history has %s", display.Plural(int(e.Records), "record"))
	if !e.Oldest.IsZero() {
		fmt.Fprintf(w, ", from %s on", e.Oldest.Local().Format("2006-01-02 15:04"))
	}
	fmt.Fprintln(w)
}

func writeNone(ctx context.Context, w io.Writer, r *history.Reader) error {
	e, err := r.Extent(ctx)
	if err == nil {
		fmt.Fprintln(w)
		writeHeld(w, e)
	}
	return err
}

func hostText(a monitor.Address) string {
	if !a.IsValid() {
		return "-"
	}
	return a.Addr().String()
}

// lengthText writes how long something took in at most five characters.
func lengthText(d time.Duration) string {
	switch {
	case d < 0:
		return "-"
	case d < time.Millisecond:
		return fmt.Sprintf("%dµs", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 9950*time.Millisecond:
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return display.Age(d.Seconds())
}

func goodputText(r *monitor.Record) string {
	if g := r.GoodputBps(); g > 0 {
		return display.Quantity(int64(g))
	}
	return "-"
}

// againShare is of what both legs sent; negative: not known.
func againShare(r *monitor.Record) float64 {
	var sent, again int64
	for _, leg := range []*monitor.LegRecord{&r.ClientLeg, &r.TargetLeg} {
		if leg.BytesSent > 0 {
			sent += leg.BytesSent
			again += max(leg.BytesRetransmitted, 0)
		}
	}
	if sent == 0 {
		return -1
	}
	return float64(again) / float64(sent)
}

// shareText writes a share in at most four characters; one that is negative is
// not known.
func portionText(share float64) string {
	switch percent := 100 * share; {
	case share < 0:
		return "-"
	case share > 0 && percent < 0.05:
		return "<.1%"
	case share > 0 && percent < 9.95:
		return fmt.Sprintf("%.1f%%", percent)
	default:
		return fmt.Sprintf("%.0f%%", percent)
	}
}

// cleanEnd is the reason of a flow that both sides ended.
const cleanEnd = "end"

func whyText(r *monitor.Record) string {
	switch {
	case r.Reason != cleanEnd && r.Reason != "":
		return r.Reason
	case r.Cause != "":
		return string(r.Cause)
	}
	return "-"
}

// historyColumns are the columns of CSV, with their units. What is not known is
// empty.
var historyColumns = []string{
	"id", "tunnel", "client", "target", "hop", "start", "end", "elapsed_s", "bytes_up", "bytes_down", "goodput_bits_per_second",
	"cause", "cause_leg", "cause_share", "reason", "ended_by", "error",
	"client_side", "client_congestion_control", "client_rtt_us", "client_rtt_min_us", "client_bytes_sent", "client_bytes_retransmitted", "client_retransmits_segments",
	"target_side", "target_congestion_control", "target_rtt_us", "target_rtt_min_us", "target_bytes_sent", "target_bytes_retransmitted", "target_retransmits_segments",
}

type historyCSV struct{ w *csv.Writer }

func newHistoryCSV(w io.Writer) *historyCSV {
	c := &historyCSV{csv.NewWriter(w)}
	_ = c.w.Write(historyColumns) // flush tells of an error
	return c
}

func (c *historyCSV) write(r *monitor.Record) {
	number := func(v int64, known bool) string {
		if !known {
			return ""
		}
		return strconv.FormatInt(v, 10)
	}
	address := func(a monitor.Address) string {
		if !a.IsValid() {
			return ""
		}
		return a.String()
	}
	row := []string{
		number(r.ID, true), r.Tunnel, address(r.Client), address(r.Target), r.Hop,
		r.Start.Format(time.RFC3339Nano), r.End.Format(time.RFC3339Nano), strconv.FormatFloat(r.Elapsed.Seconds(), 'f', -1, 64),
		number(r.BytesUp, true), number(r.BytesDown, true), number(int64(r.GoodputBps()), r.GoodputBps() > 0),
		string(r.Cause), string(r.CauseLeg), strconv.FormatFloat(r.CauseShare, 'f', -1, 64), r.Reason, r.EndedBy, r.Error,
	}
	if r.Cause == "" {
		row[13] = ""
	}
	for _, leg := range []*monitor.LegRecord{&r.ClientLeg, &r.TargetLeg} {
		row = append(row, leg.Side, leg.CongestionControl, number(leg.RTT.Microseconds(), leg.RTT > 0), number(leg.MinRTT.Microseconds(), leg.MinRTT > 0),
			number(leg.BytesSent, leg.BytesSent >= 0), number(leg.BytesRetransmitted, leg.BytesRetransmitted >= 0), number(leg.Retransmits, leg.Retransmits >= 0))
	}
	_ = c.w.Write(row)
}

func (c *historyCSV) flush() error {
	c.w.Flush()
	return c.w.Error()
}

// exportHistory prints every record.
func exportHistory(ctx context.Context, w io.Writer, r *history.Reader, q history.Query, asCSV bool) error {
	out := bufio.NewWriterSize(w, 1<<16)
	if asCSV {
		c := newHistoryCSV(out)
		err := r.Walk(ctx, q, func(r *monitor.Record) error {
			c.write(r)
			return c.w.Error()
		})
		if err == nil {
			err = c.flush()
		}
		if err == nil {
			err = out.Flush()
		}
		return err
	}
	encoder := json.NewEncoder(out)
	if err := r.Walk(ctx, q, func(r *monitor.Record) error { return encoder.Encode(r) }); err != nil {
		return err
	}
	return out.Flush()
}

func writeHistoryHealth(w io.Writer, h historyHealth) {
	fmt.Fprintf(w, "%s is sound: %s, %sB on disk\n", h.File, display.Plural(int(h.Records), "record"), display.Quantity(h.Bytes))
	if h.Records > 0 {
		fmt.Fprintf(w, "flows that ended %s\n", units.Period{From: h.Oldest, To: h.Newest})
	}
	if !h.SummariesSince.IsZero() {
		fmt.Fprintf(w, "summaries reach back to %s\n", h.SummariesSince.Local().Format("2006-01-02 15:04"))
	}
}
