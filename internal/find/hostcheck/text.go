package hostcheck

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"longhaul/internal/words/display"
)

// width is that of the table, in columns.
const width = 80

// WriteText writes the report as a table that fits a terminal of 80 columns. Lines below
// a part say what it lacks, the remedy and the cost.
func (r Report) WriteText(w io.Writer) error {
	const (
		row    = "%-8s  %-18s  %-7s  %s"
		indent = "            "
	)
	var b strings.Builder
	line := func(values ...any) { b.WriteString(strings.TrimRight(fmt.Sprintf(row, values...), " ") + "\n") }
	below := func(lead, text string) {
		b.WriteString(indent + lead + display.Fold(text, width, len(indent)+len(lead)) + "\n")
	}
	fmt.Fprintf(&b, "Linux %s\n%s\n\n", r.Kernel, display.Fold("path of the costs: "+r.Path.String(), width, 0))
	line("FEATURE", "PART", "STATE", "")
	var sources []string // of the costs of parts that lack the same
	for i, p := range r.Parts {
		shown, remark := p.Feature, p.Detail
		if i > 0 && r.Parts[i-1].Feature == p.Feature {
			shown = ""
		}
		if p.Cost != nil {
			remark = p.Cost.short()
			if source := p.Cost.source(); source != "" && !slices.Contains(sources, source) {
				sources = append(sources, source)
			}
		}
		line(shown, p.Name, p.State, remark)
		if i+1 < len(r.Parts) && p.lacksSame(r.Parts[i+1]) {
			continue
		}
		if p.Why != "" {
			below("why: ", p.Why)
		}
		if p.Remedy != "" {
			below("remedy: ", p.Remedy)
		}
		for _, source := range sources {
			below("costs: ", source)
		}
		sources = nil
	}
	b.WriteString("\n" + display.Fold(r.summary(), width, 0) + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// lacksSame reports whether two parts have the same remedy against the same lack.
func (p Part) lacksSame(other Part) bool {
	return p.Why != "" && p.Feature == other.Feature && p.State == other.State && p.Why == other.Why && p.Remedy == other.Remedy
}

// short is the cost in at most 41 columns.
func (c Cost) short() string {
	switch {
	case c.Unknown != "":
		return ""
	case c.isNothing():
		return "costs nothing there"
	case c.AtLeast:
		return fmt.Sprintf("costs at least %s", display.Rate(c.LosesBps))
	case c.Instead != "":
		return fmt.Sprintf("costs %s (%s: %s)", display.Rate(c.LosesBps), c.Instead, display.Rate(c.WithoutBps))
	}
	return "costs " + display.Rate(c.LosesBps)
}

// isNothing reports whether the cost is within the figures' accuracy.
func (c Cost) isNothing() bool { return c.LosesBps < 0.005*c.WithBps }

// source names the source of the figures, or the reason for missing ones.
func (c Cost) source() string {
	switch {
	case c.Unknown != "":
		return c.Unknown
	case c.isNothing():
		return ""
	case c.AtLeast:
		return fmt.Sprintf("at most %s of %s: %s", display.Rate(c.WithoutBps), display.Rate(c.WithBps), c.Source)
	}
	return c.Source
}

// summary counts the states.
func (r Report) summary() string {
	no, limited, unknown := r.Count(No), r.Count(Limited), r.Count(Unknown)
	if no+limited+unknown == 0 {
		return "everything is here"
	}
	var parts []string
	for _, s := range []struct {
		n    int
		text string
	}{{no, "missing"}, {limited, "limited"}, {unknown, "unknown to this user"}} {
		if s.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", s.n, s.text))
		}
	}
	return fmt.Sprintf("of %d parts: %s", len(r.Parts), strings.Join(parts, ", "))
}

// WriteMissing writes a sentence for each lack, with the parts that have it.
func (r Report) WriteMissing(w io.Writer) error {
	var names []string
	for i, p := range r.Parts {
		if p.State != No && p.State != Limited {
			continue
		}
		names = append(names, p.Name)
		if i+1 < len(r.Parts) && p.lacksSame(r.Parts[i+1]) {
			continue
		}
		text := fmt.Sprintf("%s %s: %s: %s", p.Feature, strings.Join(names, ", "), p.State, p.Why)
		if p.Remedy != "" {
			text += "; remedy: " + p.Remedy
		}
		names = nil
		if _, err := fmt.Fprintln(w, display.Fold(text, width, 0)); err != nil {
			return err
		}
	}
	return nil
}
