package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/pflag"

	"longhaul/internal/words/flagvalue"
	"longhaul/lab/experiment"
)

// Experiment runs relays for a long time under everything at once.
func Experiment() experiment.Experiment {
	return experiment.Experiment{
		Name:    "soak",
		Summary: "relays under everything at once: deaths, outages, loss, floods, garbage",
		Source:  "no report: every flow is compared with the actions of both its ends",
		Cases:   Parts(),
		Short:   "Relays under everything at once: deaths, outages, loss, floods, garbage",
		Long: `soak runs flows of random sizes and endings through a relay at site A and two
at site B, while things happen, most of them every ten seconds: relays and the
target are killed and start again, a WAN is cut or loses packets, half-open
connections flood the relay, garbage comes in at every port, relays are
reloaded and upgraded, a hop or a far relay's tunnel is drained. Some readers
are slow.

Every byte is compared at both ends, and every flow is held against the law:
who saw a clean end has all that the other sent before its clean end. What the
relay at site A holds must not grow, and its log must say why it cut a flow.

Other parts: slow-reader (memory stays bounded behind slow readers) and churn
(short connections during a thousand reloads).

Exit codes: 0 every rule was kept, 1 a rule was broken.`,
		Example: `  go run ./bench/soak --time 30m
  go run ./bench/soak --time 2m --seed 7 --json > soak.json
  go run ./bench/soak --case slow-reader,churn`,
		New: func() experiment.Run {
			return &command{Options{Time: 10 * time.Minute, Flows: 48, Parts: []string{PartMixed}, Connections: 20_000, Reloads: 1000}}
		},
	}
}

// command is a run as flags describe it.
type command struct{ Options }

// slowTime is the duration of slow-reader without --time.
const slowTime = time.Minute

func (c *command) Flags(flags *pflag.FlagSet) {
	flagvalue.AddDuration(flags, &c.Time, "time", "how long flows begin; slow-reader: how long readers are slow, usually 1m")
	flagvalue.AddCount(flags, &c.Options.Flows, "flows", "flows at the same time")
	flagvalue.AddCount(flags, &c.Seed, "seed", "seed of the flows and of the events (0: draw one)")
	flagvalue.AddNames(flags, &c.Parts, "case", "parts to run")
	flagvalue.AddCount(flags, &c.Connections, "connections", "connections of churn")
	flagvalue.AddCount(flags, &c.Reloads, "reloads", "reloads of churn, of all relays together")
}

func (c *command) Check(flags *pflag.FlagSet) error {
	c.Slow = slowTime
	if flags.Changed("time") {
		c.Slow = c.Time
	}
	if err := c.Options.Check(); err != nil {
		return err
	}
	return experiment.CheckCases(c.Parts, Parts())
}

func (c *command) Run(ctx context.Context, env experiment.Environment) (experiment.Result, error) {
	c.Program, c.Report = env.Program, env.Report
	return Run(ctx, c.Options)
}

// Judge says whether a rule was broken.
func (r Result) Judge() error {
	if r.Violations() > 0 {
		return errors.New("the relays broke a rule: see the violations")
	}
	return nil
}
