package intercept

import (
	"fmt"
	"io"
	"strings"

	"longhaul/internal/display"
)

// WriteText writes what a relay intercepts, a line for each tunnel.
func (s Status) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "relay %s  mark %#x, table %d\n", s.Relay, s.Mark, s.Table)
	for _, t := range s.Tunnels {
		fmt.Fprintf(&b, "  %s  %s  %s\n", t.Name, t.Tunnel, display.Plural(int(t.Connections), "connection"))
		if t.Paused {
			b.WriteString("    paused: new connections go directly\n")
		}
	}
	if s.HasEnded() {
		fmt.Fprintf(&b, "  the relay has ended: new connections go directly; longhaul intercept clear %s removes the rules\n", s.Relay)
	}
	if s.Problem != "" {
		b.WriteString("  " + s.Problem + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// String is what the tunnel intercepts: "lan0: 10.1.0.0/16 > 10.2.0.0/16 ports 22, 5432-5440".
func (t Tunnel) String() string {
	text := t.Interface + ": "
	if len(t.From) > 0 {
		text += list(t.From) + " "
	}
	text += "> " + list(t.To)
	if len(t.Ports) > 0 {
		text += " ports " + list(t.Ports)
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
