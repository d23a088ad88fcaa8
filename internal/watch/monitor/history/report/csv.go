package report

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"io"
	"strconv"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
)

// columns are the names of a CSV's columns, with their units. What is not known is
// empty.
var columns = []string{
	"id", "tunnel", "client", "target", "hop", "start", "end", "elapsed_s", "bytes_up", "bytes_down", "goodput_bits_per_second",
	"cause", "cause_leg", "cause_share", "reason", "ended_by", "error",
	"client_side", "client_congestion_control", "client_rtt_us", "client_rtt_min_us", "client_bytes_sent", "client_bytes_retransmitted", "client_retransmits_segments",
	"target_side", "target_congestion_control", "target_rtt_us", "target_rtt_min_us", "target_bytes_sent", "target_bytes_retransmitted", "target_retransmits_segments",
	"resumes", "outage_s",
	"name", "relay", "site", "peer", "relay_site",
}

// CSV writes records as lines of values, after a line of names.
type CSV struct{ w *csv.Writer }

// NewCSV begins with the line of names.
func NewCSV(w io.Writer) *CSV {
	c := &CSV{csv.NewWriter(w)}
	_ = c.w.Write(columns) // Flush tells of an error
	return c
}

// Write writes a record.
func (c *CSV) Write(r *monitor.Record) {
	number := func(v int64, known bool) string {
		if !known {
			return ""
		}
		return strconv.FormatInt(v, 10)
	}
	address := func(a flow.Address) string {
		if !a.IsValid() {
			return ""
		}
		return a.String()
	}
	row := []string{
		number(r.ID, true), r.Tunnel, address(r.Client), address(r.Target), r.Hop,
		r.Start.Format(time.RFC3339Nano), r.End.Format(time.RFC3339Nano), strconv.FormatFloat(r.Elapsed.Seconds(), 'f', -1, 64),
		number(r.BytesUp, true), number(r.BytesDown, true), number(int64(r.GoodputBps()), r.GoodputBps() > 0),
		string(r.Cause), string(r.CauseLeg), strconv.FormatFloat(r.CauseShare, 'f', -1, 64), string(r.Reason), r.EndedBy, r.Error,
	}
	if r.Cause == "" {
		row[13] = ""
	}
	for _, leg := range []*flow.LegRecord{&r.ClientLeg, &r.TargetLeg} {
		row = append(row, leg.Side, leg.CongestionControl, number(leg.RTT.Duration().Microseconds(), leg.RTT > 0), number(leg.MinRTT.Duration().Microseconds(), leg.MinRTT > 0),
			number(leg.BytesSent, leg.BytesSent >= 0), number(leg.BytesRetransmitted, leg.BytesRetransmitted >= 0), number(leg.Retransmits, leg.Retransmits >= 0))
	}
	outage := ""
	if r.Resumes > 0 || r.Outage > 0 {
		outage = strconv.FormatFloat(r.Outage.Seconds(), 'f', -1, 64)
	}
	_ = c.w.Write(append(row, number(r.Resumes, outage != ""), outage, r.Name.String(), r.Relay, r.Site, r.Peer, r.RelaySite))
}

// Flush ends the writing and returns its first error.
func (c *CSV) Flush() error {
	c.w.Flush()
	return c.w.Error()
}

// Export writes every record that a query selects, the oldest first, as CSV or as
// lines of JSON.
func Export(ctx context.Context, w io.Writer, r history.Source, q history.Query, asCSV bool) error {
	out := bufio.NewWriterSize(w, 1<<16)
	if asCSV {
		c := NewCSV(out)
		err := r.Walk(ctx, q, func(r *monitor.Record) error {
			c.Write(r)
			return c.w.Error()
		})
		if err != nil {
			return err
		}
		if err := c.Flush(); err != nil {
			return err
		}
		return out.Flush()
	}
	encoder := json.NewEncoder(out)
	if err := r.Walk(ctx, q, func(r *monitor.Record) error { return encoder.Encode(r) }); err != nil {
		return err
	}
	return out.Flush()
}
