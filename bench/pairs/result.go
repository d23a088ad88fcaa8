package main

import (
	"fmt"
	"io"
	"math"
	"text/tabwriter"

	"longhaul/internal/words/display"
	"longhaul/lab"
	"longhaul/lab/experiment"
	"longhaul/lab/stats"
)

// Result is the outcome of a run.
type Result struct {
	Experiment string       `json:"experiment"`
	Kernel     string       `json:"kernel"`
	Quick      bool         `json:"quick"`
	Repeat     int          `json:"repeat"`
	Seed       uint64       `json:"seed"`
	Cases      []CaseResult `json:"cases"`
}

func newResult(experiment string, o Options) Result {
	return Result{Experiment: experiment, Kernel: lab.KernelRelease(), Quick: o.Quick, Repeat: o.Repeat, Seed: o.Seed}
}

// CaseResult is the outcome of a case.
type CaseResult struct {
	Name    string    `json:"name"`
	About   string    `json:"about"`
	Figures []*Figure `json:"figures"`
	Skipped []Skipped `json:"skipped,omitempty"`
	Errors  []Failure `json:"errors,omitempty"`
}

// Skipped is a way that this machine cannot run.
type Skipped struct {
	Way    string `json:"way"`
	Reason string `json:"reason"`
}

// Failure is why the runs of a way ended.
type Failure struct {
	Way   string `json:"way"`
	Error string `json:"error"`
}

// Figure is one figure of one way: the median over the runs, and their range.
type Figure struct {
	Way    string    `json:"way"`
	Name   string    `json:"name"`
	Unit   string    `json:"unit,omitempty"`
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Runs   []float64 `json:"runs"`
	Bound  *Bound    `json:"bound,omitempty"`
	OK     *bool     `json:"ok,omitempty"`      // null: without a bound
	First  string    `json:"example,omitempty"` // one of the things that the figure counts
}

// Bound is what a figure has to keep.
type Bound struct {
	AtMost  *float64 `json:"at_most,omitempty"`
	AtLeast *float64 `json:"at_least,omitempty"`
}

func atMost(v float64) *Bound  { return &Bound{AtMost: &v} }
func atLeast(v float64) *Bound { return &Bound{AtLeast: &v} }

func (b Bound) holds(v float64) bool {
	return !math.IsNaN(v) && (b.AtMost == nil || v <= *b.AtMost) && (b.AtLeast == nil || v >= *b.AtLeast)
}

// measured is one figure of one run.
type measured struct {
	name, unit string
	value      float64
	bound      *Bound // of longhaul's pairs; nil: none
	exact      bool   // the worst run counts, not the median: nothing may be lost in any
	example    string
}

// add adds a figure of a run to those of the runs before.
func (c *CaseResult) add(way string, m measured) {
	for _, f := range c.Figures {
		if f.Way == way && f.Name == m.name {
			f.take(m)
			return
		}
	}
	f := &Figure{Way: way, Name: m.name, Unit: m.unit}
	if ours(way) {
		f.Bound = m.bound
	}
	f.take(m)
	c.Figures = append(c.Figures, f)
}

func (f *Figure) take(m measured) {
	f.Runs = append(f.Runs, m.value)
	if f.First == "" {
		f.First = m.example
	}
	if f.Bound == nil {
		return
	}
	held := f.Bound.holds(m.value) && (f.OK == nil || *f.OK)
	if !m.exact {
		held = f.Bound.holds(stats.Median(f.Runs, itself))
	}
	f.OK = &held
}

func itself(v float64) float64 { return v }

// finish computes the medians.
func (c *CaseResult) finish() {
	for _, f := range c.Figures {
		f.Median = stats.Median(f.Runs, itself)
		f.Min, f.Max = stats.Spread(f.Runs, itself)
	}
}

func (c *CaseResult) failed(way string) bool {
	for _, f := range c.Errors {
		if f.Way == way {
			return true
		}
	}
	return false
}

// of returns the values of a figure, one for each run.
func (c *CaseResult) of(way, name string) []float64 {
	for _, f := range c.Figures {
		if f.Way == way && f.Name == name {
			return f.Runs
		}
	}
	return nil
}

// Judge returns an error if a bound is not kept or a way failed.
func (r Result) Judge() error {
	for _, c := range r.Cases {
		for _, f := range c.Figures {
			if f.OK != nil && !*f.OK {
				return experiment.ErrShown
			}
		}
		if len(c.Errors) > 0 {
			return experiment.ErrShown
		}
	}
	return nil
}

// width is that of the text, in columns.
const width = 80

// WriteText prints a line for each figure, in 80 columns.
func (r Result) WriteText(w io.Writer) error {
	for i, c := range r.Cases {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s\n", display.Fold(c.Name+": "+c.About, width, 2))
		if err := c.writeTable(w); err != nil {
			return err
		}
		for _, f := range c.Figures {
			if f.First != "" {
				fmt.Fprintf(w, "  %s\n", display.Fold(fmt.Sprintf("%s, %s: %s", f.Way, f.Name, f.First), width, 4))
			}
		}
		for _, s := range c.Skipped {
			fmt.Fprintf(w, "  %s\n", display.Fold(fmt.Sprintf("%s: not run: %s", s.Way, s.Reason), width, 4))
		}
		for _, f := range c.Errors {
			fmt.Fprintf(w, "  NO %s: %s\n", f.Way, f.Error)
		}
	}
	if r.Repeat > 1 {
		fmt.Fprintf(w, "\nMedians of %d runs, and their range.\n", r.Repeat)
	}
	return nil
}

func (c CaseResult) writeTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range c.Figures {
		mark, bound, spread := "", "", ""
		if f.OK != nil {
			mark = "NO"
			if *f.OK {
				mark = "ok"
			}
		}
		if b := f.Bound; b != nil && b.AtMost != nil {
			bound = "≤ " + digits(*b.AtMost)
		} else if b != nil && b.AtLeast != nil {
			bound = "≥ " + digits(*b.AtLeast)
		}
		if f.Min < f.Max {
			spread = digits(f.Min) + "-" + digits(f.Max)
		}
		name := f.Name
		if f.Unit != "" {
			name += ", " + f.Unit
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", mark, f.Way, name, digits(f.Median), spread, bound)
	}
	return t.Flush()
}

// digits writes a number with three digits or so, whole ones without a fraction.
func digits(v float64) string {
	size := math.Abs(v)
	switch {
	case math.IsNaN(v):
		return "-"
	case v == math.Trunc(v) || size >= 100:
		return fmt.Sprintf("%.0f", v)
	case size >= 10:
		return fmt.Sprintf("%.1f", v)
	case size >= 1:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.3f", v)
	}
}
