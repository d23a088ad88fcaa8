package hostcheck

import (
	"fmt"
	"io"
	"strings"

	"longhaul/internal/display"
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
	b.WriteString(display.Fold(fmt.Sprintf("Linux %s; costs on the path %s", r.Kernel, r.Path), width, 0) + "\n\n")
	line("FEATURE", "PART", "STATE", "")
	for i, p := range r.Parts {
		shown, remark := p.Feature, p.Detail
		if i > 0 && r.Parts[i-1].Feature == p.Feature {
			shown = ""
		}
		if p.Cost != nil {
			remark = p.Cost.loses()
		}
		line(shown, p.Name, p.State, remark)
		if p.Cost != nil {
			if text := p.Cost.explain(p.Name); text != "" {
				below("costs: ", text)
			}
		}
		// Several parts in a row may lack the same.
		if i+1 < len(r.Parts) && p.lacksSame(r.Parts[i+1]) {
			continue
		}
		if p.Why != "" {
			below("why: ", p.Why)
		}
		if p.Remedy != "" {
			below("remedy: ", p.Remedy)
		}
	}
	b.WriteString("\n" + display.Fold(r.summary(), width, 0) + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// lacksSame reports whether two parts have the same remedy against the same lack.
func (p Part) lacksSame(other Part) bool {
	return p.Why != "" && p.Feature == other.Feature && p.State == other.State && p.Why == other.Why && p.Remedy == other.Remedy
}

// loses is the cost in a few words.
func (c Cost) loses() string {
	switch {
	case c.Unknown != "":
		return ""
	case c.LosesBps < 0.005*c.WithBps:
		return "costs nothing there"
	case c.AtLeast:
		return "costs at least " + display.Rate(c.LosesBps)
	}
	return "costs " + display.Rate(c.LosesBps)
}

// explain names the figures and their source.
func (c Cost) explain(part string) string {
	switch {
	case c.Unknown != "":
		return c.Unknown
	case c.LosesBps < 0.005*c.WithBps:
		return ""
	}
	without, with := "as it is", "with the remedy"
	if c.Instead != "" {
		without, with = "with "+c.Instead, "with "+part
	}
	bound := ""
	if c.AtLeast {
		bound = "at most "
	}
	return fmt.Sprintf("%s%s %s, %s %s; %s", bound, display.Rate(c.WithoutBps), without, display.Rate(c.WithBps), with, c.Source)
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

// WriteMissing writes a line for each part that is missing or limited.
func (r Report) WriteMissing(w io.Writer) error {
	for _, p := range r.Parts {
		if p.State == No || p.State == Limited {
			if _, err := fmt.Fprintln(w, display.Fold(p.Sentence(), width, 0)); err != nil {
				return err
			}
		}
	}
	return nil
}
