package mss

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"longhaul/internal/words/display"
)

// Text describes a rule without its device: "raise to 1460: data to
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
	if r.To.IsValid() {
		fmt.Fprintf(&b, " to %s", r.To)
	}
	if !r.From.IsValid() && !r.To.IsValid() {
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
	if n := len(s.Claims); n > 0 {
		text += "\n    set by " + s.Claims[n-1].Owner
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

// WriteText writes a line about the outcome.
func (u Undone) WriteText(w io.Writer) error {
	var text string
	last := ""
	if n := len(u.Left); n > 0 {
		last = u.Left[n-1].Owner
	}
	switch {
	case u.Rule.Action == "":
		text = "removed what an interrupted command left of " + u.Rule.DeviceText()
	case u.Now == nil:
		text = fmt.Sprintf("removed %s  %s", u.Rule.DeviceText(), u.Rule.Text())
	case *u.Now == u.Rule:
		text = fmt.Sprintf("%s keeps %s, set by %s", u.Rule.DeviceText(), u.Now.Text(), last)
	default:
		text = fmt.Sprintf("%s has %s again, set by %s", u.Rule.DeviceText(), u.Now.Text(), last)
	}
	_, err := fmt.Fprintln(w, text)
	return err
}
