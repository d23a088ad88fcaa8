package report

import (
	"encoding/csv"
	"io"
	"strconv"
	"time"

	"longhaul/internal/find/measure"
)

// columns are the columns of CSV, with their units. Rows of kind
// "interval" have those up to mss_bytes, as of the end here, and one of kind
// "total" for each stream has all, as of the end that sends. What is not known
// is empty.
var columns = []string{
	"kind", "stream", "direction", "start_s", "end_s", "omitted", "bytes", "bits_per_second",
	"retransmits_segments", "cwnd_bytes", "rtt_us", "rttvar_us", "pmtu_bytes", "mss_bytes",
	"bytes_received", "rtt_min_us", "rtt_median_us", "rtt_p99_us", "congestion_events", "delivery_rate_bits_per_second",
	"busy_us", "rwnd_limited_us", "sndbuf_limited_us", "rcv_mss_bytes", "reverse_pmtu_bytes", "congestion_control",
}

// CSV is a [Writer] of lines of values, after a line of names.
type CSV struct{ w *csv.Writer }

// NewCSV begins with the line of names.
func NewCSV(w io.Writer) *CSV {
	c := &CSV{csv.NewWriter(w)}
	_ = c.w.Write(columns) // Summary tells of an error
	return c
}

// row writes a row, as wide as the others.
func (c *CSV) row(values ...string) {
	_ = c.w.Write(append(values, make([]string, len(columns)-len(values))...))
}

// Interval writes its rows at once: somebody may be following them.
func (c *CSV) Interval(i measure.Interval, _ float64) {
	for _, s := range i.Streams {
		sample := s.Sample
		if !s.Sends { // of no use: the receiving end's
			sample = measure.Sample{CwndBytes: -1, RTT: -1, RTTVar: -1, PMTU: sample.PMTU, MSS: -1}
		}
		c.row("interval", strconv.Itoa(s.ID), direction(s.Sends), seconds(i.Start), seconds(i.End), strconv.FormatBool(i.Omitted),
			csvNumber(s.Bytes), csvNumber(int64(float64(s.Bytes)*8/(i.End-i.Start).Seconds())), csvNumber(s.Retransmits),
			csvNumber(sample.CwndBytes), csvMicroseconds(sample.RTT), csvMicroseconds(sample.RTTVar), csvNumber(sample.PMTU), csvNumber(sample.MSS))
	}
	c.w.Flush()
}

// Summary writes a row for each stream. A failure is for the caller to print.
func (c *CSV) Summary(s measure.Summary, failure error) error {
	if failure != nil && len(s.Streams) == 0 {
		return nil
	}
	for _, st := range s.Streams {
		f := st.Figures()
		bps := int64(-1)
		if byReceiver(st) {
			bps = int64(float64(st.ReceivedBytes) * 8 / s.Elapsed.Seconds())
		}
		c.row("total", strconv.Itoa(st.ID), direction(st.Sends), seconds(0), seconds(s.Elapsed), "false",
			csvNumber(st.SentBytes), csvNumber(bps), csvNumber(st.Retransmits),
			csvNumber(f.MaxCwndBytes), csvMicroseconds(f.RTTMean), "", csvNumber(f.PMTU), csvNumber(f.SndMSS),
			csvNumber(st.ReceivedBytes), csvMicroseconds(f.RTTMin), csvMicroseconds(f.RTTMedian), csvMicroseconds(f.RTTP99),
			csvNumber(f.CongestionEvents), csvNumber(int64(f.DeliveryBps)),
			csvMicroseconds(f.Busy), csvMicroseconds(f.RwndLimited), csvMicroseconds(f.SndbufLimited),
			csvNumber(f.RcvMSS), csvNumber(f.ReversePMTU), f.CongestionControl)
	}
	c.w.Flush()
	return c.w.Error()
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 3, 64) }

// csvNumber is empty for what is not known.
func csvNumber(n int64) string {
	if n < 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

func csvMicroseconds(d time.Duration) string {
	if d < 0 {
		return ""
	}
	return csvNumber(d.Microseconds())
}
