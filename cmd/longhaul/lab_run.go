//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
	"longhaul/lab/experiment"
	"longhaul/lab/progress"
	"longhaul/lab/published"
	"longhaul/lab/sandbox"
)

func newLabList(env *env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the experiments and their cases",
		Long: `list prints each experiment of lab run: its cases, and the report that it
repeats. docs/lab.md describes the experiments.`,
		Example: `  longhaul lab list
  longhaul lab list --json | jq '.[] | {name, cases}'`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			type entry struct {
				Name    string   `json:"name"`
				Summary string   `json:"summary"`
				Source  string   `json:"source"`
				Cases   []string `json:"cases"`
			}
			var entries []entry
			for _, e := range published.All() {
				entries = append(entries, entry{e.Name, e.Summary, e.Source, e.Cases})
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
	cmd := &cobra.Command{
		Use:   "run NAME",
		Short: "Run a published experiment",
		Long: `run repeats a published experiment in the lab. Every run of every case builds
its own sites. The table shows medians over the repeats, and their spread.`,
		Example: `  longhaul lab run mitre
  longhaul lab run mitre --repeat 5 --json > mitre.json
  longhaul lab run lossy-lfn --case cubic,haul`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return exactArgs(1, "the name of one experiment")(cmd, args)
			}
			hint := "choose from " + strings.Join(names, ", ")
			if meant := remedy.Nearest(args[0], names); meant != "" {
				hint = "did you mean " + cmd.CommandPath() + " " + meant + "?"
			}
			return usageError(remedy.New(fmt.Errorf("unknown experiment %q", args[0]), hint))
		},
	}
	for _, e := range published.All() {
		names = append(names, e.Name)
		cmd.AddCommand(newLabRunExperiment(env, e))
	}
	return cmd
}

// newLabRunExperiment returns the command that runs one experiment.
func newLabRunExperiment(env *env, e experiment.Experiment) *cobra.Command {
	run := e.New()
	var asJSON bool
	cmd := &cobra.Command{
		Use: e.Name, Short: e.Short, Long: e.Long, Example: e.Example, Args: noArgs,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			// Refuse a mistake before a sandbox is built.
			if err := run.Check(cmd.Flags()); errors.As(err, new(experiment.Lack)) {
				return err
			} else if err != nil {
				return usageError(err)
			}
			if user, ok := run.(experiment.AlgorithmUser); ok {
				unload, err := experiment.LoadAlgorithms(cmd.Context(), user.Algorithms(), progress.NewPrinter(env.stderr).Report)
				if err != nil {
					return ccError(err)
				}
				defer func() { err = errors.Join(err, unload()) }()
			}
			return inLab(env, &asJSON, run.Run)(cmd, args)
		},
	}
	run.Flags(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

// inLab returns the RunE of a measurement in a sandbox. It prints the result as text
// or JSON, and then judges it.
func inLab(env *env, asJSON *bool, run func(context.Context, experiment.Environment) (experiment.Result, error)) func(*cobra.Command, []string) error {
	return inSandbox(env, func(cmd *cobra.Command, _ []string) error {
		result, err := measureInLab(cmd.Context(), env, run)
		if err != nil {
			return err
		}
		if *asJSON {
			err = display.WriteJSON(env.stdout, result)
		} else {
			err = result.WriteText(env.stdout)
		}
		judge, ok := result.(experiment.Judge)
		if err != nil || !ok {
			return err
		}
		if err = judge.Judge(); errors.Is(err, experiment.ErrShown) {
			return &exitError{status: exitFailure}
		}
		return err
	})
}

// measureInLab runs a measurement with progress on standard error, until a signal
// interrupts it.
func measureInLab[R any](ctx context.Context, env *env, run func(context.Context, experiment.Environment) (R, error)) (result R, err error) {
	ctx, stop := untilSignal(ctx)
	defer stop()
	program, err := ownProgram()
	if err != nil {
		return result, err
	}
	printer := progress.NewPrinter(env.stderr)
	result, err = run(ctx, experiment.Environment{Program: program, Report: printer.Report})
	printer.Clear()
	if ctx.Err() != nil {
		err = errors.New("interrupted: the lab is removed")
	}
	return result, err
}

// inSandbox has a command run inside a sandbox: it runs the program again there.
func inSandbox(env *env, run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return inPreparedSandbox(env, sandbox.PrivateRun, run)
}

// inPreparedSandbox runs a command inside a sandbox, after prepare.
func inPreparedSandbox(env *env, prepare func() error, run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if !sandbox.Inside() {
			status, err := sandbox.Run(env.args, env.stdin, display.Raw(env.stdout), display.Raw(env.stderr))
			if err != nil {
				return err
			}
			if status != exitOK {
				return &exitError{status: status}
			}
			return nil
		}
		if err := prepare(); err != nil {
			return err
		}
		return run(cmd, args)
	}
}

// ownProgram is the path of this binary.
func ownProgram() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the program's own file: %w", err)
	}
	return path, nil
}
