//go:build linux

package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/monitor/history/report"
	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
)

func newHistoryShow(env *env) *cobra.Command {
	var s historySelection
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show one flow: both legs, and its goodput over time",
		Long: `show prints one record whole: addresses, times, the figures of both legs, the
causes that limited the flow, the reason of its end, and its goodput over time.
longhaul history lists the IDs.`,
		Example: `  longhaul history show 4711
  longhaul history show 4711 --json`,
		Args: exactArgs(1, "the ID of a flow, which longhaul history lists"),
	}
	s.addFile(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		id, err := strconv.ParseInt(args[0], 10, 64)
		if err != nil || id < 1 {
			return usageError(remedy.New(fmt.Errorf("invalid ID %q", args[0]),
				"longhaul history lists flows with their IDs"))
		}
		return s.run(env, func(ctx context.Context, r *history.Reader) error {
			record, err := r.Get(ctx, id)
			if err != nil {
				return err
			}
			if asJSON {
				return display.WriteJSON(env.stdout, record)
			}
			report.WriteRecord(env.stdout, &record)
			return nil
		})
	}
	return cmd
}
