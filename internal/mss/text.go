package mss

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"longhaul/internal/display"
)

// Text describes a rule without its device: "raise to 1460: data toward
// 203.0.113.0/24".
func (r Rule) Text() string {
	var b strings.Builder
	switch r.Action {
	case Raise:
		fmt.Fprintf(&b, "raise to %d", r.MSS)
	case Clamp:
		fmt.Fprintf(&b, "clamp to %d", r.MSS)
	case ClampToRoute:
		b.WriteString("clamp to the route")
	case ClampToPMTU:
		b.WriteString("clamp to the path MTU")
	}
	b.WriteString(": data")
	if r.From.IsValid() {
		fmt.Fprintf(&b, " from %s", r.From)
	}
	if r.Toward.IsValid() {
		fmt.Fprintf(&b, " toward %s", r.Toward)
	}
	if !r.From.IsValid() && !r.Toward.IsValid() {
		b.WriteString(" both ways")
	}
	if r.Port != 0 {
		fmt.Fprintf(&b, ", port %d", r.Port)
	}
	return b.String()
}

// DeviceText returns the device of a rule. A deleted device, or one of another network
// namespace, has no name here.
func (r Rule) DeviceText() string {
	if r.Device == "" {
		return "(not here)"
	}
	return r.Device
}

// WriteText writes two lines about a rule, or three if it is not in force.
func (s Status) WriteText(w io.Writer) error {
	if s.Action == "" {
		_, err := fmt.Fprintf(w, "%s  %s\n", s.DeviceText(), s.Problem)
		return err
	}
	text := fmt.Sprintf("%s  %s\n    matched %s, changed %d", s.DeviceText(), s.Text(), display.Plural(int(s.Matched), "SYN"), s.Rewritten)
	if s.Rewritten > 0 {
		text += fmt.Sprintf("; the last %s ago: %d -> %d", display.Age(s.LastAgo.Seconds()), s.LastOld, s.LastNew)
	}
	if s.Problem != "" {
		text += "\n    " + s.Problem
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

// MarshalJSON adds the time since the rule last changed a SYN, if any.
func (s Status) MarshalJSON() ([]byte, error) {
	type plain Status
	all := struct {
		plain
		LastAgoSeconds *float64 `json:"last_ago_seconds,omitempty"`
	}{plain: plain(s)}
	if s.Rewritten > 0 {
		seconds := s.LastAgo.Seconds()
		all.LastAgoSeconds = &seconds
	}
	return json.Marshal(all)
}

// WriteText writes a line for each rule that was removed.
func (c ClearResult) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, r := range c.Rules {
		fmt.Fprintf(&b, "cleared %s  %s\n", r.DeviceText(), r.Text())
	}
	if c.Leftovers > 0 {
		fmt.Fprintf(&b, "cleared what was left of %s\n", display.Plural(c.Leftovers, "device"))
	}
	if b.Len() == 0 {
		b.WriteString("no rules\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
