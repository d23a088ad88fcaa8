package intercept

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"unicode/utf8"

	"longhaul/internal/words/display"
	"longhaul/internal/words/portrange"
)

// WriteText writes what a relay intercepts, a line for each tunnel.
func (s Status) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "relay %s  mark %#x, table %d\n", s.Relay, s.Mark, s.Table)
	for _, t := range s.Tunnels {
		writeRow(&b, t.Name, t.Tunnel.String(), t.Connections)
		if t.Bypassed > 0 {
			fmt.Fprintf(&b, "    %s went directly while it was paused\n", display.Plural(int(t.Bypassed), "connection"))
		}
		if t.Signed > 0 {
			fmt.Fprintf(&b, "    %s went directly: signed (TCP-MD5, TCP-AO)\n", display.Plural(int(t.Signed), "connection"))
		}
		if t.Paused {
			b.WriteString("    paused: new connections go directly\n")
		}
	}
	for _, d := range s.Dialers {
		writeRow(&b, d.Name, d.Dialer.String(), d.Connections)
	}
	if s.HasEnded() {
		ended := "the relay has ended"
		if len(s.Tunnels) > 0 {
			ended += ": new connections go directly"
		}
		display.WriteParagraph(&b, "  ", ended+"; longhaul intercept clear "+s.Relay+" removes the rules")
	}
	if s.Problem != "" {
		display.WriteParagraph(&b, "  ", s.Problem)
		if !s.HasEnded() {
			b.WriteString("  remedy: longhaul reload has a running relay set it again\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeRow writes a tunnel with its connections, these on a line of their own if it would be too long.
func writeRow(b *strings.Builder, name, what string, connections uint64) {
	const width = 80
	row, count := "  "+name+"  "+what, display.Plural(int(connections), "connection")
	if utf8.RuneCountInString(row+"  "+count) > width {
		display.WriteParagraph(b, "  "+name+"  ", what)
		fmt.Fprintf(b, "    %s\n", count)
		return
	}
	fmt.Fprintf(b, "%s  %s\n", row, count)
}

// String is what the tunnel intercepts: "lan0: 10.1.0.0/16 > 10.2.0.0/16 ports 22, 5432-5440".
func (t Tunnel) String() string { return t.Interface + ": " + connections(t.From, t.To, t.Ports) }

// String is what the tunnel dials: "dials 10.1.0.0/16 > 10.2.0.0/16 ports 22, 5432-5440".
func (d Dialer) String() string { return "dials " + connections(d.From, d.To, d.Ports) }

func connections(from, to []netip.Prefix, ports []portrange.Range) (text string) {
	if len(from) > 0 {
		text = list(from) + " "
	}
	text += "> " + list(to)
	if len(ports) > 0 {
		text += " ports " + list(ports)
	}
	return text
}

func list[T fmt.Stringer](all []T) string {
	texts := make([]string, len(all))
	for i, one := range all {
		texts[i] = one.String()
	}
	return strings.Join(texts, ", ")
}
