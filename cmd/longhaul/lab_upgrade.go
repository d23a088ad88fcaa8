//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/display"
	"longhaul/internal/lab/upgrade"
)

// upgradeExperiment replaces the relays of a pair under load.
func upgradeExperiment() experiment {
	return experiment{
		name:    "upgrade",
		summary: "the relays of a pair are upgraded in turn under thousands of flows",
		source:  "no report: every flow is counted",
		cases:   []string{"pair"},
		command: newLabRunUpgrade,
	}
}

func newLabRunUpgrade(env *env) *cobra.Command {
	o := upgrade.Options{}
	asJSON := false
	cmd := &cobra.Command{
		Use:   "upgrade",
		Short: "The relays of a pair are upgraded in turn under thousands of flows",
		Long: `upgrade has many flows come, talk and go through a pair of relays, while some
others fill a WAN of 1 Gb/s, and runs longhaul upgrade on one relay and the
other in turn. It counts the flows that were refused, reset, or brought other
bytes than were sent, and compares the goodput after each upgrade with that
before the first: how long it was below nine tenths without a break, how deep
in the deepest 0.1 s, and in the deepest second. The line "none" is what the
time before the first upgrade has of this by itself.`,
		Example: `  longhaul lab run upgrade
  longhaul lab run upgrade --flows 500 --per-second 50 --upgrades 2 --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.PerSecond < 1 || o.PerSecond > 10_000 || o.Flows < o.PerSecond || o.Flows > 100_000 || o.Bulk < 1 || o.Upgrades < 1 || o.Every < time.Second {
				return usageError(fmt.Errorf("choose --per-second from 1 to 10000, --flows from that to 100000, --bulk and --upgrades of 1 or more, --every of 1s or more"))
			}
			return labRun(env, &asJSON, func(ctx context.Context, program string) (upgrade.Result, error) {
				o.Program = program
				o.Say = func(line string) { fmt.Fprintln(env.stderr, line) }
				return upgrade.Run(ctx, o)
			}, writeUpgrade, nil)(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&o.Flows, "flows", 2000, "flows that are open at the same time")
	flags.IntVar(&o.PerSecond, "per-second", 200, "new flows a second")
	flags.IntVar(&o.Bulk, "bulk", 4, "flows that fill the WAN")
	flags.IntVar(&o.Upgrades, "upgrades", 6, "how many, of both relays together")
	flags.DurationVar(&o.Every, "every", 5*time.Second, "from one upgrade to the next")
	flags.BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

func writeUpgrade(w io.Writer, r upgrade.Result) error {
	fmt.Fprintf(w, "%d flows, at most %d open, %d refused, %d reset, %d with wrong bytes\n", r.Flows, r.OpenMost, r.Refused, r.Reset, r.Wrong)
	if r.FirstError != "" {
		fmt.Fprintf(w, "first error: %s\n", r.FirstError)
	}
	for _, s := range []struct {
		when string
		upgrade.Spread
	}{{"within a second of an upgrade", r.FirstEchoNear}, {"else", r.FirstEchoElse}} {
		fmt.Fprintf(w, "first echo of a flow %s: median %.0f ms, p99 %.0f ms, at most %.0f ms\n", s.when, 1e3*s.MedianSeconds, 1e3*s.P99Seconds, 1e3*s.MaxSeconds)
	}
	goodput := "-"
	if r.GoodputBps != nil {
		goodput = display.Rate(*r.GoodputBps)
	}
	fmt.Fprintf(w, "%d bulk flows, %s of %s at %.0f ms\n\n", r.BulkFlows, goodput, display.Rate(float64(r.RateBps)), 1e3*r.RTTSeconds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "\ttook\tflows\tbelow 90 %\tdeepest\tdeepest\t\n")
	fmt.Fprint(t, "upgrade\tms\tleft\tfor, s\t0.1 s\tsecond\t\n")
	row := func(name, took, left string, d *upgrade.Dip) {
		if d == nil {
			fmt.Fprintf(t, "%s\t%s\t%s\t-\t-\t-\t\n", name, took, left)
			return
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%.1f\t%.0f %%\t%.0f %%\t\n", name, took, left, d.LongestSeconds, 100*d.DepthShare, 100*d.SecondShare)
	}
	row("none", "-", "-", r.Quiet)
	for _, u := range r.Upgrades {
		row(u.Relay, fmt.Sprintf("%.0f", 1e3*u.Seconds), fmt.Sprint(u.FlowsLeft), u.Dip)
	}
	return t.Flush()
}
