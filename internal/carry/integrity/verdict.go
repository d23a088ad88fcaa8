package integrity

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// fault records a fault of the latest hop. A fault that breaks the chain
// replaces one that does not.
func (w *walker) fault(t *trouble) {
	n := len(w.chain.Hops)
	hop := &w.chain.Hops[n-1]
	f := &Fault{Reason: t.Reason, Hop: n, From: w.Self.Host, To: hop.name(), Detail: t.Detail, Direction: t.Direction, AlteredBytes: t.Altered}
	for _, before := range w.chain.Hops[:n-1] {
		if before.Kind == KindRelay {
			f.From = before.name()
		}
	}
	if t.Within > 0 || t.Reason == Stalled && t.Direction != "" {
		f.OffsetBytes, f.WithinBytes = &t.Offset, t.Within
	}
	w.chain.State = Broken
	if t.Reason == Losing {
		w.chain.State = Lossy
	} else {
		hop.State = Broken
	}
	f.describe(hop)
	if n > 1 && w.chain.Hops[n-2].Kind == KindOther {
		f.Text += "; between them is " + w.chain.Hops[n-2].Address.String() + ", not a relay"
	}
	w.chain.Fault = f
}

// describe sets the fault's text and hint.
func (f *Fault) describe(hop *Hop) {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	accepted := fmt.Sprintf("%s accepted the connection of %s", f.To, f.From)
	relayHint := "check that a relay listens there whose tunnel has check with this key_file, " +
		"and that this tunnel has next: relay; see its log"
	switch f.Reason {
	case Refused:
		say("%s refuses the connection of %s", f.To, f.From)
		f.Hint = "start what should listen there; ss -ltn shows who does"
	case TimedOut:
		say("%s does not answer %s", f.To, f.From)
		f.Hint = "check that its host is up and that firewalls admit the connection"
	case Unreachable:
		say("%s has no route to %s", f.From, f.To)
		f.Hint = "look at the routes and firewalls between them"
	case Unresolved:
		say("%s finds no address of %s", f.From, f.To)
		f.Hint = "look at the name in forward, and at the name servers of that relay"
	case NoLocalPort:
		say("%s has no port left for a connection to %s", f.From, f.To)
		f.Hint = "raise net.ipv4.ip_local_port_range there, or lower max_flows"
	case NoResources:
		say("%s is out of descriptors or memory for a connection to %s", f.From, f.To)
		f.Hint = "raise its limit of open files (LimitNOFILE= in the unit), or lower max_flows"
	case Reset:
		say("%s and then reset it", accepted)
		f.Hint = "a relay does so if it does not allow the source, has no room, " +
			"or does not reach its next hop and has no check with this key; see its log"
	case Closed:
		say("%s and then ended it", accepted)
		f.Hint = "the program there may not reach its next hop; " + relayHint
	case Silent:
		say("%s and does not answer", accepted)
		f.Hint = relayHint + "; bytes altered on the way would have the same effect"
	case Foreign:
		say("%s, but is not a relay with this key", accepted)
		f.Hint = relayHint
	case Clock:
		say("%s refuses the time of a check of %s a second time, although it is that of its own clock", f.To, f.From)
		f.Hint = "check its clock for jumps (timedatectl), and the address for several relays with different clocks"
	case Busy:
		say("%s answers too many checks at the same time to answer that of %s", f.To, f.From)
		f.Hint = "let relays check it less often (check.interval, health.interval); its log names them"
	case Altered:
		f.describeAltered(&b)
		f.Hint = "something on this path changes the bytes: look at firewalls and proxies that inspect TCP, " +
			"and at the network cards' offloads (ethtool -K)"
	case Stalled:
		if f.Direction == "" {
			say("little passes between %s and %s, and no more", f.From, f.To)
		} else {
			say("%d bytes pass from %s, and no more", *f.OffsetBytes, f.way())
		}
		f.Hint = "full segments may vanish on this path: see longhaul doctor and docs/mss.md"
	case Losing:
		say("segments are lost between %s and %s%s", f.From, f.To, lossOf(hop, f.Direction))
		f.Hint = "look at the links of this path; longhaul doctor estimates the cost"
	case Loop:
		say("the chain leads back into itself at %s", f.To)
		f.Hint = "look at forward of this relay and those before it"
	case TooLong:
		say("the chain has more than %d relays", maxRelays)
		f.Hint = "look for a loop in forward"
	default:
		say("the check failed between %s and %s", f.From, f.To)
		f.Hint = "look at the logs of both"
	}
	if hop.Kind == KindTarget && (f.Reason == Reset || f.Reason == Closed) {
		f.Hint = "check the program that listens there, and that it admits " + f.From
	}
	if f.Detail != "" && !strings.EqualFold(f.Detail, "connection "+string(f.Reason)) {
		say(": %s", f.Detail)
	}
	f.Text = b.String()
}

// way describes the direction of the altered or stalled bytes.
func (f *Fault) way() string {
	if f.Direction == downwards {
		return f.To + " to " + f.From
	}
	return f.From + " to " + f.To
}

func (f *Fault) describeAltered(b *strings.Builder) {
	switch f.AlteredBytes {
	case 0:
		b.WriteString("bytes are altered")
	case 1:
		b.WriteString("1 byte is altered")
	default:
		fmt.Fprintf(b, "%d bytes are altered", f.AlteredBytes)
	}
	fmt.Fprintf(b, " on the way from %s", f.way())
	if f.OffsetBytes == nil {
		return
	}
	first := ""
	if f.AlteredBytes != 1 {
		first = "the first "
	}
	if f.WithinBytes == 1 {
		fmt.Fprintf(b, ", %sat byte %d of the connection", first, *f.OffsetBytes)
	} else {
		fmt.Fprintf(b, ", %sin bytes %d to %d of the connection", first, *f.OffsetBytes, *f.OffsetBytes+int64(f.WithinBytes)-1)
	}
}

// inside moves a fault to the relays between the legs. Each leg alone is fine,
// and the fault appeared in bytes that the relays forwarded.
func (f *Fault) inside(c *Chain) {
	f.From = c.Hops[0].name()
	var between string
	for _, h := range c.Hops[:f.Hop-1] {
		if h.Kind == KindRelay {
			between = h.name()
		}
	}
	f.Text = fmt.Sprintf("through %s, although the legs on both sides of it are fine: %s", between, f.Text)
	f.Hint = "look at " + between + " itself; " + f.Hint
}

// lossOf describes the loss of a leg.
func lossOf(h *Hop, direction string) string {
	var parts []string
	for _, d := range []struct {
		name string
		*Direction
	}{{upwards, h.Up}, {downwards, h.Down}} {
		if direction != d.name && direction != bothWays || d.Direction == nil {
			continue
		}
		share := d.LossRatio()
		switch {
		case share > 0:
			parts = append(parts, fmt.Sprintf("%.1f %% %s (%d of %d)", 100*share, d.name, *d.LostSegments, *d.Segments))
		case d.OutOfOrder != nil:
			parts = append(parts, fmt.Sprintf("%s (%d arrived out of order)", d.name, *d.OutOfOrder))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}

// NewReport sums up the chains of a tunnel.
func NewReport(tunnel string, begin time.Time, chains []Chain) Report {
	r := Report{Tunnel: tunnel, At: begin, ElapsedSeconds: time.Since(begin).Seconds(), State: Whole, Chains: chains}
	worse := map[State]int{Whole: 0, Accepts: 1, Lossy: 2, Broken: 3}
	var worst *Chain
	whole := 0
	for i := range chains {
		c := &chains[i]
		if c.State == Whole && !c.passed() {
			c.State = Accepts
		}
		if c.State != Broken {
			whole++
		}
		if worst == nil || worse[c.State] > worse[worst.State] {
			worst = c
		}
	}
	if worst == nil { // as while the service of its hops has no target
		r.State, r.Summary, r.Hint = Broken, "the tunnel has no hop", "see longhaul status, which says why"
		return r
	}
	r.State = worst.State
	if worst.Fault != nil {
		r.Summary, r.Hint = worst.Fault.Text, worst.Fault.Hint
	} else {
		r.Summary = worst.summary()
	}
	if len(chains) > 1 && whole < len(chains) {
		r.Summary += fmt.Sprintf(" (%d of %d hops without a fault)", whole, len(chains))
	}
	return r
}

// passed reports whether bytes of the check have passed the chain both ways, and the target has sent
// some.
func (c *Chain) passed() bool {
	both := slices.ContainsFunc(c.Hops, func(h Hop) bool {
		return h.Up != nil && h.Up.Bytes > 0 && h.Down != nil && h.Down.Bytes > 0
	})
	return both && c.Hops[len(c.Hops)-1].Greeting > 0
}

// summary describes a chain without a fault.
func (c *Chain) summary() string {
	last := &c.Hops[len(c.Hops)-1]
	relays, nearest := 0, ""
	for _, h := range c.Hops {
		if h.Kind == KindRelay {
			relays++
			nearest = h.name()
		}
	}
	if relays == 0 {
		return last.name() + " accepts connections; no byte was sent to it"
	}
	on := fmt.Sprintf("%d relays on", relays)
	if relays == 1 {
		on = "one relay on"
	}
	if c.State == Accepts {
		return fmt.Sprintf("%s, %s accepts; all bytes pass unaltered to %s", on, last.name(), nearest)
	}
	return fmt.Sprintf("%s, %s answers, and all bytes pass unaltered", on, last.name())
}
