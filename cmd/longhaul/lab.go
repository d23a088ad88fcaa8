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
