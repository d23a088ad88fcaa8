//go:build linux

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/words/display"
	"longhaul/lab/experiment"
	"longhaul/lab/transfers"
)

func newDemo(env *env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show a slow path made fast, on this machine, in half a minute",
		Long: `demo builds two sites on this machine, with a WAN of 63 ms and 1 Gb/s between
them, and sends data from one to the other with the kernel's own TCP: first
directly, between end hosts with NewReno and windows of 256 KiB, then through
a pair of longhaul relays. It leaves nothing behind. It needs no privilege where
user namespaces are allowed.`,
		Example: "  longhaul demo",
		Args:    noArgs,
		RunE: inSandbox(env, func(cmd *cobra.Command, _ []string) error {
			if !asJSON {
				fmt.Fprintf(env.stdout, "%s\n", demoDrawing)
			}
			start := time.Now()
			result, err := measureInLab(cmd.Context(), env, func(ctx context.Context, o experiment.Environment) (transfers.Result, error) {
				return transfers.Mitre().Run(ctx, transfers.Options{
					Program: o.Program, Report: o.Report, Cases: []string{"direct", "relay"}, MaxTime: demoMaxTime,
				})
			})
			if err != nil {
				return err
			}
			if asJSON {
				return display.WriteJSON(env.stdout, result)
			}
			direct, relay := result.Cases[0], result.Cases[1]
			if err := result.WriteText(env.stdout); err != nil {
				return err
			}
			window := result.Conditions["window_over_rtt_bps"].(float64)
			fmt.Fprintf(env.stdout, `
The direct path carries at most one window per round trip: 256 KiB / 63 ms is
%s. The relays lift that limit: each leg has its own window, and the
window of the long leg fits the path. %s times as fast, after %.0f s in all.

Next: longhaul lab run mitre   every case of the published experiment
      longhaul lab up          the two sites, for programs of your own
      longhaul relay --help    the relay itself
`, display.Rate(window), significant(relay.GoodputBps/direct.GoodputBps), time.Since(start).Seconds())
			return nil
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

// significant prints a ratio: at least 10 as a whole number, below 10 with a decimal.
func significant(ratio float64) string {
	if ratio < 10 {
		return fmt.Sprintf("%.1f", ratio)
	}
	return fmt.Sprintf("%.0f", ratio)
}

// demoMaxTime ends each of the demo's two transfers on a slow machine. They usually
// take 8 s and 19 s.
const demoMaxTime = 30 * time.Second

const demoDrawing = `
   host-a ──LAN── relay-a ══WAN 63 ms, 1 Gb/s══ relay-b ──LAN── host-b
   NewReno        longhaul                      longhaul        NewReno
   256 KiB                                                      256 KiB
`
