//go:build linux

package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/monitor/history/report"
	"longhaul/internal/words/display"
	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
)

func newHistoryMatrix(env *env) *cobra.Command {
	var (
		s             historySelection
		site          string
		limit         = 40
		asJSON, asCSV bool
	)
	cmd := &cobra.Command{
		Use:   "matrix",
		Short: "Show who moved how much to whom: a line for each two sites",
		Long: `matrix shows the flows between each two sites: bytes both ways, goodput and
duration of the transfers, share of data retransmitted, most bytes first. Each
flow counts once, where its client is. With --db it has all sites; without, a
line for each peer of this relay.

UP is from FROM to TO. 99 % of the transfers have at most the figure of that
column. A TO of - has flows that no pair carried. Of a database quantiles are
right within 1.1 %.`,
		Example: `  longhaul history matrix --db postgres://reader@db.example.net/longhaul
  longhaul history matrix --since 2026-11-01 --until 2026-11-07 --csv`,
		Args: noArgs,
	}
	s.addSource(cmd)
	flags := cmd.Flags()
	flags.StringVar(&s.since, "since", "", "flows that ended at `TIME` or later: 24h (ago), 2026-11-20, 14:30 (seven whole days, UTC, and today)")
	flags.StringVar(&s.until, "until", "", "flows that ended before `TIME`; a date is the end of the day")
	flags.StringVar(&site, "site", "", "lines from or to the site `NAME`")
	flagvalue.AddCount(flags, &limit, "limit", "maximum number of lines of the table (0: no limit)")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	flags.BoolVar(&asCSV, "csv", false, "print a table for other programs")
	cmd.RunE = func(*cobra.Command, []string) error {
		if asJSON && asCSV {
			return usageError(remedy.New(errors.New("choose one of --json and --csv"), "leave one of them out"))
		}
		p, err := units.ParseSpan(s.since, s.until, time.Now())
		if err != nil {
			return usageError(err)
		}
		if s.since == "" { // whole days are quick
			day := time.Now()
			if !p.To.IsZero() {
				day = p.To
			}
			p.From = day.UTC().Truncate(24*time.Hour).AddDate(0, 0, -7)
		}
		return s.run(env, func(ctx context.Context, r history.Source) error {
			most := limit // quantiles of thousands of lines take their time
			if asJSON || asCSV || site != "" {
				most = 0
			}
			m, err := r.Matrix(ctx, history.Period{Since: p.From, Until: p.To}, most)
			if err != nil {
				return err
			}
			if site != "" {
				m.Lines = slices.DeleteFunc(m.Lines, func(l history.MatrixLine) bool { return l.From != site && l.To != site })
			}
			switch {
			case asJSON:
				return display.WriteJSON(env.stdout, m)
			case asCSV:
				return report.WriteMatrixCSV(env.stdout, m)
			}
			report.WriteMatrix(env.stdout, m, limit)
			return nil
		})
	}
	return cmd
}
