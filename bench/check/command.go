package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"longhaul/internal/words/flagvalue"
	"longhaul/lab/experiment"
)

// Experiment breaks a chain of relays in known ways.
func Experiment() experiment.Experiment {
	return experiment.Experiment{
		Name:    "check",
		Summary: "longhaul check on a chain of relays with known faults",
		Source:  "no report: each fault is known",
		Cases:   caseNames(),
		Short:   "Run longhaul check on a chain of relays with known faults",
		Long: `check builds a chain of three relays and a target, each on its own host: 20 and
30 ms apart, at 500 and 200 Mb/s. Each case has another fault, or none: a relay
or the target is down, a link is cut or loses packets, a program between two
relays alters bytes. The table shows whether longhaul check names the fault and
its place, and the duration.

Exit codes: 0 each case is right and took at most 5 s, 1 otherwise.`,
		Example: `  go run ./bench/check
  go run ./bench/check --case altered-bc-data --json`,
		New: func() experiment.Run { return &command{Options: Options{Seed: 1}} },
	}
}

func caseNames() (names []string) {
	for _, c := range Cases() {
		names = append(names, c.Name)
	}
	return names
}

// command is a run as flags describe it.
type command struct {
	Options
	names []string
}

func (c *command) Flags(flags *pflag.FlagSet) {
	flagvalue.AddNames(flags, &c.names, "case", "run only these cases (all)")
	flagvalue.AddCount(flags, &c.Seed, "seed", "seed of losses and alterations")
}

func (c *command) Check(*pflag.FlagSet) error { return experiment.CheckCases(c.names, caseNames()) }

func (c *command) Run(ctx context.Context, env experiment.Environment) (experiment.Result, error) {
	c.Program, c.Report = env.Program, env.Report
	cases := Cases()
	if len(c.names) > 0 {
		cases = slices.DeleteFunc(cases, func(one Case) bool { return !slices.Contains(c.names, one.Name) })
	}
	return Run(ctx, cases, c.Options)
}

// Judge returns an error unless each case is right.
func (o Outcome) Judge() error {
	if o.Right < o.Run {
		return experiment.ErrShown
	}
	return nil
}

// WriteText prints a line for each case.
func (o Outcome) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "\tcase\tseconds\tsaid\n")
	for _, r := range o.Cases {
		right := "ok"
		if !r.Right {
			right = "NO"
		}
		said := r.Got.String()
		switch {
		case r.Skipped != "":
			right, said = "-", "not run: "+r.Skipped
		case r.Error != "":
			said = r.Error
		}
		fmt.Fprintf(t, "%s\t%s\t%.2f\t%s\n", right, r.Case, r.Seconds, said)
		if !r.Right && r.Skipped == "" && r.Error == "" {
			fmt.Fprintf(t, "\t\t\twanted %s\n", r.Want)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d of %d right, the slowest in %.2f s\n", o.Right, o.Run, o.SlowestSeconds)
	return err
}
