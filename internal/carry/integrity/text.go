package integrity

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"longhaul/internal/words/display"
)

// WriteText writes the report in 80 columns. The error is the writer's.
func (r Report) WriteText(w io.Writer) error {
	var b bytes.Buffer
	display.WriteParagraph(&b, "", fmt.Sprintf("%s: %s: %s", r.Tunnel, r.State, r.Summary))
	if r.Hint != "" {
		display.WriteParagraph(&b, "  hint: ", r.Hint)
	}
	for _, c := range r.Chains {
		b.WriteByte('\n')
		if len(r.Chains) > 1 {
			way := "by way of " + c.Forward
			if c.Note != "" {
				way += ", " + c.Note
			}
			display.WriteParagraph(&b, "", way)
			if c.Fault != nil && c.Fault.Text != r.Summary {
				display.WriteParagraph(&b, "  ", c.Fault.Text)
			}
		}
		c.writeTable(&b)
	}
	fmt.Fprintf(&b, "\nchecked in %.2f s\n", r.ElapsedSeconds)
	_, err := w.Write(b.Bytes())
	return err
}

// Line is the report in one line of 80 columns, with its age at a time.
func (r Report) Line(now time.Time) string {
	age := display.Age(now.Sub(r.At).Seconds())
	return display.Truncate(fmt.Sprintf("  check %s ago: %s: %s", age, r.State, r.Summary), 80)
}

// writeTable writes a row for each hop, and notes below.
func (c Chain) writeTable(b *bytes.Buffer) {
	const (
		labelsAndStates = 39 // columns of both
		row             = "%2s  %-*s %-*s %8s %8s %8s %6s\n"
	)
	stateWidth := 7
	for i := range c.Hops {
		stateWidth = max(stateWidth, len(c.hopState(i))) // a long word takes the room of the names
	}
	labelWidth := labelsAndStates - stateWidth
	fmt.Fprintf(b, row, "", labelWidth, "HOP", stateWidth, "STATE", "RTT", "UP", "DOWN", "LOSS")
	for i, h := range c.Hops {
		fmt.Fprintf(b, row, strconv.Itoa(i+1), labelWidth, display.Shorten(h.label(), labelWidth), stateWidth, c.hopState(i),
			h.rttText(), h.Up.goodputText(), h.Down.goodputText(), h.lossText())
	}
	for _, h := range c.Hops {
		if ahead, off := h.ClockIsOff(); off {
			host := cmp.Or(h.Host, h.Address.String())
			display.WriteParagraph(b, "    ", fmt.Sprintf("the clock of %s is %s; timedatectl there and here tells whether it is kept right (NTP)", host, Ahead(ahead, "this relay's")))
		}
	}
	if len(c.Hops) < 2 {
		return
	}
	for _, h := range c.Hops {
		if t := h.Through; t != nil && t.Up.GoodputBps != nil && t.Down.GoodputBps != nil {
			fmt.Fprintf(b, "    through the relays to %s: %s up, %s down\n", h.Host, t.Up.goodputText(), t.Down.goodputText())
		}
	}
}

// label is the hop's name in the table: its kind, host and address as far as
// they are known.
func (h Hop) label() string {
	address := ""
	if h.Address.IsValid() {
		address = h.Address.String()
	}
	switch {
	case h.Kind == KindTarget && address == "":
		return strings.TrimSpace("target " + h.Host)
	case h.Kind == KindTarget:
		return "target " + address
	case h.Kind == KindOther:
		return "no relay " + address
	case h.Host != "" && address != "":
		return h.Host + " " + address
	}
	return cmp.Or(address+h.Host, "target") // one that was not reached
}

// hopState is "up", "lossy" or the reason of the fault at hop i, from 0.
func (c Chain) hopState(i int) string {
	switch f := c.Fault; {
	case f != nil && f.Hop == i+1 && c.Hops[i].State == Broken:
		return string(f.Reason)
	case c.Hops[i].State == Lossy:
		return "lossy"
	}
	return "up"
}

func (h Hop) rttText() string {
	if h.RTT == nil {
		return "-"
	}
	switch rtt := 1e3 * h.RTT.Seconds(); {
	case rtt < 1:
		return fmt.Sprintf("%.0fµs", 1000*rtt)
	case rtt < 10:
		return fmt.Sprintf("%.2fms", rtt)
	default:
		return fmt.Sprintf("%.1fms", rtt)
	}
}

func (d *Direction) goodputText() string {
	if d == nil || d.GoodputBps == nil {
		return "-"
	}
	return display.CompactRate(*d.GoodputBps)
}

// lossText is the loss of the lossier direction.
func (h Hop) lossText() string {
	loss := max(h.Up.LossRatio(), h.Down.LossRatio())
	if loss < 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*loss)
}
