//go:build linux

package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"longhaul/internal/words/display"
	"longhaul/lab/experiment"
	"longhaul/lab/stats"
)

// Result is the outcome of a run.
type Result struct {
	Experiment string   `json:"experiment"`
	Kernel     string   `json:"kernel"`
	Quick      bool     `json:"quick"`
	Repeat     int      `json:"repeat"`
	Cases      []Case   `json:"cases"`
	Connect    *Connect `json:"connect,omitempty"`
}

// Case is the outcome of a case.
type Case struct {
	Name    string   `json:"name"`
	About   string   `json:"about"`
	Unit    string   `json:"unit"`
	Figures []Figure `json:"figures"`
}

// Figure is the cost of one way.
type Figure struct {
	Way string `json:"way"`
	// Cost is the CPU time of the threads that take part, and MachineCost that of the
	// whole machine, with all that it does meanwhile.
	Cost        Spread `json:"cost"`
	MachineCost Spread `json:"machine_cost"`
	// Ratio is the cost of forwarding, or of a byte, over that of the case's reference.
	Ratio        *Spread  `json:"ratio,omitempty"`
	MachineRatio *Spread  `json:"machine_ratio,omitempty"`
	AtMost       *float64 `json:"at_most,omitempty"`
	OK           *bool    `json:"ok,omitempty"`
}

// Spread is the median over the runs, and their range.
type Spread struct {
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Runs   []float64 `json:"runs"`
}

func spreadOf(runs []float64) (s Spread) {
	itself := func(v float64) float64 { return v }
	s.Runs, s.Median = runs, stats.Median(runs, itself)
	s.Min, s.Max = stats.Spread(runs, itself)
	return s
}

// cost is CPU time for an amount, of every run.
func cost(runs []spent, of func(spent) time.Duration) (all []float64) {
	for _, r := range runs {
		all = append(all, of(r).Seconds()/r.amount)
	}
	return all
}

// figures compares the ways. runs has those of each.
func (t trial) figures(runs [][]spent) (all []Figure) {
	own := func(s spent) time.Duration { return s.own }
	machine := func(s spent) time.Duration { return s.machine }
	find := func(way string, of func(spent) time.Duration) []float64 {
		for i, name := range t.ways {
			if name == way {
				return cost(runs[i], of)
			}
		}
		return make([]float64, len(runs[0]))
	}
	ratio := func(way string, of func(spent) time.Duration) *Spread {
		values, reference, zero := find(way, of), find(t.reference, of), find(t.zero, of)
		for i := range values {
			values[i] = (values[i] - zero[i]) / (reference[i] - zero[i])
		}
		s := spreadOf(values)
		return &s
	}
	for _, way := range t.ways {
		f := Figure{Way: way, Cost: spreadOf(find(way, own)), MachineCost: spreadOf(find(way, machine))}
		if way != t.reference && way != t.zero {
			f.Ratio, f.MachineRatio = ratio(way, own), ratio(way, machine)
		}
		if way == wayIntercept || way == waySource {
			held := f.Ratio.Median <= t.atMost
			f.AtMost, f.OK = &t.atMost, &held
		}
		all = append(all, f)
	}
	return all
}

// Judge returns an error if a bound is not kept.
func (r Result) Judge() error {
	for _, c := range r.Cases {
		for _, f := range c.Figures {
			if f.OK != nil && !*f.OK {
				return experiment.ErrShown
			}
		}
	}
	if r.Connect != nil && !r.Connect.held() {
		return experiment.ErrShown
	}
	return nil
}

// width is that of the text, in columns.
const width = 80

// WriteText prints a table for each case, in 80 columns.
func (r Result) WriteText(w io.Writer) error {
	for i, c := range r.Cases {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s\n", display.Fold(c.Name+": "+c.About, width, 2))
		t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
		fmt.Fprintf(t, "\tway\t%s\t\tmachine\tratio\t\tmachine\tbound\n", c.Unit)
		for _, f := range c.Figures {
			mark, ratio, span, machine, bound := "", "", "", "", ""
			if f.OK != nil {
				mark, bound = "NO", fmt.Sprintf("≤ %.2f", *f.AtMost)
				if *f.OK {
					mark = "ok"
				}
			}
			if f.Ratio != nil {
				ratio, span, machine = fmt.Sprintf("%.3f", f.Ratio.Median), fmt.Sprintf("%.3f-%.3f", f.Ratio.Min, f.Ratio.Max), fmt.Sprintf("%.3f", f.MachineRatio.Median)
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s-%s\t%s\t%s\t%s\t%s\t%s\n", mark, f.Way, digits(f.Cost.Median), digits(f.Cost.Min), digits(f.Cost.Max),
				digits(f.MachineCost.Median), ratio, span, machine, bound)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if len(r.Cases) > 0 {
		fmt.Fprintf(w, "\nMedians of %d runs, and their range. machine: all that the machine did.\n", r.Repeat)
	}
	if r.Connect != nil {
		if len(r.Cases) > 0 {
			fmt.Fprintln(w)
		}
		return r.Connect.writeText(w, r.Repeat)
	}
	return nil
}

// digits writes a cost with three digits or so.
func digits(v float64) string {
	if v >= 10 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3f", v)
}
