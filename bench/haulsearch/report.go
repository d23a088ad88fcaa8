package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

const columns = 80

// exceeded says whether more paths break a bound than are allowed, and known.
func (r result) exceeded() bool {
	return slices.ContainsFunc(r.Bounds, func(t tally) bool { return t.worse(r.known) })
}

func (r result) verdict() error {
	if r.exceeded() {
		return errors.New("more paths break a bound than are allowed")
	}
	return whole(r.Interrupted)
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// toRun stands before paths that are shown as commands.
const toRun = "\nto run the paths below:\n  gcc -O2 -o haulsim bpf/hosttest/sim/haulsim.c -lm && PATH=.:$PATH\n"

func (r result) writeText(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var worse, above bool
	fmt.Fprintln(table, "kind\tbound\tpaths\tfailed\tshare\tallowed\tworst (limit)")
	for _, t := range r.Bounds {
		worst := "-"
		if t.Worst != nil {
			worst = value(*t.Worst, *t.WorstLimit, t.Unit, t.AtLeast)
		}
		mark := ""
		switch {
		case t.worse(r.known):
			mark, worse = " !", true
		case t.Exceeded:
			mark, above = " (known)", true
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s\t%s\t%s%s\n", t.Kind, t.Bound, t.Paths, t.Failures, percent(t.Share), percent(t.Allowed), worst, mark)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if worse {
		fmt.Fprintln(w, "! more than are allowed")
	}
	if above {
		fmt.Fprintln(w, "(known) more than are allowed, as many as --known says")
	}
	for i, f := range r.Failures {
		if i == 0 {
			fmt.Fprint(w, toRun)
		}
		says := ""
		for _, t := range r.Bounds {
			if t.Kind == f.Kind && t.Bound == f.Bound {
				says = t.Says
				fmt.Fprintf(w, "\n%s %s: %s\n", f.Kind, f.Bound, value(f.Simplest.Value, f.Simplest.Limit, t.Unit, t.AtLeast))
			}
		}
		fmt.Fprintf(w, "%s\n", wrap("  # ", says, "  # "))
		fmt.Fprintf(w, "%s\n", wrap("  ", f.Simplest.Command, "    "))
		if f.Simplest.Reference != "" {
			fmt.Fprintf(w, "  # beside:\n%s\n", wrap("  ", f.Simplest.Reference, "    "))
		}
		from := fmt.Sprintf("  # from path %d of --seed %d --kind %s", f.Number, r.Seed, f.Kind)
		if f.SameAs > 0 {
			from += fmt.Sprintf("; %d more shrank to it", f.SameAs)
		}
		fmt.Fprintln(w, from)
	}
	interrupted := ""
	if r.Interrupted {
		interrupted = "interrupted: "
	}
	_, err := fmt.Fprintf(w, "\n%s%d paths, %d of them break a bound, seed %d, %.0f s\n", interrupted, r.Paths, r.Failed, r.Seed, r.Seconds)
	return err
}

func percent(share float64) string {
	switch {
	case share == 0:
		return "0 %"
	case share < 0.0995:
		return fmt.Sprintf("%.2g %%", 100*share)
	}
	return fmt.Sprintf("%.0f %%", 100*share)
}

func value(v, limit float64, unit string, atLeast bool) string {
	sign := "≤"
	if atLeast {
		sign = "≥"
	}
	if unit != "" {
		return fmt.Sprintf("%.4g %s (%s %.4g)", v, unit, sign, limit)
	}
	return fmt.Sprintf("%.4g (%s %.4g)", v, sign, limit)
}

// wrap breaks words into lines. Lines of a command go on with a backslash, those of
// a comment with its sign.
func wrap(first, text, further string) string {
	end := " \\"
	if strings.Contains(first, "#") {
		end = ""
	}
	var lines []string
	line := first
	started := false
	for _, word := range strings.Fields(text) {
		if started && len([]rune(line))+1+len([]rune(word))+len(end) > columns {
			lines = append(lines, line+end)
			line, started = further, false
		}
		if started {
			line += " "
		}
		line += word
		started = true
	}
	return strings.Join(append(lines, line), "\n")
}
