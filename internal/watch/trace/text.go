package trace

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/words/display"
)

// Columns of the text: a terminal has 80.
const (
	labelWidth = 10
	legWidth   = 22
	legsInRow  = 3
)

// WriteText writes a report for a terminal of 80 columns: legs side by side, of a long chain three by three.
func (r *Report) WriteText(w io.Writer) {
	here := &r.Relays[r.Here]
	fmt.Fprintf(w, "flow %s\n", r.Name)
	fmt.Fprintf(w, "tunnel %s, %s for %s: %sB up, %sB down\n", display.Shorten(here.Tunnel, 20), here.State, display.Age(here.Age.Seconds()),
		display.Quantity(here.BytesUp), display.Quantity(here.BytesDown))
	if text := pairText(here); text != "" {
		fmt.Fprintf(w, "pair: %s\n", text)
	}
	display.WriteParagraph(w, "limited by ", r.Limit.Text)
	for _, why := range r.Missing {
		display.WriteParagraph(w, "missing: ", why)
	}
	fmt.Fprintln(w)
	for i, some := range slices.Collect(slices.Chunk(legsOf(&r.Trace), legsInRow)) {
		if i > 0 {
			fmt.Fprintln(w)
		}
		writeLegs(w, some)
	}
}

// pairText is what is out of the ordinary of a flow's lanes.
func pairText(r *flow.TraceRelay) string {
	p := r.Pair
	if p == nil {
		return ""
	}
	var parts []string
	switch {
	case !r.Legs[0].Lane || !r.Legs[1].Lane:
		if p.Lanes > 1 {
			parts = append(parts, display.Plural(p.Lanes, "lane"))
		}
	case p.Lanes == 2:
		parts = append(parts, "a lane to each side")
	case p.Lanes > 2:
		parts = append(parts, display.Plural(p.Lanes, "lane")+", both sides together")
	}
	if p.Resumes > 0 {
		parts = append(parts, "resumed "+display.Plural(p.Resumes, "time"))
	}
	if d := p.Outage.Duration(); d >= time.Millisecond {
		parts = append(parts, "waited "+display.Span(d)+" in outages")
	}
	return strings.Join(parts, ", ")
}

func writeLegs(w io.Writer, legs []leg) {
	row := func(label string, cell func(*leg) string) {
		line := fmt.Sprintf("%-*s", labelWidth, label)
		for i := range legs {
			line += fmt.Sprintf(" %-*s", legWidth, display.Shorten(cell(&legs[i]), legWidth))
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
	row("", (*leg).text)
	row("between", func(l *leg) string { return l.end(l.before, l.down, "client") + ", " + l.end(l.next, l.up, "target") })
	row("from", func(l *leg) string { return addressText(l.from()) })
	row("to", func(l *leg) string { return addressText(l.to()) })
	row("RTT", (*leg).rtt)
	fmt.Fprintf(w, "%-*s %s\n", labelWidth, "", "up / down:")
	row("rate", func(l *leg) string {
		up, down := l.next, l.before // a receiver knows what has come
		if up == nil {
			up = l.before
		}
		if down == nil {
			down = l.next
		}
		return display.CompactRate(up.UpBps) + " / " + display.CompactRate(down.DownBps)
	})
	both := func(label string, figure func(*flow.TraceLeg) string) {
		row(label, func(l *leg) string {
			cells := [2]string{"-", "-"}
			for i, view := range []*flow.TraceLeg{l.up, l.down} {
				if view != nil {
					if text := figure(view); text != "" {
						cells[i] = text
					}
				}
			}
			return cells[0] + " / " + cells[1]
		})
	}
	both("again", func(l *flow.TraceLeg) string {
		if l.BytesSent <= 0 || l.BytesRetransmitted < 0 {
			return ""
		}
		return display.Share(float64(l.BytesRetransmitted) / float64(l.BytesSent))
	})
	both("control", func(l *flow.TraceLeg) string { return l.CongestionControl })
	both("window", func(l *flow.TraceLeg) string { return bytesText(l.CongestionWindow) })
	both("peer has", func(l *flow.TraceLeg) string { return bytesText(l.PeerWindow) })
	row("waits", func(l *leg) string { return l.waitsText(Up) + " / " + l.waitsText(Down) })
	both("cause", func(l *flow.TraceLeg) string { return l.Cause })
}

func (l *leg) waitsText(d Direction) string {
	if s := l.sender(d); l.held(d) == 0 && (s == nil || s.Unacknowledged < 0) {
		return "-"
	}
	return bytesText(l.waits(d))
}

// end is who is at an end of the leg; other is the leg as its other end sees it.
func (l *leg) end(r *flow.TraceRelay, other *flow.TraceLeg, program string) string {
	switch {
	case r == nil && other != nil && other.Peer != "":
		return display.Shorten(other.Peer, 10)
	case r != nil && r.Relay != "":
		return display.Shorten(r.Relay, 10)
	case r != nil:
		return "here"
	case l.kind == WAN:
		return "?"
	}
	return program
}

// from and to are the addresses of the leg, as the end nearer to the client sees them where it says so.
func (l *leg) from() flow.Address {
	switch {
	case l.kind == ClientLeg:
		return l.next.Client
	case l.up != nil:
		return l.up.Local
	}
	return l.down.Remote
}

func (l *leg) to() flow.Address {
	switch {
	case l.kind == ClientLeg:
		return l.next.Listen
	case l.up != nil && l.up.Remote.IsValid():
		return l.up.Remote
	case l.kind == TargetLeg:
		return l.before.Target
	case l.up == nil:
		return l.down.Local
	}
	return l.up.Remote
}

func (l *leg) rtt() string {
	view := l.up
	if view == nil || view.RTT <= 0 {
		view = l.down
	}
	if view == nil || view.RTT <= 0 {
		return "-"
	}
	text := display.ShortTime(view.RTT.Duration())
	if view.MinRTT > 0 {
		text += ", min " + strings.TrimSuffix(display.ShortTime(view.MinRTT.Duration()), " ms")
	}
	return text
}

func addressText(a flow.Address) string {
	if !a.IsValid() {
		return "-"
	}
	return a.String()
}

func bytesText(n int64) string {
	if n < 0 {
		return ""
	}
	return display.Quantity(n) + "B"
}
