//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/monitor/history/report"
	"longhaul/internal/words/display"
	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
)

func newHistoryCompare(env *env) *cobra.Command {
	var (
		s                 historySelection
		before, after, at string
		length            time.Duration
		asJSON            bool
	)
	cmd := &cobra.Command{
		Use:   "compare (--at TIME | --before PERIOD --after PERIOD)",
		Short: "Compare the transfers of two periods, before and after a change",

		DisableFlagsInUseLine: true,

		Long: `compare shows the transfers of two periods side by side: duration, goodput,
retransmitted data, causes. A transfer is a flow that moved data. --min-bytes
leaves out small ones.

With --db each flow through a pair counts once, where its client is; --relay
counts the records of one relay.

A PERIOD is FROM..TO, a date for its whole day, or a time until now. FROM and TO
are dates, dates with a time, times of today, or how long ago. With --at the
periods lie before and after a time and are as long as --time, or as the time
since then.`,
		Example: `  longhaul history compare --at 2026-11-20T14:30 --tunnel to-site-b
  longhaul history compare --at 2026-11-15 --time 7d --min-bytes 10MB
  longhaul history compare --before 2026-11-01..2026-11-07 --after yesterday
  longhaul history compare --before 48h..24h --after 24h --json`,
		Args: noArgs,
	}
	s.addSource(cmd)
	flags := cmd.Flags()
	flags.StringVar(&at, "at", "", "compare the periods before and after `TIME`")
	flagvalue.AddDuration(flags, &length, "time", "length of both periods, such as 2h or 7d (the time since --at)")
	flags.StringVar(&before, "before", "", "first `PERIOD`")
	flags.StringVar(&after, "after", "", "second `PERIOD`")
	s.addSelection(flags)
	flags.StringVar(&s.minBytes, "min-bytes", "", "transfers that moved `SIZE` or more, such as 10MB")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(*cobra.Command, []string) error {
		one, other, err := comparedPeriods(at, length, before, after, time.Now())
		if err != nil {
			return usageError(err)
		}
		minBytes, err := parseMinBytes(s.minBytes)
		if err != nil {
			return err
		}
		of, err := s.selection()
		if err != nil {
			return err
		}
		periodOf := func(p units.Period) history.Period {
			return history.Period{Since: p.From, Until: p.To, MinBytes: max(minBytes, 0)}
		}
		return s.run(env, func(ctx context.Context, r history.Source) error {
			c, err := r.Compare(ctx, periodOf(one), periodOf(other), of)
			if err != nil {
				return err
			}
			if asJSON {
				return display.WriteJSON(env.stdout, c)
			}
			var courses [2]history.Chart
			for i, p := range []units.Period{one, other} {
				if courses[i], err = r.Series(ctx, periodOf(p), of); err != nil {
					return err
				}
			}
			report.WriteComparison(env.stdout, c, courses)
			if c.Before.Flows+c.After.Flows == 0 {
				extent, err := r.Extent(ctx)
				if err != nil {
					return err
				}
				fmt.Fprintln(env.stdout)
				report.WriteNone(env.stdout, extent)
			}
			return s.hintTruncated(ctx, env, r)
		})
	}
	return cmd
}

func comparedPeriods(at string, length time.Duration, before, after string, now time.Time) (one, other units.Period, err error) {
	switch {
	case at != "" && (before != "" || after != ""):
		return one, other, remedy.New(errors.New("choose --at, or --before and --after"), "leave one of them out")
	case at != "":
		return units.Around(at, length, now)
	case length != 0:
		return one, other, remedy.New(errors.New("--time belongs to --at"), "add --at, or write --before and --after as FROM..TO")
	case before == "" || after == "":
		return one, other, remedy.New(errors.New("no periods given"), "give --at TIME, or --before PERIOD and --after PERIOD")
	}
	if one, err = units.ParsePeriod(before, now); err == nil {
		other, err = units.ParsePeriod(after, now)
	}
	return one, other, err
}
