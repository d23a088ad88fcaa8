//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/lab/failover"
)

// failoverExperiment has one of two far relays die.
func failoverExperiment() experiment {
	return experiment{
		name:    "failover",
		summary: "one of two far relays dies under a stream of new connections",
		source:  "no report: every connection is counted",
		cases:   failover.Cases(),
		command: newLabRunFailover,
	}
}

func newLabRunFailover(env *env) *cobra.Command {
	o := failover.Options{Before: 3 * time.Second}
	var (
		cases  []string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "failover",
		Short: "One of two far relays dies under a stream of new connections",
		Long: `failover sends a stream of short connections, and some that stand, through a
relay at site A and two at site B. Then one of these dies: its process is
killed, or (case host) its WAN is cut, so that nothing answers any more. The
table says how many connections failed, and how long the slowest took, before
the death, in the second after it, and later.`,
		Example: `  longhaul lab run failover
  longhaul lab run failover --case host --per-second 500 --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := knownCases(cases, failover.Cases()); err != nil {
				return err
			}
			if o.PerSecond < 1 || o.PerSecond > 10_000 || o.Standing < 2 || o.After < time.Second {
				return usageError(fmt.Errorf("choose --per-second from 1 to 10000, --standing of 2 or more, --after of 1s or more"))
			}
			return labRun(env, &asJSON, func(ctx context.Context, program string) ([]failover.Result, error) {
				o.Program = program
				return runFailover(ctx, env, o, cases)
			}, writeFailover, nil)(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&o.PerSecond, "per-second", 200, "new connections a second")
	flags.IntVar(&o.Standing, "standing", 40, "connections that stand, on both together")
	flags.DurationVar(&o.After, "after", 10*time.Second, "how long it goes on after the death")
	flags.StringArrayVar(&cases, "case", failover.Cases(), "how it dies (may be given again)")
	flags.BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

func runFailover(ctx context.Context, env *env, o failover.Options, cases []string) ([]failover.Result, error) {
	var results []failover.Result
	for _, name := range cases {
		o.Say = func(line string) { fmt.Fprintf(env.stderr, "%s, %s\n", name, line) }
		r, err := failover.Run(ctx, name, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		results = append(results, r)
	}
	return results, nil
}

func writeFailover(w io.Writer, results []failover.Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "\tnew\tfailed\t\t\tslowest, ms\t\t\tstanding on the other\t\n")
	fmt.Fprint(t, "dies\tflows\tbefore\t1st s\tlater\tbefore\t1st s\tlater\tdisturbed\t\n")
	for _, r := range results {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%.0f\t%.0f\t%.0f\t%d of %d\t\n", r.Case, r.Flows, r.FailedBefore, r.FailedFirstSecond, r.FailedLater,
			1e3*r.SlowestBeforeSeconds, 1e3*r.SlowestFirstSecondSeconds, 1e3*r.SlowestLaterSeconds, r.Disturbed, r.Standing)
	}
	return t.Flush()
}
