//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/display"
	"longhaul/internal/lab"
	"longhaul/internal/lab/link"
	"longhaul/internal/lab/linkcheck"
	"longhaul/internal/remedy"
)

func newLabCheck(env *env) *cobra.Command {
	conditions := lab.MitreConditions()
	conditions.Loss, conditions.LossBA = link.Loss{Probability: 0.01}, link.Loss{Probability: 0.01}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Hold the emulated WAN against what was asked of it",
		Long: `check builds the two sites, sends packets of the hosts' kernels through the
WAN, and prints each property as asked and as measured: idle RTT (within 0.5 ms,
and what this machine's timers are late), rate (1 %), loss (3 sigma over 100 000
packets), the same packets lost under the same seed, and TCP at the full rate.
It takes a minute, and fails if a property does not hold. Run it on an otherwise
idle machine.`,
		Example: `  longhaul lab check
  longhaul lab check --rtt 300ms --rate 100Mbit --loss 10% --loss-burst 5`,
		Args: noArgs,
		RunE: inSandbox(env, func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			rows, err := labCheck(ctx, conditions, newProgress(env.stderr))
			if err != nil {
				if ctx.Err() != nil {
					return errors.New("interrupted: nothing of the lab is left")
				}
				return err
			}
			if asJSON {
				err = display.WriteJSON(env.stdout, checkRows(rows))
			} else {
				err = writeChecks(env.stdout, rows)
			}
			if err != nil {
				return err
			}
			for _, row := range rows {
				if !row.OK {
					return remedy.New(errors.New("the link is not what was asked"), "run it again on an otherwise idle machine")
				}
			}
			return nil
		}),
	}
	conditionFlags(cmd.Flags(), &conditions)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the rows as JSON")
	return cmd
}

// tcpDuring is how long TCP's goodput is measured in the steady state.
const tcpDuring = 10 * time.Second

func labCheck(ctx context.Context, conditions lab.Conditions, progress *progress) ([]linkcheck.Row, error) {
	built, err := lab.Build(lab.TwoSites(conditions))
	if err != nil {
		return nil, err
	}
	defer built.Close()
	path := linkcheck.Path{
		Link: built.Link(lab.WAN),
		A:    linkcheck.Host{Addr: lab.WANA, Run: built.Host("relay-a").Do},
		B:    linkcheck.Host{Addr: lab.WANB, Run: built.Host("relay-b").Do},
	}
	progress.note("checking RTT, rate and loss, about 30 s")
	rows, err := path.All(ctx)
	if err != nil {
		return nil, err
	}
	if conditions.RateBps > 0 {
		progress.note("filling the link with TCP, about 15 s")
		row, err := path.TCP(ctx, link.AToB, tcpDuring)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func writeChecks(w io.Writer, rows []linkcheck.Row) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "\twhat\tasked\tgot\n")
	for _, row := range rows {
		verdict := "ok"
		if !row.OK {
			verdict = "NO"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", verdict, row.What, row.Asked, row.Got)
	}
	return table.Flush()
}

type checkRow struct {
	What  string `json:"what"`
	Asked string `json:"asked"`
	Got   string `json:"got"`
	OK    bool   `json:"ok"`
}

func checkRows(rows []linkcheck.Row) []checkRow {
	named := make([]checkRow, len(rows))
	for i, row := range rows {
		named[i] = checkRow(row)
	}
	return named
}
