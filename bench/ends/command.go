//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"longhaul/internal/words/display"
	"longhaul/internal/words/flagvalue"
	"longhaul/lab/experiment"
)

// Experiment compares the view of both ends of a connection with direct TCP.
func Experiment() experiment.Experiment {
	return experiment.Experiment{
		Name:    "transparent-ends",
		Summary: "random socket calls at both ends, compared through relays and without",
		Source:  "no report: direct TCP is the reference",
		Cases:   []string{"relays", "through"},
		Short:   "Compare random socket calls at both ends through relays and without",
		Long: `transparent-ends makes random scripts of socket calls at both ends of a
connection: small and large writes, urgent data, MSG_MORE, shutdown, close with
bytes unread, zero linger, tiny and huge buffers, readers that stop and go on,
Fast Open, IPv4, IPv6 and mapped addresses, a target that refuses or is slow to
accept, a client that connects before the relay has its listener. Each script
runs over a direct connection, and through one relay and two.

What the ends see through relays must be what direct TCP could have shown them:
see "How a flow ends" in the documentation for the rule. For the first script of
each kind that breaks it, the shortest script that still does is printed.

With --through, scripts run through a program instead:
` + display.Fold(ProgramNames()+".", 80, 0) + `
longhaul is this program as a process of its own. intercept is a router with an
intercepting relay, between hosts that know nothing of it: the target must see
the client's address and port. intercept-source-relay does not preserve them.
With intercept-mirror, and intercept-mirror-source-relay, the client must see a
refusal exactly as over direct TCP (refuse: mirror).
pair is two paired relays with
a WAN between their hosts; the other pairs have encrypt: off, resume: off, or
both. With --outages that WAN fails at random moments: outages in both
directions or one, reset lanes and control connections, and black holes for some
of them. An outage may delay what the ends see, and change nothing. With
--upgrades the near relay, the far one or both are upgraded again and again. No
upgrade may delay or change anything. --rtt makes the WAN longer. pair-hops has
two far relays, one of which dies now and then: scripts may be reset, if the
near relay says why, and the target may see a connection without a byte.
pair-chain is two pairs behind one another, which share the relay of a hub:
--outages makes the WAN of either pair fail, or both, --upgrades upgrades any of
the three relays, and --rtt is that of each WAN.

Exit codes: 0 longhaul kept the rule, 1 it broke it.`,
		Example: `  go run ./bench/ends --scripts 100000
  go run ./bench/ends --seed 7 --script 1234 --relays 2
  go run ./bench/ends --through pair --outages --scripts 100000
  go run ./bench/ends --through pair --upgrades --rtt 20ms
  go run ./bench/ends --through pair-chain --outages --upgrades
  go run ./bench/ends --through pair-hops --rtt 20ms --scripts 30000
  go run ./bench/ends --through intercept,intercept-source-relay
  go run ./bench/ends --relays 0 --through haproxy,nginx --json`,
		New: func() experiment.Run {
			return &command{Options{Scripts: 10_000, Seed: 1, Repeat: 1, Relays: []int{1, 2}}}
		},
	}
}

// command is a run as flags describe it.
type command struct{ Options }

func (c *command) Flags(flags *pflag.FlagSet) {
	flagvalue.AddCount(flags, &c.Scripts, "scripts", "scripts to run")
	flagvalue.AddCount(flags, &c.Seed, "seed", "seed of the scripts; with its number it makes each script")
	flagvalue.AddCount(flags, &c.Only, "script", "run only the script of this number (0: all)")
	flagvalue.Add(flags, "LIST", "relays", "relays on the way, a way for each number; 0 runs scripts only directly", "1,2",
		func(s string) error {
			l := flagvalue.List[int]{Parse: flagvalue.Parse(flagvalue.Count[int])}
			err := l.Set(s)
			c.Relays = l.Values
			return err
		})
	flagvalue.AddNames(flags, &c.Through, "through", "programs on the way, in place of relays (none)")
	flags.BoolVar(&c.Outages, "outages", false, "the WANs of "+strings.Join(lastingNames(), ", ")+" fail at random moments")
	flags.BoolVar(&c.Upgrades, "upgrades", false, "the relays of a pair are upgraded at random moments")
	flagvalue.Add(flags, "DURATION", "rtt", "round-trip time of each WAN of a pair", pairRTT.String(), flagvalue.Delay(&c.RTT))
	flagvalue.AddCount(flags, &c.Repeat, "repeat", "run each script this many times")
	flagvalue.AddCount(flags, &c.Lanes, "parallel", "scripts at once (0: the usual)")
}

func (c *command) Check(flags *pflag.FlagSet) error {
	if len(c.Through) > 0 && !flags.Changed("relays") {
		c.Relays = nil
	}
	return c.Options.Check()
}

func (c *command) Run(ctx context.Context, env experiment.Environment) (experiment.Result, error) {
	c.Program, c.Report = env.Program, env.Report
	return Run(ctx, c.Options)
}

// Judge returns an error if longhaul's relays broke the rule.
func (r Result) Judge() error {
	if r.Violations() > 0 {
		return errors.New("direct TCP does not allow what a script saw: see its shortest form")
	}
	return nil
}

// WriteText prints what was found of each way.
func (r Result) WriteText(w io.Writer) error {
	for _, way := range r.Ways {
		fmt.Fprintf(w, "%s: %d scripts, %d outcomes that direct TCP does not allow\n", way.Name, way.Scripts, way.Violations)
		for _, kind := range slices.SortedFunc(maps.Keys(way.Kinds), func(a, b Kind) int { return way.Kinds[b] - way.Kinds[a] }) {
			fmt.Fprintf(w, "  %6d  %s\n", way.Kinds[kind], kind)
		}
		if way.Faults != "" {
			fmt.Fprintf(w, "  %d scripts met a fault of the WAN: %s\n", way.Met, way.Faults)
		}
		if way.Upgrades != "" {
			fmt.Fprintf(w, "  %d scripts met an upgrade: %s\n", way.Upgraded, way.Upgrades)
		}
		if way.Deaths != "" {
			fmt.Fprintf(w, "  %d scripts met the death of a relay: %s\n", way.Bereft, way.Deaths)
			fmt.Fprintf(w, "  %d were reset with a reason, %d at the target alone, %d ran again as the target had an empty connection\n",
				way.Cut, way.Late, way.Again)
		}
		for _, f := range way.Findings {
			fmt.Fprintf(w, "\n  %s, script %d: %s\n  the shortest that breaks the rule so (%d of %d runs): %s\n\n    %s\n\n  to repeat it: %s\n\n",
				f.Kind, f.Script, f.Text, f.Broke, f.Of, f.Says, strings.ReplaceAll(strings.TrimSpace(f.Shortest), "\n", "\n    "), f.Command)
		}
	}
	_, err := fmt.Fprintf(w, "seed %d, %.0f s, %.0f scripts an hour\n", r.Seed, r.Seconds, r.ScriptsPerHour)
	return err
}
