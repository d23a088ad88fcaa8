package report

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"

	"longhaul/internal/find/measure"
	"longhaul/internal/words/display"
)

// Text is a [Writer] of lines that people read.
type Text struct {
	w       io.Writer
	every   time.Duration
	linkBps float64
}

// NewText makes a writer for tests that report at every interval. LinkBps is the
// link's rate in bits per second, 0 if it is not known.
func NewText(w io.Writer, every time.Duration, linkBps float64) *Text {
	return &Text{w, every, linkBps}
}

// Interval writes a line for each direction.
func (t *Text) Interval(i measure.Interval, share float64) {
	if i.End-i.Start > t.every/10 { // else it is the remainder at the end
		writeInterval(t.w, i, share)
	}
}

// Summary writes the figures that count. A failure is for the caller to print.
func (t *Text) Summary(s measure.Summary, _ error) error {
	if len(s.Streams) == 0 {
		return nil
	}
	var b bytes.Buffer
	writeSummary(&b, s, t.linkBps)
	_, err := t.w.Write(b.Bytes())
	return err
}

// writeInterval prints a line for each direction of an interval.
func writeInterval(w io.Writer, i measure.Interval, share float64) {
	for _, sends := range []bool{true, false} {
		var bytes, retransmits, cwnd int64
		var rtt time.Duration
		streams := 0
		for _, s := range i.Streams {
			if s.Sends != sends {
				continue
			}
			streams++
			bytes += s.Bytes
			retransmits += max(s.Retransmits, 0)
			cwnd += max(s.Sample.CwndBytes, 0)
			rtt = max(rtt, s.Sample.RTT)
		}
		if streams == 0 {
			continue
		}
		fmt.Fprintf(w, "%5.1f-%-5.1f s %3.0f %% %-8s %10s", i.Start.Seconds(), i.End.Seconds(), 100*share, direction(sends),
			display.Rate(float64(bytes)*8/(i.End-i.Start).Seconds()))
		if sends && rtt > 0 { // else this system says nothing of it
			fmt.Fprintf(w, "  %4s retrans  cwnd %-4s  RTT %s", display.Quantity(retransmits), display.Quantity(cwnd), display.ShortTime(rtt))
		}
		if i.Omitted {
			fmt.Fprint(w, " *")
		}
		fmt.Fprintln(w)
	}
}

// writeSummary prints what counts.
func writeSummary(w io.Writer, s measure.Summary, linkBps float64) {
	var gigabytes float64
	for _, sends := range []bool{true, false} {
		var arrived, again int64
		streams, known, told := 0, true, true
		for _, st := range s.Streams {
			if st.Sends != sends {
				continue
			}
			streams++
			again += st.Retransmits
			known = known && st.Retransmits >= 0
			if byReceiver(st) {
				arrived += st.ReceivedBytes
			} else {
				arrived, told = arrived+st.SentBytes, false
			}
		}
		if streams == 0 {
			continue
		}
		gigabytes += float64(arrived) / 1e9
		bps := s.RecvBps
		if sends {
			bps = s.SentBps
		}
		fmt.Fprintf(w, "\n%s %s in %.1f s over %s: %s\n", direction(sends), display.Quantity(arrived)+"B", s.Elapsed.Seconds(), display.Plural(streams, "stream"), display.Rate(bps))
		if !told {
			summaryLine(w, "counted", "by this side: the server's count is unknown")
		}
		f := s.Figures(sends)
		if limit := f.LimitBps(linkBps); linkBps > 0 && limit > 0 {
			summaryLine(w, "limit", fmt.Sprintf("%s of payload on %s; %.1f %% of it was reached", display.Rate(limit), display.Rate(linkBps), 100*bps/limit))
		}
		if !known {
			summaryLine(w, "retransmitted", "not told by the sender")
		} else if f.CongestionEvents >= 0 {
			summaryLine(w, "retransmitted", display.Plural(int(again), "segment")+" in "+display.Plural(int(f.CongestionEvents), "congestion event"))
		} else {
			summaryLine(w, "retransmitted", display.Plural(int(again), "segment"))
		}
		if f.RTTMin >= 0 && f.RTTMedian >= 0 {
			summaryLine(w, "RTT", fmt.Sprintf("min %s, median %s, p99 %s", display.ShortTime(f.RTTMin), display.ShortTime(f.RTTMedian), display.ShortTime(f.RTTP99)))
		}
		if f.DeliveryBps > 0 {
			summaryLine(w, "delivery rate", display.Rate(f.DeliveryBps)+" (median)")
		}
		if f.Busy > 0 {
			share := func(d time.Duration) float64 { return 100 * float64(d) / float64(f.Busy) }
			summaryLine(w, "limited by", fmt.Sprintf("receiver's window %.0f %%, send buffer %.0f %% of %.1f s busy", share(f.RwndLimited), share(f.SndbufLimited), f.Busy.Seconds()))
		}
		var sizes []string
		for _, size := range []struct {
			format string
			bytes  int64
		}{{"MSS %d", f.SndMSS}, {"receiver sees %d", f.RcvMSS}, {"path MTU %d", f.PMTU}, {"back %d", f.ReversePMTU}} {
			if size.bytes > 0 {
				sizes = append(sizes, fmt.Sprintf(size.format, size.bytes))
			}
		}
		if len(sizes) > 0 {
			summaryLine(w, "segment bytes", strings.Join(sizes, ", "))
		}
		if f.CongestionControl != "" {
			summaryLine(w, "algorithm", f.CongestionControl)
		}
	}
	fmt.Fprintf(w, "\nCPU: %.0f %% here", s.LocalCPU.Total)
	if s.RemoteCPU.Total >= 0 {
		fmt.Fprintf(w, ", %.0f %% there", s.RemoteCPU.Total)
	}
	if s.RemoteCPUTime >= 0 && gigabytes > 0 && s.Options.Omit == 0 { // else more was moved
		fmt.Fprintf(w, "; %.2f and %.2f s/GB", s.LocalCPUTime.Seconds()/gigabytes, s.RemoteCPUTime.Seconds()/gigabytes)
	}
	fmt.Fprintln(w)
}

func summaryLine(w io.Writer, name, text string) { fmt.Fprintf(w, "  %-14s %s\n", name, text) }
