package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"longhaul/test/tcpscript"
)

// result is what the program prints as JSON.
type result struct {
	Kernel    string        `json:"kernel"`
	Repeat    int           `json:"repeat"`
	Sequences []string      `json:"sequences"`
	Relays    []relayResult `json:"relays"`
}

type relayResult struct {
	Name    string   `json:"name"`
	Version string   `json:"version"`
	Note    string   `json:"note,omitempty"`
	Endings []ending `json:"endings"`
}

// ending counts the outcomes of one sequence with one relay.
type ending struct {
	Sequence string  `json:"sequence"`
	OK       int     `json:"ok"`
	Wrong    []wrong `json:"wrong,omitempty"`
}

// wrong is an outcome that must not be.
type wrong struct {
	What  string `json:"what"` // "client got an end"
	Step  string `json:"step"` // the step that failed
	Count int    `json:"count"`
	// Least and most bytes that the step had read by then; -1 where it does
	// not read.
	BytesMin int64 `json:"bytes_min"`
	BytesMax int64 `json:"bytes_max"`
}

func (e *ending) add(f *tcpscript.Failure) {
	what := strings.TrimSpace(f.Actor + " " + f.Got)
	for i := range e.Wrong {
		if w := &e.Wrong[i]; w.What == what && w.Step == f.Step {
			w.Count++
			w.BytesMin, w.BytesMax = min(w.BytesMin, f.Bytes), max(w.BytesMax, f.Bytes)
			return
		}
	}
	e.Wrong = append(e.Wrong, wrong{What: what, Step: f.Step, Count: 1, BytesMin: f.Bytes, BytesMax: f.Bytes})
}

// String is the outcome in a table's cell.
func (e ending) String() string {
	if len(e.Wrong) == 0 {
		return "ok"
	}
	var parts []string
	if e.OK > 0 {
		parts = append(parts, fmt.Sprintf("%d× ok", e.OK))
	}
	for _, w := range e.Wrong {
		s := w.What
		if w.BytesMax > 0 && w.BytesMin == w.BytesMax {
			s += fmt.Sprintf(" after %d bytes", w.BytesMax)
		} else if w.BytesMax > 0 {
			s += fmt.Sprintf(" after %d to %d bytes", w.BytesMin, w.BytesMax)
		}
		if e.OK > 0 || len(e.Wrong) > 1 {
			s = fmt.Sprintf("%d× %s", w.Count, s)
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, ", ")
}

// wrongEndings is how many sequences went wrong at least once.
func (r relayResult) wrongEndings() int {
	n := 0
	for _, e := range r.Endings {
		if len(e.Wrong) > 0 {
			n++
		}
	}
	return n
}

// title is the relay's name with what it needs to be known by.
func (r relayResult) title() string {
	s := r.Name + " " + r.Version
	if r.Note != "" {
		s += " (" + r.Note + ")"
	}
	return s
}

func (r result) writeJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

func (r result) writeMarkdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "| relay | %s | wrong |\n", strings.Join(r.Sequences, " | "))
	b.WriteString("|---" + strings.Repeat("|---", len(r.Sequences)) + "|---|\n")
	for _, relay := range r.Relays {
		fmt.Fprintf(&b, "| %s ", relay.title())
		for _, e := range relay.Endings {
			cell := e.String()
			if cell != "ok" {
				cell = "✗ " + cell
			}
			fmt.Fprintf(&b, "| %s ", cell)
		}
		fmt.Fprintf(&b, "| %d of %d |\n", relay.wrongEndings(), len(relay.Endings))
	}
	fmt.Fprintf(&b, "\n%d runs of each, Linux %s.\n", r.Repeat, r.Kernel)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r result) writeText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, relay := range r.Relays {
		fmt.Fprintf(t, "%s: %d of %d wrong\n", relay.title(), relay.wrongEndings(), len(relay.Endings))
		for _, e := range relay.Endings {
			fmt.Fprintf(t, "  %s\t%s\n", e.Sequence, e)
		}
	}
	return t.Flush()
}
