//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/lab/soak"
)

// soakExperiment runs relays for a long time under everything at once.
func soakExperiment() experiment {
	return experiment{
		name:    "soak",
		summary: "relays under everything at once: deaths, outages, loss, floods, garbage",
		source:  "no report: every flow is held against what both of its ends did",
		cases:   soak.Parts(),
		command: newLabRunSoak,
	}
}

func newLabRunSoak(env *env) *cobra.Command {
	o := soak.Options{Slow: time.Minute}
	var (
		minutes float64
		asJSON  bool
	)
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Relays under everything at once: deaths, outages, loss, floods, garbage",
		Long: `soak runs flows of random sizes and endings through a relay at site A and two
at site B, while things happen, most of them every ten seconds: relays and the
target are killed and start again, a WAN is cut or loses packets, half-open
connections flood the relay, garbage comes in at every port, relays are
reloaded and upgraded, a hop or a far relay's tunnel is drained. Some readers
are slow.

Every byte is compared at both ends, and every flow is held against the law:
who saw a clean end has all that the other sent before its clean end. What the
relay at site A holds must not grow, and its log must say why it cut a flow.

Other parts: slow-reader (memory stays bounded behind slow readers) and churn
(short connections during a thousand reloads). Exit code 1: a rule was broken.`,
		Example: `  longhaul lab run soak --minutes 30
  longhaul lab run soak --minutes 2 --seed 7 --json > soak.json
  longhaul lab run soak --case slow-reader --case churn`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Time = time.Duration(minutes * float64(time.Minute))
			if err := o.Check(); err != nil {
				return usageError(err)
			}
			if err := knownCases(o.Parts, soak.Parts()); err != nil {
				return err
			}
			return labRun(env, &asJSON, func(ctx context.Context, program string) (soak.Result, error) {
				o.Program = program
				o.Say = func(line string) { fmt.Fprintln(env.stderr, line) }
				return soak.Run(ctx, o)
			}, writeSoak, judgeSoak)(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.Float64Var(&minutes, "minutes", 10, "how long flows are begun")
	flags.IntVar(&o.Flows, "flows", 48, "flows at the same time")
	flags.Uint64Var(&o.Seed, "seed", 0, "of the flows and of what happens (0: draw one)")
	flags.StringArrayVar(&o.Parts, "case", []string{soak.PartMixed}, "what to run (may be given again)")
	flags.DurationVar(&o.Slow, "slow", o.Slow, "of slow-reader: for how long it is slow")
	flags.Int64Var(&o.Connections, "connections", 20_000, "of churn")
	flags.IntVar(&o.Reloads, "reloads", 1000, "of churn, of all relays together")
	flags.BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

func writeSoak(w io.Writer, r soak.Result) error {
	r.Write(w)
	return nil
}

func judgeSoak(r soak.Result) error {
	if r.Violations() > 0 {
		return errors.New("the relays broke a rule: see the violations")
	}
	return nil
}
