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

	"github.com/spf13/cobra"

	"longhaul/internal/lab/ends"
)

// endsExperiment holds what both ends of a connection see against direct TCP.
func endsExperiment() experiment {
	return experiment{
		name:    "transparent-ends",
		summary: "random socket calls at both ends, through relays and without: what differs",
		source:  "no report: direct TCP is what the relays are held against",
		cases:   []string{"relays", "through"},
		command: newLabRunEnds,
	}
}

func newLabRunEnds(env *env) *cobra.Command {
	o := ends.Options{Seed: 1, Scripts: 10_000, Relays: []int{1, 2}}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "transparent-ends",
		Short: "Random socket calls at both ends, through relays and without: what differs",
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
` + ends.ProgramNames() + `.
longhaul is this program as a process of its own.

Exit code 1: longhaul broke the rule.`,
		Example: `  longhaul lab run transparent-ends --scripts 100000
  longhaul lab run transparent-ends --seed 7 --script 1234 --relays 2
  longhaul lab run transparent-ends --relays 0 --through haproxy,nginx --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(o.Through) > 0 && !cmd.Flags().Changed("relays") {
				o.Relays = nil
			}
			if err := o.Check(); err != nil {
				return usageError(err)
			}
			return labRun(env, &asJSON, func(ctx context.Context, program string) (ends.Result, error) {
				o.Binary = program
				progress := newProgress(env.stderr)
				defer progress.clear()
				o.Progress = progress.scripts
				return ends.Run(ctx, o)
			}, writeEnds, judgeEnds)(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.Uint64Var(&o.Scripts, "scripts", o.Scripts, "how many scripts")
	flags.Uint64Var(&o.Seed, "seed", o.Seed, "of the scripts; with their number it makes each of them")
	flags.Uint64Var(&o.Only, "script", 0, "run only the script of this number")
	flags.IntSliceVar(&o.Relays, "relays", o.Relays, "through how many relays, one way for each number; 0 runs them only directly")
	flags.StringSliceVar(&o.Through, "through", nil, "through these programs, in place of relays")
	flags.IntVar(&o.Lanes, "parallel", 0, "scripts at the same time (0: the usual)")
	flags.BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

func judgeEnds(r ends.Result) error {
	if r.Violations() > 0 {
		return errors.New("direct TCP does not allow what a script saw: see its shortest form")
	}
	return nil
}

func writeEnds(w io.Writer, r ends.Result) error {
	for _, way := range r.Ways {
		fmt.Fprintf(w, "%s: %d scripts, %d outcomes that direct TCP does not allow\n", way.Name, way.Scripts, way.Violations)
		for _, kind := range slices.SortedFunc(maps.Keys(way.Kinds), func(a, b ends.Kind) int { return way.Kinds[b] - way.Kinds[a] }) {
			fmt.Fprintf(w, "  %6d  %s\n", way.Kinds[kind], kind)
		}
		for _, f := range way.Findings {
			fmt.Fprintf(w, "\n  %s, script %d: %s\n  the shortest that breaks the rule so (%d of %d runs): %s\n\n    %s\n\n  to repeat it: %s\n\n",
				f.Kind, f.Script, f.Text, f.Broke, f.Of, f.Says, strings.ReplaceAll(strings.TrimSpace(f.Shortest), "\n", "\n    "), f.Command)
		}
	}
	_, err := fmt.Fprintf(w, "seed %d, %.0f s, %.0f scripts an hour\n", r.Seed, r.Seconds, r.ScriptsPerHour)
	return err
}
