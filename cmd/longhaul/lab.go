package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"longhaul/internal/lab"
	"longhaul/internal/lab/sandbox"
)

func newLab(env *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Two sites and a WAN on this machine, with real kernel TCP",
		Example: `  longhaul lab run mitre
  longhaul lab up --rtt 300ms --rate 100Mbit --loss 10%
  longhaul lab exec host-a -- ping -c 3 host-b`,
		Args: cobra.ArbitraryArgs,
		RunE: needCommand,
	}
	cmd.AddCommand(
		newLabUp(env),
		newLabExec(env),
		newLabSet(env),
		newLabShow(env),
		newLabList(env),
		newLabRun(env),
		newLabCheck(env),
	)
	return cmd
}

// inPreparedSandbox runs a command inside a sandbox, after prepare.
func inPreparedSandbox(env *env, prepare func() error, run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if !sandbox.Inside() {
			status, err := sandbox.Run(env.args, env.stdin, env.stdout, env.stderr)
			if unavailable := (*sandbox.ErrUnavailable)(nil); errors.As(err, &unavailable) {
				return &hintError{fmt.Errorf("cannot make namespaces: %w", unavailable.Err), unavailable.Remedy}
			}
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
			for _, e := range lab.Experiments() {
				listed := entry{Name: e.Name, Summary: e.Summary, Source: e.Source}
				for _, c := range e.Cases {
					listed.Cases = append(listed.Cases, c.Name)
				}
				entries = append(entries, listed)
			}
			if asJSON {
				return writeJSON(env.stdout, entries)
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
	var (
		options lab.RunOptions
		asJSON  bool
	)
	cmd := &cobra.Command{
		Use:   "run NAME",
		Short: "Run a published experiment",
		Long: `run repeats a published experiment in the lab. Every run of every case gets
sites of its own. The table gives medians over the repeats, and their spread.`,
		Example: `  longhaul lab run mitre
  longhaul lab run mitre --repeat 5 --json > mitre.json
  longhaul lab run mitre --case direct --case relay --quick`,
		Args: exactArgs(1, "the name of one experiment"),
		RunE: func(cmd *cobra.Command, args []string) error {
			// Refused here, so that a wrong name costs no sandbox.
			experiment, err := experimentNamed(args[0])
			if err != nil {
				return err
			}
			if options.Repeat < 1 {
				return usageError(fmt.Errorf("--repeat %d: choose 1 or more", options.Repeat))
			}
			if err := experiment.Check(options); err != nil {
				return usageError(err)
			}
			return inSandbox(env, func(cmd *cobra.Command, _ []string) error {
				ctx, stop := untilSignal(cmd.Context())
				defer stop()
				result, err := runExperiment(ctx, env, experiment, options)
				if err != nil {
					return err
				}
				if asJSON {
					return writeJSON(env.stdout, result)
				}
				writeResultTable(env.stdout, result)
				return nil
			})(cmd, args)
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

func experimentNamed(name string) (lab.Experiment, error) {
	var names []string
	for _, e := range lab.Experiments() {
		if e.Name == name {
			return e, nil
		}
		names = append(names, e.Name)
	}
	return lab.Experiment{}, usageError(&hintError{fmt.Errorf("there is no experiment %q", name), "choose from " + strings.Join(names, ", ")})
}

// runExperiment runs an experiment with progress on standard error.
func runExperiment(ctx context.Context, env *env, experiment lab.Experiment, options lab.RunOptions) (lab.Result, error) {
	program, err := ownProgram()
	if err != nil {
		return lab.Result{}, err
	}
	progress := newProgress(env.stderr)
	options.Program = program
	options.Progress = progress.show
	options.Notef = progress.note
	result, err := experiment.Run(ctx, options)
	progress.clear()
	if err != nil && ctx.Err() != nil {
		return result, errors.New("interrupted: nothing of the lab is left")
	}
	return result, err
}

// writeResultTable prints an experiment's result in 80 columns.
func writeResultTable(w io.Writer, r lab.Result) {
	direct := 0.0
	for _, c := range r.Cases {
		if c.Name == "direct" {
			direct = c.GoodputBps
		}
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "case\tgoodput\tspread\tof limit\t× direct\tretrans\tCPU s/GB\treport\t\n")
	for _, c := range r.Cases {
		spread, times, cpu, report := "-", "-", "-", "-"
		if c.Runs > 1 {
			spread = fmt.Sprintf("±%.1f%%", 50*(c.GoodputMaxBps-c.GoodputMinBps)/c.GoodputBps)
		}
		if direct > 0 {
			times = fmt.Sprintf("%.1f", c.GoodputBps/direct)
		}
		if c.RelayCPUPerGB != nil {
			cpu = fmt.Sprintf("%.2f", *c.RelayCPUPerGB)
		}
		if c.ReferenceBps != nil {
			report = fmt.Sprintf("%.0f", c.ReferenceBps[0]/1e6)
			if c.ReferenceBps[1] != c.ReferenceBps[0] {
				report += fmt.Sprintf("-%.0f", c.ReferenceBps[1]/1e6)
			}
		}
		fmt.Fprintf(table, "%s\t%.1f\t%s\t%.1f%%\t%s\t%.2f%%\t%s\t%s\t\n",
			shortCase(c.Name), c.GoodputBps/1e6, spread, 100*c.GoodputBps/c.LimitBps, times, 100*c.RetransmitRatio, cpu, report)
	}
	table.Flush()
	fmt.Fprintf(w, "goodput and the report's figures in Mb/s; the limit is %s", bitsPerSecond(r.Cases[0].LimitBps))
	if n := r.Cases[0].Runs; n > 1 {
		fmt.Fprintf(w, "; medians of %d runs", n)
	}
	fmt.Fprintln(w)
	for _, s := range r.Skipped {
		fmt.Fprintf(w, "%s was not run: %s\n", s.Name, s.Reason)
	}
}

// shortCase keeps the table within 80 columns.
func shortCase(name string) string { return strings.Replace(name, "kernel-defaults", "kernel", 1) }

// bitsPerSecond writes a rate with three digits or so.
func bitsPerSecond(bps float64) string {
	switch {
	case bps >= 1e9:
		return fmt.Sprintf("%.2f Gb/s", bps/1e9)
	case bps >= 1e6:
		return fmt.Sprintf("%.1f Mb/s", bps/1e6)
	default:
		return fmt.Sprintf("%.1f kb/s", bps/1e3)
	}
}

func writeJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}
