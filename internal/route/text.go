package route

import (
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"longhaul/internal/display"
	"longhaul/internal/units"
)

// Metrics are all metrics, in the order of texts.
func Metrics() []Metric {
	return []Metric{MTU, AdvMSS, CongestionControl, InitCwnd, InitRwnd, Window, QuickACK, RTOMin}
}

// ParseDestination parses a prefix or a single address. The words default and default6
// mean the default route of a family.
func ParseDestination(s string) (netip.Prefix, error) {
	switch s {
	case "default":
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0), nil
	case "default6":
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0), nil
	}
	return units.ParsePrefix(s)
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

// Notes say which packets to the prefix do not go by what was set.
func (r UseResult) Notes() []string { return reachNotes(r.Prefix, r.Elsewhere, r.Effective) }

func reachNotes(prefix netip.Prefix, elsewhere []netip.Prefix, effective bool) (notes []string) {
	if len(elsewhere) > 0 {
		notes = append(notes, fmt.Sprintf("within %s, longer prefixes have routes of their own, which keep their settings: %s", prefix, display.FirstOf(elsewhere)))
	}
	if !effective {
		notes = append(notes, fmt.Sprintf("packets to %s do not take its route in the main table: see ip rule, and ip route get", prefix))
	}
	return notes
}

// WriteText writes the settings of a prefix, and the previous ones.
func (s Setting) WriteText(w io.Writer) error {
	former := map[Metric]Value{}
	for name, done := range s.Metrics {
		if !s.Made && done.Former != (Value{}) {
			former[name] = done.Former
		}
	}
	text := fmt.Sprintf("%s  %s\n", s.Prefix, ValuesText(s.Values()))
	switch {
	case s.Made:
		text += "    had no route of its own\n"
	case len(former) > 0:
		text += fmt.Sprintf("    before: %s\n", ValuesText(former))
	}
	_, err := io.WriteString(w, text)
	return err
}

// UndoneText returns a sentence on a restored setting.
func (s Setting) UndoneText() string {
	if s.Made {
		return fmt.Sprintf("the route to %s is gone again", s.Prefix)
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(s.Metrics)) {
		names = append(names, string(name))
	}
	return fmt.Sprintf("the route to %s has the former %s again", s.Prefix, strings.Join(names, ", "))
}

// UndoneText returns a sentence on a restored use.
func (u Use) UndoneText() string {
	switch {
	case u.Made:
		return fmt.Sprintf("the route to %s is gone again", u.Prefix)
	case u.FormerAlgorithm != "":
		return fmt.Sprintf("new connections to %s use %s again", u.Prefix, u.FormerAlgorithm)
	}
	return fmt.Sprintf("new connections to %s use the default again", u.Prefix)
}
