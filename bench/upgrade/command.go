package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"longhaul/internal/words/display"
	"longhaul/internal/words/flagvalue"
	"longhaul/lab/experiment"
)

// Experiment replaces the relays of a pair under load.
func Experiment() experiment.Experiment {
	return experiment.Experiment{
		Name:    "upgrade",
		Summary: "the relays of a pair are upgraded in turn under thousands of flows",
		Source:  "no report: every flow is counted",
		Cases:   []string{"pair"},
		Short:   "The relays of a pair are upgraded in turn under thousands of flows",
		Long: `upgrade sends many flows through a pair of relays, while others fill a WAN of
1 Gb/s. It runs longhaul upgrade on the two relays in turn. It counts flows that
were refused, reset, or received wrong bytes. It compares the goodput after each
upgrade with the goodput before the first: the longest time below 90 %, the
deepest 0.1 s, and the deepest second. The line "none" shows the same figures
for the time before the first upgrade.`,
		Example: `  go run ./bench/upgrade
  go run ./bench/upgrade --flows 500 --upgrades 2 --json`,
		New: func() experiment.Run {
			return &command{Options{Flows: 2000, PerSecond: 200, Bulk: 4, Upgrades: 6, Every: 5 * time.Second}}
		},
	}
}

// command is a run as flags describe it.
type command struct{ Options }

func (c *command) Flags(flags *pflag.FlagSet) {
	flagvalue.AddCount(flags, &c.Options.Flows, "flows", "flows at the same time")
	flagvalue.AddCount(flags, &c.PerSecond, "new-flows-per-second", "new flows a second")
	flagvalue.AddCount(flags, &c.Bulk, "bulk", "flows that fill the WAN")
	flagvalue.AddCount(flags, &c.Upgrades, "upgrades", "upgrades of both relays in total")
	flagvalue.AddDuration(flags, &c.Every, "interval", "time from one upgrade to the next")
}

func (c *command) Check(*pflag.FlagSet) error {
	o := c.Options
	if o.PerSecond < 1 || o.PerSecond > 10_000 || o.Flows < o.PerSecond || o.Flows > 100_000 || o.Bulk < 1 || o.Upgrades < 1 || o.Every < time.Second {
		return errors.New("choose --new-flows-per-second from 1 to 10000, --flows from that to 100000, --bulk and --upgrades of at least 1, --interval of at least 1s")
	}
	return nil
}

func (c *command) Run(ctx context.Context, env experiment.Environment) (experiment.Result, error) {
	c.Program, c.Report = env.Program, env.Report
	return Run(ctx, c.Options)
}

// WriteText prints the outcome of the flows, and a line for each upgrade.
func (r Result) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "%d flows, at most %d open, %d refused, %d reset, %d with wrong bytes\n", r.Flows, r.OpenMost, r.Refused, r.Reset, r.Wrong)
	if r.FirstError != "" {
		fmt.Fprintf(w, "first error: %s\n", r.FirstError)
	}
	for _, s := range []struct {
		when string
		Spread
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
	row := func(name, took, left string, d *Dip) {
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
