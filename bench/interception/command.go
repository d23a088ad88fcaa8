//go:build linux

package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"longhaul/internal/words/flagvalue"
	"longhaul/lab/experiment"
)

// Experiment measures what interception costs.
func Experiment() experiment.Experiment {
	return experiment.Experiment{
		Name:    "interception",
		Summary: "CPU time of relays that intercept and of packets that pass them, and what clients wait",
		Source:  "no report: a relay that clients address, and a router without one",
		Cases:   Cases(),
		Short:   "What relays that intercept cost",
		Long: `interception compares CPU times, all of the kernel's work included:

  relay    a bulk flow through a relay on a router that intercepts it, beside a
           relay that the client addresses: of both ends and of the relay
  forward  packets that a router forwards past the relay, beside a router
           without one: of the sending thread, less that of packets which the
           router drops at once. ended is a router whose relay has stopped
  connect  how long clients wait for their connect, directly and through relays:
           not CPU time, but time

The ways take turns of some 50 ms, each between hosts of its own. control is
another of the reference's kind: it shows what differs by chance. The machine's
figures are those of all its CPUs: keep it idle otherwise.

Exit codes: 0 every bound was kept, 1 one was not.`,
		Example: `  go run ./bench/interception --repeat 5
  go run ./bench/interception --case forward-udp4-64 --json`,
		New: func() experiment.Run { return &command{Options{Repeat: 5}} },
	}
}

// command is a run as flags describe it.
type command struct{ Options }

func (c *command) Flags(flags *pflag.FlagSet) {
	flags.BoolVar(&c.Quick, "quick", false, "fewer turns: a first look, not a measurement")
	flagvalue.AddCount(flags, &c.Repeat, "repeat", "run each case this many times")
	flagvalue.AddNames(flags, &c.Options.Cases, "case", "run only these cases (all)")
}

func (c *command) Check(*pflag.FlagSet) error {
	if c.Repeat < 1 {
		return fmt.Errorf("--repeat %d: choose 1 or more", c.Repeat)
	}
	if len(c.Options.Cases) == 0 {
		c.Options.Cases = Cases()
	}
	return experiment.CheckCases(c.Options.Cases, Cases())
}

func (c *command) Run(ctx context.Context, env experiment.Environment) (experiment.Result, error) {
	c.Program, c.Report = env.Program, env.Report
	return Run(ctx, c.Options)
}
