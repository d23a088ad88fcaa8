//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"longhaul/internal/display"
	"longhaul/internal/lab"
	"longhaul/internal/remedy"
)

// experiment is an entry of lab list and a command of lab run.
type experiment struct {
	name    string
	summary string // one line
	source  string // the published report
	cases   []string
	command func(*env) *cobra.Command
}

// experiments are all that the lab knows, in the order of their reports.
func experiments() []experiment {
	var all []experiment
	for _, e := range lab.Experiments() {
		listed := experiment{name: e.Name, summary: e.Summary, source: e.Source}
		for _, c := range e.Cases {
			listed.cases = append(listed.cases, c.Name)
		}
		listed.command = func(env *env) *cobra.Command { return newLabRunTransfers(env, e) }
		all = append(all, listed)
	}
	return append(all, lossyLFN(), zoneTransfer(), diagnosisExperiment(), checkExperiment(), failoverExperiment(), upgradeExperiment(), soakExperiment(), endsExperiment())
}

func newLabList(env *env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the experiments and their cases",
		Example: "  longhaul lab list",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			type entry struct {
				Name    string   `json:"name"`
				Summary string   `json:"summary"`
				Source  string   `json:"source"`
				Cases   []string `json:"cases"`
			}
			var entries []entry
			for _, e := range experiments() {
				entries = append(entries, entry{e.name, e.summary, e.source, e.cases})
			}
			if asJSON {
				return display.WriteJSON(env.stdout, entries)
			}
			for _, e := range entries {
				fmt.Fprintf(env.stdout, "%s: %s\n  cases: %s\n  after: %s\n",
					e.Name, e.Summary, strings.Join(e.Cases, ", "), e.Source)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the list as JSON")
	return cmd
}

func newLabRun(env *env) *cobra.Command {
	var names []string
	for _, e := range experiments() {
		names = append(names, e.name)
	}
	cmd := &cobra.Command{
		Use:   "run NAME",
		Short: "Run a published experiment",
		Long: `run repeats a published experiment in the lab. Every run of every case gets
sites of its own. The table gives medians over the repeats, and their spread.`,
		Example: `  longhaul lab run mitre
  longhaul lab run mitre --repeat 5 --json > mitre.json
  longhaul lab run lossy-lfn --repeat 5 --series lossy.csv`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return exactArgs(1, "the name of one experiment")(cmd, args)
			}
			return usageError(remedy.New(fmt.Errorf("there is no experiment %q", args[0]), "choose from "+strings.Join(names, ", ")))
		},
	}
	for _, e := range experiments() {
		cmd.AddCommand(e.command(env))
	}
	return cmd
}

// newLabRunTransfers runs an experiment that transfers data in each of its
// cases.
func newLabRunTransfers(env *env, experiment lab.Experiment) *cobra.Command {
	var (
		options lab.RunOptions
		asJSON  bool
	)
	cmd := &cobra.Command{
		Use:   experiment.Name,
		Short: experiment.Summary,
		Long:  fmt.Sprintf("%s\n\nThe table gives medians over the repeats, and their spread.", display.Fold("After "+experiment.Source+".", helpWidth, 0)),
		Example: fmt.Sprintf(`  longhaul lab run %[1]s
  longhaul lab run %[1]s --repeat 5 --json > %[1]s.json
  longhaul lab run %[1]s --case %[2]s --quick`, experiment.Name, experiment.Cases[0].Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			// Refused here, so that a wrong name costs no sandbox.
			if options.Repeat < 1 {
				return usageError(fmt.Errorf("--repeat %d: choose 1 or more", options.Repeat))
			}
			if err := experiment.Check(options); err != nil {
				return usageError(err)
			}
			inside := inSandbox(env, func(cmd *cobra.Command, _ []string) error {
				ctx, stop := untilSignal(cmd.Context())
				defer stop()
				result, err := runExperiment(ctx, env, experiment, options)
				if err != nil {
					return err
				}
				if asJSON {
					return display.WriteJSON(env.stdout, result)
				}
				writeResultTable(env.stdout, result)
				return nil
			})
			cases := options.Cases
			if len(cases) == 0 {
				cases = experiment.CaseNames()
			}
			if !slices.Contains(cases, "haul") {
				return inside(cmd, args)
			}
			// Where it cannot be loaded, its case says so.
			return withCC(cmd.Context(), env, []string{"haul"}, false, func() error { return inside(cmd, args) })
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&asJSON, "json", false, "print the result as JSON")
	flags.BoolVar(&options.Quick, "quick", false, "send less data: a first look, not a measurement")
	flags.IntVar(&options.Repeat, "repeat", 1, "run each case this many times")
	flags.Uint64Var(&options.Seed, "seed", 0, "seed of the random choices (0: the usual)")
	flags.StringArrayVar(&options.Cases, "case", nil, "run only this case (may be given again)")
	return cmd
}

// labRun makes the RunE of an experiment that this program's relays take part
// in. Its result is printed as a table, or as JSON; then judge, which may be nil,
// says whether it is as it should be.
func labRun[R any](env *env, asJSON *bool, run func(ctx context.Context, program string) (R, error), write func(io.Writer, R) error, judge func(R) error) func(*cobra.Command, []string) error {
	return inSandbox(env, func(cmd *cobra.Command, _ []string) error {
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		program, err := ownProgram()
		if err != nil {
			return err
		}
		result, err := run(ctx, program)
		if ctx.Err() != nil {
			return errInterrupted
		}
		if err != nil {
			return err
		}
		if *asJSON {
			err = display.WriteJSON(env.stdout, result)
		} else {
			err = write(env.stdout, result)
		}
		if err == nil && judge != nil {
			err = judge(result)
		}
		return err
	})
}

// knownCases refuses names that are not among all.
func knownCases(names, all []string) error {
	for _, name := range names {
		if !slices.Contains(all, name) {
			return usageError(remedy.New(fmt.Errorf("there is no case %q", name), "choose from "+strings.Join(all, ", ")))
		}
	}
	return nil
}

// errInterrupted is how an experiment ends that the user breaks off.
var errInterrupted = errors.New("interrupted: nothing of the lab is left")
