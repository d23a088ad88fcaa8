package kit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"longhaul/internal/words/display"
	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/stats"
	"longhaul/lab"
	"longhaul/lab/experiment"
	"longhaul/lab/progress"
	"longhaul/lab/sandbox"
)

// Suite is an experiment of cases, each a declaration: the ways that are measured, and
// what one run of them notes. The suite has the flags, the runs, the medians, the bounds
// and the table.
type Suite struct {
	experiment.Experiment // its cases and New are the suite's
	Trials                []Trial
	Usual                 Options
	QuickTime             time.Duration           // of --quick, if the usual time is set
	Crowds                string                  // the cases with a number of flows; empty: none
	Missing               func(way string) string // why this machine cannot run a way; nil: it can run all
	Bounded               func(way string) bool   // ways whose figures have bounds; nil: all
}

// Trial is one case.
type Trial struct {
	Name, About string
	Ways        []string
	Algorithms  []string // longhaul's congestion controls that it uses if they can be loaded

	// Run measures one way once, All all of them at once: one of the two is set.
	Run func(ctx context.Context, o Options, way string, run int, note func(Measured)) error
	All func(ctx context.Context, o Options, run int, note func(way string, m Measured)) error
	// Compare adds figures that need those of several ways. It may be nil.
	Compare func(*CaseResult)
}

// Options are the options of a run.
type Options struct {
	Program string // the longhaul binary
	Cases   []string
	Through []string      // the ways
	Repeat  int           // runs of each case
	Quick   bool          // fewer flows, less time: a first look
	Flows   int           // of the suite's crowds; 0: the usual
	Time    time.Duration // of the cases that take one
	Seed    uint64

	Report progress.Reporter
}

// Pick returns the quick choice in a quick run.
func Pick[T any](o Options, usual, quick T) T {
	if o.Quick {
		return quick
	}
	return usual
}

// SeedOf is the seed of one run: all ways of it get the same choices.
func (o Options) SeedOf(run int) uint64 { return o.Seed + uint64(run)*1000 }

// Entry returns the suite as an experiment.
func (s Suite) Entry() experiment.Experiment {
	e := s.Experiment
	e.Cases = s.CaseNames()
	e.New = func() experiment.Run { return &suiteRun{Suite: s, Options: s.Usual} }
	return e
}

// CaseNames returns the names of all cases.
func (s Suite) CaseNames() []string {
	var names []string
	for _, e := range s.Trials {
		names = append(names, e.Name)
	}
	return names
}

// Ways returns the ways of all cases.
func (s Suite) Ways() []string {
	var all []string
	for _, e := range s.Trials {
		for _, way := range e.Ways {
			if !slices.Contains(all, way) {
				all = append(all, way)
			}
		}
	}
	return all
}

// suiteRun is a run as flags describe it.
type suiteRun struct {
	Suite
	Options
}

func (c *suiteRun) Flags(flags *pflag.FlagSet) {
	flags.BoolVar(&c.Quick, "quick", false, "fewer flows and less time: a first look, not a measurement")
	flagvalue.AddCount(flags, &c.Repeat, "repeat", "run each case this many times")
	if c.Crowds != "" {
		flagvalue.AddCount(flags, &c.Flows, "flows", "flows at the same time of "+c.Crowds+" (0: the usual)")
	}
	if c.Usual.Time > 0 {
		flagvalue.AddDuration(flags, &c.Time, "time", fmt.Sprintf("time of the cases that take one, like soak; with --quick usually %v", c.QuickTime))
	}
	flagvalue.AddCount(flags, &c.Seed, "seed", "seed of the flows and of the moments")
	flagvalue.AddNames(flags, &c.Options.Cases, "case", "run only these cases (all)")
	flagvalue.AddNames(flags, &c.Through, "through", "run only these ways (all)")
}

func (c *suiteRun) Check(flags *pflag.FlagSet) error {
	if c.Quick && c.Usual.Time > 0 && !flags.Changed("time") {
		c.Time = c.QuickTime
	}
	if c.Repeat < 1 {
		return fmt.Errorf("--repeat %d: choose 1 or more", c.Repeat)
	}
	const maxFlows = 8000 // two descriptors each, in this process and in a relay
	if c.Flows < 0 || c.Flows > maxFlows {
		return fmt.Errorf("--flows %d: choose up to %d, or 0", c.Flows, maxFlows)
	}
	if len(c.Options.Cases) == 0 {
		c.Options.Cases = c.CaseNames()
	}
	if len(c.Through) == 0 {
		c.Through = c.Ways()
	}
	for _, way := range c.Through {
		if !slices.Contains(c.Ways(), way) {
			return remedy.New(fmt.Errorf("unknown way %q", way), "choose from "+strings.Join(c.Ways(), ", "))
		}
	}
	if err := experiment.CheckCases(c.Options.Cases, c.CaseNames()); err != nil {
		return err
	}
	for _, e := range c.Trials {
		if slices.Contains(c.Options.Cases, e.Name) && slices.ContainsFunc(e.Ways, func(way string) bool { return slices.Contains(c.Through, way) }) {
			return nil
		}
	}
	return errors.New("no case has one of these ways")
}

// Algorithms are those of the chosen cases.
func (c *suiteRun) Algorithms() (all experiment.Algorithms) {
	for _, e := range c.Trials {
		if slices.Contains(c.Options.Cases, e.Name) {
			all.Names = append(all.Names, e.Algorithms...)
		}
	}
	return all
}

func (c *suiteRun) Run(ctx context.Context, env experiment.Environment) (experiment.Result, error) {
	c.Program, c.Report = env.Program, env.Report
	return c.Suite.Run(ctx, c.Options)
}

// Run runs the chosen cases. The process must be inside a sandbox. The runs of a case go
// through its ways in turn, so that a slow minute of the machine meets all of them.
func (s Suite) Run(ctx context.Context, o Options) (Result, error) {
	result := NewResult(s.Name, o)
	// In the sandbox's own /run, which disappears with the sandbox.
	if err := sandbox.PrivateRun(); err != nil {
		return result, err
	}
	for _, e := range s.Trials {
		if !slices.Contains(o.Cases, e.Name) {
			continue
		}
		c, err := s.measure(ctx, e, o)
		if err != nil {
			return result, err
		}
		result.Cases = append(result.Cases, c)
	}
	return result, nil
}

// measure runs a case. A way that fails is an error of the case's result, and ends the
// runs of that way alone.
func (s Suite) measure(ctx context.Context, e Trial, o Options) (CaseResult, error) {
	c := CaseResult{Name: e.Name, About: e.About}
	add := func(way string, m Measured) {
		if s.Bounded != nil && !s.Bounded(way) {
			m.Bound = nil
		}
		c.Add(way, m)
	}
	ways := slices.DeleteFunc(slices.Clone(e.Ways), func(way string) bool {
		if !slices.Contains(o.Through, way) {
			return true
		}
		reason := ""
		if s.Missing != nil {
			reason = s.Missing(way)
		}
		if reason == "" {
			return false
		}
		o.Report.Notef("%s through %s: not run: %s", e.Name, way, reason)
		c.Skipped = append(c.Skipped, Skipped{Way: way, Reason: reason})
		return true
	})
	if e.All != nil {
		o.Through, ways = ways, []string{"all"}
	}
	for run := 1; run <= o.Repeat; run++ {
		for _, way := range ways {
			if c.failed(way) {
				continue
			}
			o.Report.Linef("%s through %s, %d of %d", e.Name, way, run, o.Repeat)
			var err error
			if e.All != nil {
				err = e.All(ctx, o, run, add)
			} else {
				err = e.Run(ctx, o, way, run, func(m Measured) { add(way, m) })
			}
			if ctx.Err() != nil {
				return c, ctx.Err()
			}
			if err != nil {
				c.Errors = append(c.Errors, Failure{Way: way, Error: err.Error()})
				o.Report.Notef("%s through %s: %v", e.Name, way, err)
			}
		}
	}
	if e.Compare != nil {
		e.Compare(&c)
	}
	c.Finish()
	return c, nil
}

// Result is the outcome of a run.
type Result struct {
	Experiment string       `json:"experiment"`
	Kernel     string       `json:"kernel"`
	Quick      bool         `json:"quick"`
	Repeat     int          `json:"repeat"`
	Seed       uint64       `json:"seed"`
	Cases      []CaseResult `json:"cases"`
}

// NewResult begins the result of a run.
func NewResult(experiment string, o Options) Result {
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

// AtMost is an upper bound.
func AtMost(v float64) *Bound { return &Bound{AtMost: &v} }

// AtLeast is a lower bound.
func AtLeast(v float64) *Bound { return &Bound{AtLeast: &v} }

func (b Bound) holds(v float64) bool {
	return !math.IsNaN(v) && (b.AtMost == nil || v <= *b.AtMost) && (b.AtLeast == nil || v >= *b.AtLeast)
}

// Measured is one figure of one run.
type Measured struct {
	Name, Unit string
	Value      float64
	Bound      *Bound // nil: none
	Exact      bool   // the worst run counts, not the median: nothing may be lost in any
	Example    string
}

// Add adds a figure of a run to those of the runs before.
func (c *CaseResult) Add(way string, m Measured) {
	for _, f := range c.Figures {
		if f.Way == way && f.Name == m.Name {
			f.take(m)
			return
		}
	}
	f := &Figure{Way: way, Name: m.Name, Unit: m.Unit, Bound: m.Bound}
	f.take(m)
	c.Figures = append(c.Figures, f)
}

func (f *Figure) take(m Measured) {
	f.Runs = append(f.Runs, m.Value)
	if f.First == "" {
		f.First = m.Example
	}
	if f.Bound == nil {
		return
	}
	held := f.Bound.holds(m.Value) && (f.OK == nil || *f.OK)
	if !m.Exact {
		held = f.Bound.holds(stats.Median(f.Runs, Itself))
	}
	f.OK = &held
}

// Itself is the figure of a number.
func Itself(v float64) float64 { return v }

// Finish computes the medians.
func (c *CaseResult) Finish() {
	for _, f := range c.Figures {
		f.Median = stats.Median(f.Runs, Itself)
		f.Min, f.Max = stats.Spread(f.Runs, Itself)
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

// Of returns the values of a figure, one for each run.
func (c *CaseResult) Of(way, name string) []float64 {
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
