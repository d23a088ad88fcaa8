package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"longhaul/internal/words/flagvalue"
	"longhaul/lab/experiment"
)

// Experiment ends one of two far relays.
func Experiment() experiment.Experiment {
	return experiment.Experiment{
		Name:    "failover",
		Summary: "one of two far relays dies under a stream of new connections",
		Source:  "no report: every connection is counted",
		Cases:   Cases(),
		Short:   "One of two far relays dies under a stream of new connections",
		Long: `failover sends a stream of short connections, and some standing ones, through a
relay at site A and two at site B. Then one of these dies: its process is
killed, or (case host) its WAN is cut and nothing answers. The table shows the
failed connections and the slowest one, before the death, in the second after
it, and later.`,
		Example: `  go run ./bench/failover
  go run ./bench/failover --case host --new-flows-per-second 500 --json`,
		New: func() experiment.Run {
			o := Options{Before: 3 * time.Second, PerSecond: 200, Standing: 40, After: 10 * time.Second}
			return &command{Options: o, cases: Cases()}
		},
	}
}

// command is a run as flags describe it.
type command struct {
	Options
	cases []string
}

func (c *command) Flags(flags *pflag.FlagSet) {
	flagvalue.AddCount(flags, &c.PerSecond, "new-flows-per-second", "new connections a second")
	flagvalue.AddCount(flags, &c.Standing, "standing", "standing connections, on both relays in total")
	flagvalue.AddDuration(flags, &c.After, "time", "how long the stream goes on after the death")
	flagvalue.AddNames(flags, &c.cases, "case", "kinds of death")
}

func (c *command) Check(*pflag.FlagSet) error {
	if err := experiment.CheckCases(c.cases, Cases()); err != nil {
		return err
	}
	if c.PerSecond < 1 || c.PerSecond > 10_000 || c.Standing < 2 || c.After < time.Second {
		return errors.New("choose --new-flows-per-second from 1 to 10000, --standing of at least 2, --time of at least 1s")
	}
	return nil
}

func (c *command) Run(ctx context.Context, env experiment.Environment) (experiment.Result, error) {
	c.Program, c.Report = env.Program, env.Report
	var results Results
	for _, name := range c.cases {
		r, err := Run(ctx, name, c.Options)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		results = append(results, r)
	}
	return results, nil
}

// Results are the results of several deaths.
type Results []Result

// WriteText prints a line for each death.
func (all Results) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "\tnew\tfailed\t\t\tslowest, ms\t\t\tstanding on the other\t\n")
	fmt.Fprint(t, "dies\tflows\tbefore\t1st s\tlater\tbefore\t1st s\tlater\tdisturbed\t\n")
	for _, r := range all {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%.0f\t%.0f\t%.0f\t%d of %d\t\n", r.Case, r.Flows, r.FailedBefore, r.FailedFirstSecond, r.FailedLater,
			1e3*r.SlowestBeforeSeconds, 1e3*r.SlowestFirstSecondSeconds, 1e3*r.SlowestLaterSeconds, r.Disturbed, r.Standing)
	}
	return t.Flush()
}
