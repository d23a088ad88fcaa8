package doctor

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/display"
	"longhaul/internal/words/units"
)

// counts returns what was counted: by a capture, or by the kernel between the samples.
func (o *Observation) counts(f *Figures) Counts {
	if o.Capture != nil {
		return o.Capture.Counts
	}
	var c Counts
	if len(o.Samples) == 0 {
		return c
	}
	a, b := &o.Samples[0].Info, &o.Samples[len(o.Samples)-1].Info
	between := func(field tcpinfo.Field, now, then uint64) int64 {
		if !a.Has(field) || !b.Has(field) || now < then {
			return 0
		}
		return int64(now - then)
	}
	c.Segments = between(tcpinfo.FieldDataSegsOut, uint64(b.DataSegsOut), uint64(a.DataSegsOut))
	c.Bytes = between(tcpinfo.FieldBytesSent, b.BytesSent, a.BytesSent) - between(tcpinfo.FieldBytesRetrans, b.BytesRetrans, a.BytesRetrans)
	c.Delivered = between(tcpinfo.FieldBytesAcked, b.BytesAcked, a.BytesAcked)
	c.Retransmitted = between(tcpinfo.FieldTotalRetrans, uint64(b.TotalRetrans), uint64(a.TotalRetrans))
	c.AfterTimeout = between(tcpinfo.FieldTotalRTO, uint64(b.TotalRTO), uint64(a.TotalRTO))
	c.Spurious = between(tcpinfo.FieldDSACKDups, uint64(b.DSACKDups), uint64(a.DSACKDups))
	c.Overtaken = between(tcpinfo.FieldReordSeen, uint64(b.ReordSeen), uint64(a.ReordSeen))
	c.WindowMin, c.WindowMedian, c.WindowMax = int64(zeroIfNaN(f.PeerWindowMin)), int64(zeroIfNaN(f.PeerWindow)), int64(zeroIfNaN(f.PeerWindowMax))
	c.MinRTT, c.MedianRTT, c.P95RTT = f.MinRTT, f.RTT, f.P95RTT
	c.MaxFlight = int64(f.MaxInFlight * float64(f.MSS))
	c.Stall.Time, c.Stall.AtEnd = f.Stalled, f.StalledAtTheEnd
	c.closedWindows(o.Samples)
	return c
}

// closedWindows counts the times in which samples have a window of 0.
func (c *Counts) closedWindows(samples []Sample) {
	var since time.Duration = -1
	for k := range samples {
		s := &samples[k]
		switch closed := s.Info.Has(tcpinfo.FieldSndWnd) && s.Info.SndWnd == 0; {
		case closed && since < 0:
			since = s.At
			c.ZeroWindows++
		case closed:
			step := s.At - samples[k-1].At
			c.ZeroWindowTime += step
			c.LongestZeroWindow = max(c.LongestZeroWindow, s.At-since)
		default:
			since = -1
		}
		c.ZeroWindowAtEnd = since >= 0
	}
}

// countRow is a row of the table of what was counted.
type countRow struct{ label, text string }

// countLabel is the width of the table's first column.
const countLabel = 15

// writeCounts writes the table of what was counted. Rows without a count are left out.
func (c *Counts) writeCounts(b *bytes.Buffer) {
	rows := c.rows()
	if len(rows) == 0 {
		return
	}
	fmt.Fprintln(b, "\nCounted:")
	for _, row := range rows {
		display.WriteParagraph(b, fmt.Sprintf("  %-*s", countLabel, row.label), row.text)
	}
}

func (c *Counts) rows() []countRow {
	all := []countRow{
		{"data", c.dataText()}, {"sent again", c.againText()}, {"order", c.orderText()},
		{"closed window", c.closedText()}, {"window", c.windowText()}, {"round trip", c.rttText()},
		{"pauses", c.pausesText()}, {"stall", c.stallText()}, {"reset", c.resetText()}, {"doubtful", c.doubtfulText()},
	}
	rows := all[:0]
	for _, row := range all {
		if row.text != "" {
			rows = append(rows, row)
		}
	}
	return rows
}

// clauses joins the parts that are not empty.
type clauses []string

// say adds a clause if a condition holds.
func (c *clauses) say(cond bool, format string, args ...any) {
	if cond {
		*c = append(*c, fmt.Sprintf(format, args...))
	}
}

func (c clauses) String() string { return strings.Join(c, ", ") }

func size(bytes int64) string { return units.FormatSize(float64(bytes)) }

// plural counts things.
func plural(n int64, what string) string { return display.Plural(int(n), what) }

// length writes a time with its usual unit.
func length(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return seconds(d)
}

func (c *Counts) dataText() string {
	var t clauses
	t.say(c.Segments > 0, "%s in %s", size(c.Bytes), plural(c.Segments, "segment"))
	t.say(c.FullSegments > 0, "%d of them full", c.FullSegments)
	t.say(c.Delivered > 0 || c.Segments > 0, "%s acknowledged", size(c.Delivered))
	t.say(c.MaxFlight > 0, "at most %s at once", size(c.MaxFlight))
	return t.String()
}

func (c *Counts) againText() string {
	var t clauses
	t.say(c.Retransmitted > 0, "%s (%s)", plural(c.Retransmitted, "segment"), percent(c.lossShare()))
	if c.Retransmitted > 0 {
		t = append(t, c.reasons()...)
	}
	t.say(c.KeepAlives > 0, "%s", plural(c.KeepAlives, "keepalive"))
	return t.String()
}

// reasons are the reasons of retransmissions, as far as they show.
func (c *Counts) reasons() clauses {
	var t clauses
	t.say(c.Fast > 0, "%d fast", c.Fast)
	t.say(c.AfterTimeout > 0, "%d after a time-out", c.AfterTimeout)
	t.say(c.TailProbes > 0, "%s", plural(c.TailProbes, "tail loss probe"))
	t.say(c.Spurious > 0, "%d needlessly", c.Spurious)
	return t
}

// lossShare is the share of segments that are retransmissions.
func (c *Counts) lossShare() float64 {
	if c.Segments <= 0 {
		return 0
	}
	return min(float64(c.Retransmitted)/float64(c.Segments), 1)
}

func (c *Counts) orderText() string {
	var t clauses
	t.say(c.OutOfOrder > 0, "%s captured out of order", plural(c.OutOfOrder, "segment"))
	t.say(c.Overtaken > 0, "%d overtaken on the way", c.Overtaken)
	t.say(c.Extent > 0, "by at most %s", plural(c.Extent, "segment"))
	return t.String()
}

func (c *Counts) closedText() string {
	if c.ZeroWindows == 0 {
		return ""
	}
	var t clauses
	t.say(true, "%s", plural(c.ZeroWindows, "time"))
	t.say(c.ZeroWindowTime > 0, "%s in all", length(c.ZeroWindowTime))
	t.say(c.ZeroWindows > 1 && c.LongestZeroWindow > 0, "%s at most", length(c.LongestZeroWindow))
	t.say(c.Probes > 0, "%s", plural(c.Probes, "probe"))
	t.say(c.ZeroWindowAtEnd, "closed at the end")
	return t.String()
}

func (c *Counts) windowText() string {
	var t clauses
	t.say(c.WindowMax > 0, "%s to %s, usually %s", size(c.WindowMin), size(c.WindowMax), size(c.WindowMedian))
	t.say(c.WindowFull > 0, "full after %s", plural(c.WindowFull, "segment"))
	return t.String()
}

func (c *Counts) rttText() string {
	if c.MinRTT <= 0 || c.MedianRTT <= 0 {
		return ""
	}
	var t clauses
	t.say(true, "%s at least, %s usually", length(c.MinRTT), length(c.MedianRTT))
	t.say(c.P95RTT > 0, "95 %% below %s", length(c.P95RTT))
	return t.String()
}

func (c *Counts) pausesText() string {
	var t clauses
	t.say(c.Pauses > 0, "%s with nothing to send, %s in all", plural(c.Pauses, "time"), length(c.PauseTime))
	t.say(c.Pauses > 0 && c.WaitedForPeer > 0, "%s of that for the peer's data", length(c.WaitedForPeer))
	t.say(c.Turns > 1, "%s after data of the peer", plural(c.Turns, "turn"))
	return t.String()
}

func (c *Counts) stallText() string {
	s := c.Stall
	if s.Time <= 0 || s.Retransmissions == 0 && !s.AtEnd {
		return ""
	}
	var t clauses
	t.say(true, "%s without an acknowledgement", length(s.Time))
	t.say(s.Retransmissions > 0, "%s meanwhile", plural(s.Retransmissions, "retransmission"))
	t.say(s.Heard > 0, "%s of the peer", plural(s.Heard, "packet"))
	t.say(s.AtEnd, "until the end")
	return t.String()
}

func (c *Counts) resetText() string {
	var t clauses
	t.say(c.Reset != "", "by the %s", c.Reset)
	t.say(c.ResetOutstanding > 0, "with %s unacknowledged", size(c.ResetOutstanding))
	return t.String()
}

func (c *Counts) doubtfulText() string {
	var t clauses
	t.say(c.Missing > 0, "the capture lacks %s", size(c.Missing))
	t.say(c.Copies > 0, "it has %s twice", plural(c.Copies, "packet"))
	t.say(c.BackwardSteps > 0, "%s back in time, by at most %s", plural(c.BackwardSteps, "step"), length(c.BackwardBy))
	return t.String()
}

// facts are the counts that stand out, a clause each.
func (c *Counts) facts() []string {
	var t clauses
	t.say(c.lossShare() > 0.005, "%s", strings.TrimSuffix(fmt.Sprintf("retransmissions are %d of %s, %s: %s", c.Retransmitted, plural(c.Segments, "segment"), percent(c.lossShare()), c.reasons()), ": "))
	t.say(c.Spurious > 0 && c.Retransmitted > 0 && c.lossShare() <= 0.005, "the receiver already had %d of %s", min(c.Spurious, c.Retransmitted), plural(c.Retransmitted, "retransmitted segment"))
	t.say(c.OutOfOrder+c.Overtaken > 0, "segments changed their order: %s", c.orderText())
	t.say(c.ZeroWindows > 0, "the receiver closed its window: %s", c.closedText())
	t.say(c.WindowFull > 0, "the receiver's window was full after %s", plural(c.WindowFull, "segment"))
	t.say(c.Stall.Retransmissions > 0, "it stood still: %s", c.stallText())
	t.say(c.Reset != "", "it was reset %s", c.resetText())
	return t
}
