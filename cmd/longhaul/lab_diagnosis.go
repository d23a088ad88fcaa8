//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"longhaul/internal/cc"
	"longhaul/internal/lab/diagnosis"
)

// diagnosisExperiment has the doctor look at connections of which the lab knows
// what limits them.
func diagnosisExperiment() experiment {
	return experiment{
		name:    "diagnosis",
		summary: "what longhaul doctor says of connections, and what its remedies bring",
		source:  "no report: the truth is what brings more once it is removed",
		cases:   diagnosis.Kinds(),
		command: newLabRunDiagnosis,
	}
}

func newLabRunDiagnosis(env *env) *cobra.Command {
	var (
		sample, parallel int
		seed             uint64
		kinds            []string
		keep             string
		asJSON           bool
	)
	cmd := &cobra.Command{
		Use:   "diagnosis",
		Short: "What longhaul doctor says of connections, and what its remedies bring",
		Long: `diagnosis draws paths, hosts and programs, puts something in the way of most of
them, and has longhaul doctor look at each connection. Then it takes away what
is in the way, and what doctor named: what brings a fifth more is the cause.

The table has how often doctor was right, and what it took each cause for.`,
		Example: `  longhaul lab run diagnosis --sample 36
  longhaul lab run diagnosis --seed 8 --json > diagnosis.json
  longhaul lab run diagnosis --sample 20 --case policer`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case sample < 1:
				return usageError(fmt.Errorf("--sample %d: choose 1 or more", sample))
			case parallel < 1 || parallel > 64:
				return usageError(fmt.Errorf("--parallel %d: choose 1 to 64", parallel))
			}
			if err := knownCases(kinds, diagnosis.Kinds()); err != nil {
				return err
			}
			if err := reachable(keep); err != nil {
				return usageError(err)
			}
			if keep != "" {
				if err := os.MkdirAll(keep, 0o755); err != nil {
					return err
				}
			}
			// The remedy of losses is haul; where it cannot be loaded, it is bbr.
			return withCC(cmd.Context(), env, []string{"haul"}, false, func() error {
				return labRun(env, &asJSON, func(ctx context.Context, program string) (diagnosis.Outcome, error) {
					progress := newProgress(env.stderr)
					defer progress.clear()
					tolerant := "bbr"
					if cc.IsAvailable("haul") {
						tolerant = "haul"
					}
					return diagnosis.Run(ctx, diagnosis.Draw(sample, seed, kinds), diagnosis.Options{
						Program: program, Parallel: parallel, Keep: keep, Tolerant: tolerant,
						Progress: progress.scenario,
					})
				}, writeDiagnosis, nil)(cmd, args)
			})
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&sample, "sample", 432, "scenarios to draw")
	flags.Uint64Var(&seed, "seed", 7, "seed of what is drawn")
	flags.IntVar(&parallel, "parallel", 4, "scenarios at once")
	flags.StringArrayVar(&kinds, "case", nil, "draw only these (may be given again)")
	flags.StringVar(&keep, "keep", "", "keep what doctor saw in this directory")
	flags.BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

func writeDiagnosis(w io.Writer, o diagnosis.Outcome) error { return o.WriteTable(w) }

// newLabTraffic is the program that sends in a scenario. It is not for users.
func newLabTraffic(env *env) *cobra.Command {
	return &cobra.Command{
		Use: "traffic", Hidden: true, Args: noArgs,
		Short:   "Send what standard input says, for lab run diagnosis",
		Example: `  echo '{"to":"10.20.20.10:5001","transfer_bytes":10000}' | longhaul lab traffic`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var traffic diagnosis.Traffic
			if err := json.NewDecoder(env.stdin).Decode(&traffic); err != nil {
				return usageError(errors.New("lab traffic wants to be told on its standard input what to send"))
			}
			return traffic.Send(cmd.Context())
		},
	}
}
