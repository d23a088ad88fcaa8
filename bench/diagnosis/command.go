package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"longhaul/internal/words/flagvalue"
	"longhaul/lab/experiment"
	"longhaul/lab/tcpcc"
)

// Experiment has the doctor diagnose connections whose limit the lab knows.
func Experiment() experiment.Experiment {
	return experiment.Experiment{
		Name:    "diagnosis",
		Summary: "verdicts of longhaul doctor on known connections, and the gain of its remedies",
		Source:  "no report: the cause is the hindrance whose removal brings more",
		Cases:   Kinds(),
		Short:   "Check longhaul doctor's verdicts and remedies on known connections",
		Long: `diagnosis draws paths, hosts and programs, adds a hindrance to most of
them, and runs longhaul doctor on each connection. Then it removes each
hindrance and the doctor's cause: the removal that brings a fifth more shows the
cause.

The first table shows doctor's right and wrong verdicts for each cause. The
second shows how often a pair of real relays brought what doctor predicted of
it: for a connection of its own, an existing one with and without a test, and a
capture (with tcpdump).`,
		Example: `  go run ./bench/diagnosis --sample 36
  go run ./bench/diagnosis --seed 8 --json > diagnosis.json
  go run ./bench/diagnosis --sample 20 --case policer`,
		New: func() experiment.Run { return &command{sample: 432, seed: 7, Options: Options{Parallel: 4}} },
	}
}

// command is a run as flags describe it.
type command struct {
	Options
	sample int
	seed   uint64
	kinds  []string
}

func (c *command) Flags(flags *pflag.FlagSet) {
	flagvalue.AddCount(flags, &c.sample, "sample", "scenarios to draw")
	flagvalue.AddCount(flags, &c.seed, "seed", "seed of the draw")
	flagvalue.AddCount(flags, &c.Parallel, "parallel", "scenarios at once")
	flagvalue.AddNames(flags, &c.kinds, "case", "draw only these cases (all)")
	flags.StringVar(&c.Keep, "out", "", "keep observations and captures in `DIR`")
}

func (c *command) Check(*pflag.FlagSet) error {
	switch {
	case c.sample < 1:
		return fmt.Errorf("--sample %d: choose 1 or more", c.sample)
	case c.Parallel < 1 || c.Parallel > 64:
		return fmt.Errorf("--parallel %d: choose 1 to 64", c.Parallel)
	}
	if err := experiment.CheckCases(c.kinds, Kinds()); err != nil {
		return err
	}
	return experiment.CheckFile(c.Keep)
}

// Algorithms returns haul, the remedy of losses; if it cannot be loaded, bbr replaces
// it.
func (c *command) Algorithms() experiment.Algorithms {
	return experiment.Algorithms{Names: []string{"haul"}}
}

func (c *command) Run(ctx context.Context, env experiment.Environment) (experiment.Result, error) {
	c.Program, c.Report, c.Tolerant = env.Program, env.Report, "bbr"
	if tcpcc.IsAvailable("haul") {
		c.Tolerant = "haul"
	}
	return Run(ctx, Draw(c.sample, c.seed, c.kinds), c.Options)
}
