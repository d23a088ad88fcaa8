package route

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"longhaul/internal/words/display"
)

// Metrics are all metrics, in the order of texts.
func Metrics() []Metric {
	return []Metric{MTU, AdvMSS, CongestionControl, InitCwnd, InitRwnd, Window, QuickACK, RTOMin}
}

// ValuesText lists metrics like ip-route(8): "mtu 1400 locked, initcwnd 40".
func ValuesText(values map[Metric]Value) string {
	var parts []string
	for _, m := range Metrics() {
		if v, ok := values[m]; ok {
			parts = append(parts, string(m)+" "+v.Text(m))
		}
	}
	return strings.Join(parts, ", ")
}

// Notes explain the limits of metrics.
func (c Change) Notes() (notes []string) {
	for _, m := range Metrics() {
		v, given := c.Metrics[m]
		if !given {
			continue
		}
		switch m {
		case MTU:
			if v.Locked {
				notes = append(notes, "a locked mtu has packets sent without DF: they may be fragmented on the way, and path MTU discovery is off")
			} else {
				notes = append(notes, "mtu is for connections of this host; forwarded packets go by the device's unless it is locked")
			}
		case AdvMSS:
			notes = append(notes, "advmss is what peers may send here, so the way from there must carry it; what is sent there goes by mtu")
		case CongestionControl:
			if !v.Locked {
				notes = append(notes, "a program that asks for another congestion control gets it, unless this one is locked: --lock")
			}
		case InitRwnd:
			notes = append(notes, "initrwnd is bounded by what tcp_rmem, or the program's SO_RCVBUF, has room for")
		case Window:
			notes = append(notes, "window bounds what is advertised at first; autotuning and SO_RCVBUF go beyond it")
		}
	}
	return notes
}

// Notes say which packets to the prefix do not go by what was set.
func (r Result) Notes() []string { return reachNotes(r.Prefix, r.Elsewhere, r.Effective) }

func reachNotes(prefix netip.Prefix, elsewhere []netip.Prefix, effective bool) (notes []string) {
	if len(elsewhere) > 0 {
		notes = append(notes, fmt.Sprintf("within %s, longer prefixes have routes of their own, which keep their settings: %s", prefix, display.FirstOf(elsewhere)))
	}
	if !effective {
		notes = append(notes, fmt.Sprintf("packets to %s do not take its route in the main table: see ip rule, and ip route get", prefix))
	}
	return notes
}

// WriteText writes the settings of a prefix, the previous ones, and the owners.
func (s Setting) WriteText(w io.Writer) error {
	former := map[Metric]Value{}
	var owners []string
	for _, name := range Metrics() {
		done := s.Metrics[name]
		if done == nil {
			continue
		}
		if !s.Made && done.Former != (Value{}) {
			former[name] = done.Former
		}
		for _, c := range done.Claims {
			if !slices.Contains(owners, c.Owner) {
				owners = append(owners, c.Owner)
			}
		}
	}
	text := fmt.Sprintf("%s  %s\n    set by %s", s.Prefix, ValuesText(s.Values()), strings.Join(owners, ", "))
	switch {
	case s.Made:
		text += "; had no route of its own"
	case len(former) > 0:
		text += "; before: " + ValuesText(former)
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

// WriteText writes a line for each outcome.
func (u Undone) WriteText(w io.Writer) error {
	var lines, restored []string
	for _, m := range u.Metrics {
		last := ""
		if n := len(m.Left); n > 0 {
			last = m.Left[n-1].Owner
		}
		value := ValuesText(map[Metric]Value{m.Metric: m.Now})
		switch {
		case m.Kept:
			lines = append(lines, fmt.Sprintf("the route to %s keeps %s, which another program has set since", u.Prefix, value))
		case last == "":
			restored = append(restored, string(m.Metric))
		case m.Was == m.Now:
			lines = append(lines, fmt.Sprintf("the route to %s keeps %s, set by %s", u.Prefix, value, last))
		default:
			lines = append(lines, fmt.Sprintf("the route to %s has %s again, set by %s", u.Prefix, value, last))
		}
	}
	switch {
	case u.Deleted:
		lines = []string{fmt.Sprintf("the route to %s is gone again", u.Prefix)}
	case u.Missing:
		lines = []string{fmt.Sprintf("the route to %s is gone: another program has deleted it", u.Prefix)}
	case len(restored) > 0:
		lines = append(lines, fmt.Sprintf("the route to %s has the former %s again", u.Prefix, strings.Join(restored, ", ")))
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return err
}
