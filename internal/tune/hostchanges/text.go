package hostchanges

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/cc"
	"longhaul/internal/tune/route"
	"longhaul/internal/words/display"
)

// WriteList writes changes as a table that fits a terminal of 80 columns. The lines
// below a change have its command, earlier claims, the former value and users.
func WriteList(w io.Writer, changes []Change, now time.Time) error {
	const indent = "    "
	var b strings.Builder
	rows := [][5]string{{"KIND", "WHAT", "VALUE", "OWNER", "SINCE"}}
	for _, c := range changes {
		owner, since := "-", "-"
		if n := len(c.Claims); n > 0 {
			owner = c.Claims[n-1].Owner
			since = sinceText(c.Claims[n-1], now)
		}
		rows = append(rows, [5]string{string(c.Kind), c.What, c.Value, owner, since})
	}
	line := tableOf(rows)
	below := func(text string) {
		b.WriteString(indent + display.Fold(text, 80, len(indent)) + "\n")
	}
	b.WriteString(line(0))
	for i, c := range changes {
		b.WriteString(line(i + 1))
		switch {
		case c.Deleted:
			below("its network namespace is deleted: " + c.NetNS)
		case c.NetNS != "":
			below("in network namespace " + c.NetNS)
		}
		if c.Interrupted {
			below("interrupted: the next change or undo completes it")
		}
		for i := len(c.Claims) - 1; i >= 0; i-- {
			claim := c.Claims[i]
			text := claim.Command
			if i < len(c.Claims)-1 {
				text = fmt.Sprintf("below it: %s, set by %s %s ago: %s", claim.Text, claim.Owner, sinceText(claim, now), claim.Command)
			}
			if claim.Inherited != "" {
				text += " (from the route to " + claim.Inherited + ")"
			}
			if claim.Ended() {
				text += " (that process has ended)"
			}
			if text != "" {
				below(text)
			}
		}
		if c.Former != "" {
			below("before: " + c.Former)
		}
		if len(c.UsedBy) > 0 {
			below("used by: " + strings.Join(c.UsedBy, ", "))
		}
	}
	if len(changes) == 0 {
		b.Reset()
		b.WriteString("longhaul has changed nothing\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// tableOf returns the lines of a table by their number. Each column is as wide as its widest value,
// and at least as wide as in a list of the usual values.
func tableOf(rows [][5]string) func(i int) string {
	widths := [5]int{9, 30, 17, 10, 0}
	for _, r := range rows {
		for i, value := range r {
			widths[i] = max(widths[i], utf8.RuneCountInString(value))
		}
	}
	return func(i int) string {
		r, text := rows[i], ""
		for column, value := range r {
			text += fmt.Sprintf("%-*s  ", widths[column], value)
		}
		return strings.TrimRight(text, " ") + "\n"
	}
}

func sinceText(c ledger.Claim, now time.Time) string {
	if c.Since.IsZero() {
		return "-"
	}
	return display.Age(max(now.Sub(c.Since), 0).Seconds())
}

// WriteText writes a line for each thing.
func (o Outcome) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, p := range o.Places {
		if p.NetNS != "" {
			fmt.Fprintf(&b, "in network namespace %s:\n", p.NetNS)
		}
		for _, u := range p.Routes {
			_ = u.WriteText(&b) // a builder takes all
		}
		if p.Default != nil {
			b.WriteString(defaultText(*p.Default) + "\n")
		}
		for _, u := range p.MSS {
			_ = u.WriteText(&b)
		}
		for _, u := range p.Intercept {
			fmt.Fprintf(&b, "relay %s intercepts no more\n", u.Relay)
		}
	}
	for _, u := range o.Algorithms {
		b.WriteString(algorithmText(u) + "\n")
	}
	times := map[string]int{}
	for _, label := range o.Forgotten {
		times[label]++
	}
	for _, label := range slices.Sorted(maps.Keys(times)) {
		if n := times[label]; n > 1 {
			fmt.Fprintf(&b, "forgot %s, %d times: its network namespaces are deleted\n", label, n)
			continue
		}
		fmt.Fprintf(&b, "forgot %s: its network namespace is deleted\n", label)
	}
	for _, label := range o.Unreachable {
		fmt.Fprintf(&b, "%s: stays, because its network namespace was not found\n", label)
	}
	if o.Unseen != nil {
		fmt.Fprintf(&b, "did not look for programs in the kernel: %v\n", o.Unseen)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func defaultText(u cc.UndoneDefault) string {
	last := ""
	if n := len(u.Left); n > 0 {
		last = ", set by " + u.Left[n-1].Owner
	}
	switch {
	case u.Kept:
		return fmt.Sprintf("the default stays %s, which another program has set since", u.Now)
	case u.Restored || last == "":
		return fmt.Sprintf("the default is %s again%s", u.Now, last)
	}
	return fmt.Sprintf("the default stays %s%s", u.Now, last)
}

func algorithmText(u cc.Undone) string {
	if len(u.Users) > 0 {
		var users []string
		for _, user := range u.Users {
			text := user.Claim.Owner
			switch user.Entry.Kind {
			case ledger.Route:
				text += " uses it for " + user.Entry.Name
			case ledger.Default:
				text += " uses it as a default"
			default:
				text += " has loaded it"
			}
			users = append(users, text)
		}
		return fmt.Sprintf("%s: stays loaded: %s", u.Name, strings.Join(users, ", "))
	}
	text := fmt.Sprintf("%s: %s", u.Name, u.Result.Outcome)
	if u.Result.Sockets > 0 {
		text += fmt.Sprintf(", %s keep it", display.Plural(u.Result.Sockets, "connection"))
	}
	if u.Result.Default != "" {
		text += fmt.Sprintf(", the default is %s again", u.Result.Default)
	}
	if u.Result.StillRegistered {
		text += ", still registered by another process that holds it"
	}
	return text
}

// Undone is a thing of an [Outcome], for JSON.
type Undone struct {
	Kind  ledger.Kind `json:"kind"`
	What  string      `json:"what"`
	NetNS string      `json:"netns,omitempty"`
	// Now is the present value, empty for an unset one.
	Now string `json:"now,omitempty"`
	// Kept: another program has set the value since.
	Kept    bool           `json:"kept,omitempty"`
	Outcome cc.Outcome     `json:"outcome,omitempty"` // of an algorithm
	Taken   []ledger.Claim `json:"taken"`
	Left    []ledger.Claim `json:"left,omitempty"` // of others
	// Connections keep an unloaded algorithm until they end.
	Connections int `json:"connections,omitempty"`
}

// Undone lists the things of the outcome.
func (o Outcome) Undone() []Undone {
	all := []Undone{}
	for _, p := range o.Places {
		for _, u := range p.Routes {
			for _, m := range u.Metrics {
				one := Undone{Kind: ledger.Route, What: fmt.Sprintf("%s %s", u.Prefix, m.Metric), NetNS: p.NetNS, Kept: m.Kept, Taken: m.Taken, Left: m.Left}
				if !u.Deleted && !u.Missing && m.Now != (route.Value{}) {
					one.Now = m.Now.Text(m.Metric)
				}
				all = append(all, one)
			}
		}
		if d := p.Default; d != nil {
			all = append(all, Undone{Kind: ledger.Default, What: "default", NetNS: p.NetNS, Now: d.Now, Kept: d.Kept, Taken: d.Taken, Left: d.Left})
		}
		for _, u := range p.MSS {
			one := Undone{Kind: ledger.MSS, What: u.Rule.DeviceText() + " " + u.Rule.Text(), NetNS: p.NetNS, Taken: u.Taken, Left: u.Left}
			if u.Now != nil {
				one.Now = u.Now.Text()
			}
			all = append(all, one)
		}
		for _, u := range p.Intercept {
			all = append(all, Undone{Kind: ledger.Intercept, What: "relay " + u.Relay, NetNS: p.NetNS, Taken: u.Taken})
		}
	}
	for _, u := range o.Algorithms {
		one := Undone{Kind: ledger.Algorithm, What: u.Name, Outcome: u.Result.Outcome, Taken: u.Taken, Connections: u.Result.Sockets}
		for _, user := range u.Users {
			one.Left = append(one.Left, user.Claim)
			one.Now = "loaded"
		}
		all = append(all, one)
	}
	return all
}
