package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/remedy"
	"longhaul/lab/experiment"
)

// Experiments returns those of paired relays.
func Experiments() []experiment.Experiment {
	return []experiment.Experiment{pairsEntry(), stripesEntry()}
}

func pairsEntry() experiment.Experiment {
	s := pairsSuite()
	return experiment.Experiment{
		Name:    s.name,
		Summary: "paired relays in outages, upgrades and deaths, and what they cost",
		Source:  "no report: every flow is compared at both ends",
		Cases:   s.cases(),
		Short:   "Paired relays in outages, upgrades and deaths, and what they cost",
		Long: `pairs makes a pair of relays at the two sites and measures each of its
promises, beside unpaired relays, direct TCP and other programs:

  outage    the WAN is cut for 20 s under many flows, at random moments
  nat       a NAT forgets the connections of silent flows, then all
  upgrade   both relays are upgraded in turn, under load and in outages
  upgrade-load  the same under 2000 flows and a full WAN
  death     the far relay is killed and started again
  soak      all of that and more at random moments
  answer    64 KiB on a new flow at 300 ms
  start     the first second of a bulk flow at 300 ms
  parked    descriptors and memory of silent flows
  storm     thousands of clients at once, with little CPU for each relay
  compress  goodput of text and of random bytes, with compress: auto and off
  cost      CPU time over a cable, and with cost-wan over a WAN of 1 Gb/s

In outage, upgrade, death and soak both ends of each flow compare
every byte. --through chooses the ways from site to site: pair,
plain (unpaired), direct, and for cost pair-no-resume (resume: off),
pair-clear (encrypt: off), pair-clear-no-resume (both), haproxy, stunnel and
wireguard-go (Debian's packages).

Exit codes: 0 every bound was kept, 1 one was not.`,
		Example: `  go run ./bench/pairs --quick
  go run ./bench/pairs --case cost --repeat 5 --json > cost.json
  go run ./bench/pairs --case outage --flows 5000 --through pair
  go run ./bench/pairs --case soak --time 30m
  go run ./bench/pairs --case upgrade,upgrade-load --json > upgrades.json`,
		New: func() experiment.Run {
			return &command{suite: s, Options: Options{Repeat: 1, Seed: 1, Time: soakUsual}}
		},
	}
}

// command is a run as flags describe it.
type command struct {
	suite
	Options
}

func (c *command) soaks() bool { return slices.Contains(c.cases(), "soak") }

func (c *command) Flags(flags *pflag.FlagSet) {
	flags.BoolVar(&c.Quick, "quick", false, "fewer flows and less time: a first look, not a measurement")
	flagvalue.AddCount(flags, &c.Repeat, "repeat", "run each case this many times")
	flagvalue.AddCount(flags, &c.Options.Flows, "flows", "flows at the same time of "+c.crowds+" (0: the usual)")
	if c.soaks() {
		flagvalue.AddDuration(flags, &c.Options.Time, "time", "how long soak lasts; with --quick usually 1m")
	}
	flagvalue.AddCount(flags, &c.Seed, "seed", "seed of the flows and of the moments")
	flagvalue.AddNames(flags, &c.Options.Cases, "case", "run only these cases (all)")
	flagvalue.AddNames(flags, &c.Through, "through", "run only these ways (all)")
}

func (c *command) Check(flags *pflag.FlagSet) error {
	if c.Quick && c.soaks() && !flags.Changed("time") {
		c.Options.Time = soakQuick
	}
	if c.Repeat < 1 {
		return fmt.Errorf("--repeat %d: choose 1 or more", c.Repeat)
	}
	const maxFlows = 8000 // two descriptors each, in this process and in a relay
	if c.Options.Flows < 0 || c.Options.Flows > maxFlows {
		return fmt.Errorf("--flows %d: choose up to %d, or 0", c.Options.Flows, maxFlows)
	}
	if len(c.Options.Cases) == 0 {
		c.Options.Cases = c.cases()
	}
	if len(c.Through) == 0 {
		c.Through = c.ways()
	}
	for _, way := range c.Through {
		if !slices.Contains(c.ways(), way) {
			return remedy.New(fmt.Errorf("unknown way %q", way), "choose from "+strings.Join(c.ways(), ", "))
		}
	}
	if err := experiment.CheckCases(c.Options.Cases, c.cases()); err != nil {
		return err
	}
	for _, e := range c.trials {
		if slices.Contains(c.Options.Cases, e.name) && slices.ContainsFunc(e.ways, func(way string) bool { return slices.Contains(c.Through, way) }) {
			return nil
		}
	}
	return errors.New("no case has one of these ways")
}

func (c *command) Run(ctx context.Context, env experiment.Environment) (experiment.Result, error) {
	c.Program, c.Report = env.Program, env.Report
	return c.run(ctx, c.Options)
}
