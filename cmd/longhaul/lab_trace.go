//go:build linux

package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/words/flagvalue"
	"longhaul/lab/tracemodel"
)

func newLabTrace(env *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Write a trace of a link that changes, for --trace",
		Long: `trace writes the changing rate of a modelled link to standard output. The lab
replays it with --trace FILE and --trace-back FILE, as it does traces that you
recorded. docs/lab.md has the formats, and the sources and limits of the models.`,
		Example: `  longhaul lab trace lte --seed 1 --time 2m > lte.trace
  longhaul lab trace leo --seed 1 > down.csv
  longhaul lab up --rtt 60ms --trace lte.trace`,
		Args: cobra.ArbitraryArgs,
		RunE: needCommand,
	}
	cmd.AddCommand(
		newLabTraceModel(env, "lte", "A cellular link (Sprout's model), in mahimahi's format",
			`lte writes opportunities to send 1500 bytes, one time in milliseconds a line.
The rate moves between 0 and --rate at random; outages last a second in the
mean. Give the two ways different seeds.`,
			`  longhaul lab trace lte > down.trace
  longhaul lab trace lte --seed 2 --rate 5Mbit --time 5m > up.trace`,
			tracemodel.LTEPeakBps, tracemodel.WriteLTE),
		newLabTraceModel(env, "leo", "A link over low satellites with handovers, as a series",
			`leo writes a series of rate, one-way delay and loss: every 15 s a step of the
delay, another rate up to --rate, and often a short gap. Give the two ways the
same seed, and each its rate.`,
			`  longhaul lab trace leo > down.csv
  longhaul lab trace leo --rate 15Mbit > up.csv
  longhaul lab up --trace down.csv --trace-back up.csv --loss 0`,
			tracemodel.LEOPeakBps, tracemodel.WriteLEO),
	)
	return cmd
}

func newLabTraceModel(env *env, name, short, long, example string, peakBps int64,
	write func(w io.Writer, seed uint64, peakBps int64, during time.Duration) error,
) *cobra.Command {
	seed, during := uint64(1), time.Minute
	cmd := &cobra.Command{
		Use: name, Short: short, Long: long, Example: example, Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if during < tracemodel.MinTime {
				return usageError(fmt.Errorf("--time %v: choose %v or more", during, tracemodel.MinTime))
			}
			if peakBps < 100_000 {
				return usageError(fmt.Errorf("--rate %d: choose 100kbit or more", peakBps))
			}
			return write(env.stdout, seed, peakBps, during)
		},
	}
	flagvalue.AddCount(cmd.Flags(), &seed, "seed", "seed: the same one makes the same trace")
	flagvalue.AddDuration(cmd.Flags(), &during, "time", "length of the trace")
	flagvalue.AddRate(cmd.Flags(), &peakBps, "rate", "largest rate")
	return cmd
}
