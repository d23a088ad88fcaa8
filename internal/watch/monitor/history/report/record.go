package report

import (
	"fmt"
	"io"
	"strings"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/display"
)

// WriteRecord writes all of one record. What is not known is left out.
func WriteRecord(w io.Writer, r *monitor.Record) {
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-12s "+format+"\n", append([]any{name}, args...)...)
	}
	folded := func(name, text string) { row(name, "%s", display.Fold(text, screenWidth, 13)) }
	if r.ID != 0 {
		row("record", "%d", r.ID)
	}
	for _, known := range []struct{ name, text string }{
		{"name", r.Name.String()}, {"relay", r.RelayName()}, {"site", r.Site}, {"peer", r.Peer}, {"tunnel", r.Tunnel},
	} {
		if known.text != "" {
			row(known.name, "%s", known.text)
		}
	}
	if r.Client.IsValid() {
		row("client", "%s", r.Client)
	}
	if r.Target.IsValid() {
		text := r.Target.String()
		if r.Hop != "" && r.Hop != text {
			text += " (" + r.Hop + ")"
		}
		row("target", "%s", text)
	}
	const layout = "2006-01-02 15:04:05.000"
	row("began", "%s", r.Start.Local().Format(layout))
	row("ended", "%s, after %s", r.End.Local().Format(layout), roundedTime(r.Elapsed.Duration()))
	reason := string(r.Reason)
	if reason == cleanEnd {
		reason = "by an end from both sides"
	} else if r.EndedBy != "" {
		reason += ", by " + map[string]string{"client": "the client", "target": "the target", "both": "both sides", "relay": "the relay", flow.EndedByPeer: "the other relay's word"}[r.EndedBy]
	}
	if r.Error != "" {
		reason += ": " + r.Error
	}
	folded("why", reason)
	row("moved", "%s up, %s down", bytesText(r.BytesUp), bytesText(r.BytesDown))
	if g := r.GoodputBps(); g > 0 {
		row("goodput", "%s, both directions over the whole time", display.Rate(g))
	}
	if r.Resumes > 0 || r.Outage > 0 {
		row("resumed", "%s, waited %s in outages between the relays", display.Plural(int(r.Resumes), "time"), display.Span(r.Outage.Duration()))
	}
	if r.Cause != "" {
		row("limited by", "%s on the %s leg, for %.0f %% of the time with data", r.Cause, r.CauseLeg, 100*r.CauseShare)
	}
	for _, leg := range []struct {
		name string
		of   *flow.LegRecord
	}{{"client leg", &r.ClientLeg}, {"target leg", &r.TargetLeg}} {
		if text := legText(leg.of); text != "" {
			folded(leg.name, text)
		}
	}
	for _, direction := range []struct {
		name string
		bps  []float32
	}{{"up", r.Goodput.UpBps}, {"down", r.Goodput.DownBps}} {
		var most float32
		figures := make([]float64, len(direction.bps))
		for i, v := range direction.bps {
			most, figures[i] = max(most, v), float64(v)
		}
		if most > 0 {
			row(direction.name, "%s", display.Sparkline(figures, monitor.SeriesLen))
			row("", "up to %s, %s a column", display.Rate(float64(most)), r.Goodput.Step)
		}
	}
}

func legText(l *flow.LegRecord) string {
	var parts []string
	if l.Side != "" {
		parts = append(parts, l.Side)
	}
	if l.CongestionControl != "" {
		parts = append(parts, l.CongestionControl)
	}
	if l.RTT > 0 {
		text := fmt.Sprintf("RTT %s", rttText(l.RTT.Duration()))
		if l.MinRTT > 0 {
			text += fmt.Sprintf(" (min %.3g)", display.Milliseconds(l.MinRTT.Duration()))
		}
		parts = append(parts, text)
	}
	if l.BytesSent >= 0 {
		text := "sent " + bytesText(l.BytesSent)
		if l.BytesRetransmitted >= 0 && l.BytesSent > 0 {
			text += ", " + display.Share(float64(l.BytesRetransmitted)/float64(l.BytesSent)) + " retransmitted"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

func rttText(d time.Duration) string { return fmt.Sprintf("%.3g ms", display.Milliseconds(d)) }

func bytesText(n int64) string {
	if n < 1000 {
		return display.Plural(int(n), "byte")
	}
	return display.Quantity(n) + "B"
}

// roundedTime keeps three digits or so.
func roundedTime(d time.Duration) time.Duration {
	for unit := time.Hour; unit > time.Microsecond; unit /= 10 {
		if d >= unit {
			return d.Round(unit / 100)
		}
	}
	return d
}
