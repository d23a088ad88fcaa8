//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"longhaul/internal/display"
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
		newLabTraffic(env),
	)
	return cmd
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
	captured := slices.ContainsFunc(r.Cases, func(c lab.CaseResult) bool { return c.Segments != nil })
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	// What is of no case's interest has no column: there are 80 characters.
	columns := []resultColumn{
		{"case", true, func(c lab.CaseResult) string { return shortCase(c.Name) }},
		{"goodput", true, func(c lab.CaseResult) string { return fmt.Sprintf("%.1f", c.GoodputBps/1e6) }},
		{"spread", !captured || r.Cases[0].Runs > 1, func(c lab.CaseResult) string {
			if c.Runs == 1 || c.GoodputBps == 0 {
				return "-"
			}
			return fmt.Sprintf("±%.1f%%", 50*(c.GoodputMaxBps-c.GoodputMinBps)/c.GoodputBps)
		}},
		{"of limit", true, func(c lab.CaseResult) string { return fmt.Sprintf("%.1f%%", 100*c.GoodputBps/c.LimitBps) }},
		{"× direct", !captured, func(c lab.CaseResult) string {
			if direct == 0 {
				return "-"
			}
			return fmt.Sprintf("%.1f", c.GoodputBps/direct)
		}},
		{"retrans", true, func(c lab.CaseResult) string { return fmt.Sprintf("%.2f%%", 100*c.RetransmitRatio) }},
		{"CPU s/GB", !captured, func(c lab.CaseResult) string {
			if c.RelayCPUPerGB == nil {
				return "-"
			}
			return fmt.Sprintf("%.2f", *c.RelayCPUPerGB)
		}},
		{"MSS A", captured, ofSegments(func(s lab.Segments) int { return s.MSSOfA })},
		{"MSS B", captured, ofSegments(func(s lab.Segments) int { return s.MSSOfB })},
		{"sent", captured, ofSegments(func(s lab.Segments) int { return s.Sent })},
		{"report", true, func(c lab.CaseResult) string {
			switch {
			case c.ReferenceBps == nil:
				return "-"
			case c.ReferenceBps[1] != c.ReferenceBps[0]:
				return fmt.Sprintf("%.0f-%.0f", c.ReferenceBps[0]/1e6, c.ReferenceBps[1]/1e6)
			}
			return fmt.Sprintf("%.0f", c.ReferenceBps[0]/1e6)
		}},
	}
	columns = slices.DeleteFunc(columns, func(c resultColumn) bool { return !c.shown })
	for _, c := range columns {
		fmt.Fprint(table, c.head, "\t")
	}
	fmt.Fprintln(table)
	for _, result := range r.Cases {
		for _, c := range columns {
			fmt.Fprint(table, c.cell(result), "\t")
		}
		fmt.Fprintln(table)
	}
	table.Flush()
	least, most := r.Cases[0].LimitBps, r.Cases[0].LimitBps
	for _, c := range r.Cases {
		least, most = min(least, c.LimitBps), max(most, c.LimitBps)
	}
	fmt.Fprintf(w, "goodput and the report's figures in Mb/s; the limit is %s", display.Rate(least))
	if most > least {
		fmt.Fprintf(w, " to %s", display.Rate(most))
	}
	if n := r.Cases[0].Runs; n > 1 {
		fmt.Fprintf(w, "; medians of %d runs", n)
	}
	fmt.Fprintln(w)
	if captured {
		fmt.Fprintln(w, "captured at A: the MSS that each end announced, and the bytes of most segments")
	}
	for _, c := range r.Cases {
		if c.Hung > 0 {
			fmt.Fprintf(w, "%s hung, and was broken off\n", c.Name)
		}
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(w, "%s was not run: %s\n", s.Name, s.Reason)
	}
}

// resultColumn is one column of the table of results.
type resultColumn struct {
	head  string
	shown bool
	cell  func(lab.CaseResult) string
}

// ofSegments is a cell of what was captured.
func ofSegments(figure func(lab.Segments) int) func(lab.CaseResult) string {
	return func(c lab.CaseResult) string {
		if c.Segments == nil || figure(*c.Segments) == 0 {
			return "-"
		}
		return strconv.Itoa(figure(*c.Segments))
	}
}

// shortCase keeps the table within 80 columns.
func shortCase(name string) string { return strings.Replace(name, "kernel-defaults", "kernel", 1) }
