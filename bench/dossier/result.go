package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"longhaul/bench/kit/congestion"
	"longhaul/internal/words/stats"
)

// Result is the outcome of the cells.
type Result struct {
	Experiment string         `json:"experiment"`
	Algorithm  string         `json:"algorithm"`
	Rivals     []string       `json:"rivals"`
	Lacks      []string       `json:"lacks,omitempty"` // rivals that this kernel lacks
	Runs       Provenance     `json:"runs"`
	Families   []FamilyResult `json:"families"`
	Notes      string         `json:"notes,omitempty"`    // of whoever measured
	Document   string         `json:"document,omitempty"` // the file that was written
}

// FamilyResult is the outcome of a family of cells.
type FamilyResult struct {
	Name  string       `json:"name"`
	Title string       `json:"title"`
	Items []string     `json:"items"` // sections of RFC 9743
	Cells []CellResult `json:"cells"`

	about string
}

// Provenance says how the results were measured.
type Provenance struct {
	Count     int       `json:"count"`
	Kernels   []string  `json:"kernels"`
	From      time.Time `json:"from"`
	To        time.Time `json:"to"`
	Parallel  int       `json:"parallel"`            // the most trials that could run at once
	BusyP50   float64   `json:"machine_busy_p50"`    // share of all CPUs' time, by anything
	BusyMax   float64   `json:"machine_busy_max"`    // of the busiest run
	LateP50   float64   `json:"machine_late_p50_ms"` // the p99 of the threads' lateness, in the median run
	LateMax   float64   `json:"machine_late_max_ms"` // in the worst
	Disturbed int       `json:"disturbed"`           // runs that do not count

	busy, late []float64
}

func (p *Provenance) add(r record, maxLateMs congestion.Value) {
	if r.isDisturbed(maxLateMs) {
		p.Disturbed++
		return
	}
	p.Count++
	if !slices.Contains(p.Kernels, r.Kernel) {
		p.Kernels = append(p.Kernels, r.Kernel)
	}
	if p.From.IsZero() || r.At.Before(p.From) {
		p.From = r.At
	}
	if r.At.After(p.To) {
		p.To = r.At
	}
	p.Parallel = max(p.Parallel, r.Parallel)
	p.busy = append(p.busy, r.MachineBusy)
	p.late = append(p.late, float64(r.LateP99Ms))
	same := func(v float64) float64 { return v }
	p.BusyP50, p.LateP50 = stats.Median(p.busy, same), stats.Median(p.late, same)
	p.BusyMax, p.LateMax = slices.Max(p.busy), slices.Max(p.late)
}

// judgeAll judges the cells by the stored runs.
func judgeAll(families []family, s store, repeat int, missing lacks) ([]FamilyResult, Provenance, error) {
	var results []FamilyResult
	var from Provenance
	counted := map[string]bool{}
	for _, f := range families {
		result := FamilyResult{Name: f.name, Title: f.title, Items: f.items, about: f.about}
		for _, c := range f.cells {
			r, why := runs{}, missing.ofCell(c)
			for _, name := range c.roles() {
				t := c.trials[name]
				identity, err := t.identity()
				if err != nil {
					return nil, from, err
				}
				for run := range repeat {
					file := s.file(t, identity, uint64(run+1))
					known, err := s.load(file)
					if err != nil {
						return nil, from, err
					}
					if known == nil {
						continue
					}
					if known.isDisturbed(s.maxLateMs) {
						why = "measured only while the machine ran late"
					} else {
						r[name] = append(r[name], known.Measured)
					}
					if !counted[file] {
						counted[file] = true
						from.add(*known, s.maxLateMs)
					}
				}
			}
			result.Cells = append(result.Cells, c.judge(r, why))
		}
		results = append(results, result)
	}
	return results, from, nil
}

// count returns the numbers of cells with each verdict.
func count(families []FamilyResult, in func(FamilyResult) bool) (verdicts map[Verdict]int) {
	verdicts = map[Verdict]int{}
	for _, f := range families {
		if !in(f) {
			continue
		}
		for _, c := range f.Cells {
			verdicts[c.Verdict]++
		}
	}
	return verdicts
}

// WriteText writes a line for every family, and then the cells that failed.
func (r Result) WriteText(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "cells\tpass\tfail\tnot run\tRFC 9743\n")
	for _, f := range r.Families {
		n := count([]FamilyResult{f}, func(FamilyResult) bool { return true })
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%s\n", f.Name, n[Pass], n[Fail], n[NotRun], joined(f.Items))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	failing := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range r.Families {
		for _, c := range f.Cells {
			if c.Verdict != Fail {
				continue
			}
			if c.Reason != "" {
				fmt.Fprintf(failing, "%s\t%s/%s\t%s\n", c.mark(), f.Name, c.Name, c.Reason)
			}
			for _, cl := range c.Claims {
				if !cl.OK {
					fmt.Fprintf(failing, "%s\t%s/%s\t%s\t%s\n", c.mark(), f.Name, c.Name, cl.Title, strings.ReplaceAll(cl.text(), "**", ""))
				}
			}
		}
	}
	if err := failing.Flush(); err != nil {
		return err
	}
	if r.Document != "" {
		_, err := fmt.Fprintf(w, "The document is %s.\n", r.Document)
		return err
	}
	return nil
}

// mark is the verdict, with signs where the intervals reach across the bounds, and where
// the bounds exclude each other.
func (c CellResult) mark() string {
	mark := string(c.Verdict)
	if c.Verdict != NotRun && !c.Sure {
		mark += " ~"
	}
	if c.Excluded {
		mark += " †"
	}
	return mark
}

// excluded returns the number of failing cells whose bounds exclude each other.
func excluded(families []FamilyResult) (n int) {
	for _, f := range families {
		for _, c := range f.Cells {
			if c.Excluded {
				n++
			}
		}
	}
	return n
}
