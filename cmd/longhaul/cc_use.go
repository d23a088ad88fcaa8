//go:build linux

package main

import (
	"errors"

	"github.com/spf13/cobra"

	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/cc"
	"longhaul/internal/tune/destination"
	"longhaul/internal/tune/route"
	"longhaul/internal/words/ccnames"
	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
)

// destUsage is the help of --to.
const destUsage = "destinations: a prefix, address, host name or default, `DEST`"

func newCCUse(env *env) *cobra.Command {
	var (
		f        changeFlags
		to, rate string
	)
	cmd := &cobra.Command{
		Use:   "use NAME --to DEST",
		Short: "Use an algorithm towards some destinations, for every program",
		Long: `use sets an algorithm for all new connections from this host to a prefix, with a
metric of the route. Programs need no change. The metric is locked: the kernel
refuses a program that asks for another algorithm. use first loads an algorithm
of longhaul's that is not loaded yet.

use changes the prefix's own route. If there is none, it adds one with the next
hop of the route that covers the prefix now. cc undo restores it, and unloads
the algorithm if nothing else uses it.

brutal needs a --rate, which all connections to the prefix share.`,
		Example: `  longhaul cc use haul --to 203.0.113.0/24
  longhaul cc use brutal --to 2001:db8:5::/48 --rate 200Mbit
  longhaul cc use haul --to default`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if to == "" {
				return usageError(remedy.New(errors.New("missing --to"), "add --to DEST, like --to 203.0.113.0/24"))
			}
			if len(args) != 1 {
				return usageError(remedy.New(errors.New("longhaul cc use needs the name of one algorithm"),
					"see longhaul cc list"))
			}
			bps := int64(0)
			if rate != "" {
				r, err := units.ParseRate(rate)
				if err != nil {
					return usageError(remedy.New(err, "write it like 200Mbit"))
				}
				bps = int64(r)
			}
			prefixes, err := parseDestinations(cmd.Context(), "to", to)
			if err != nil {
				return err
			}
			if err := f.enter(env); err != nil {
				return err
			}
			host := destination.NewHost(env.by())
			if f.dryRun {
				host.DryRun()
			}
			all, err := host.Use(cmd.Context(), prefixes, args[0], bps)
			if err != nil {
				return useError(err)
			}
			if f.json {
				return display.WriteJSON(env.stdout, map[string]any{"uses": all, "dry_run": f.dryRun})
			}
			if ccnames.NeedsRate(args[0]) && rate == "" {
				writeNotes(env.stderr, []string{"without --rate each connection there sends 1 Mb/s, unless its program sets a rate"})
			}
			for _, used := range all {
				writeNotes(env.stderr, used.Notes)
				if err := used.WriteText(env.stdout); err != nil {
					return err
				}
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&to, "to", "", destUsage)
	flags.StringVar(&rate, "rate", "", "`RATE` of IP packets that the connections share (only brutal)")
	f.register(flags)
	return cmd
}

func useError(err error) error {
	var algorithm *destination.AlgorithmError
	switch {
	case errors.As(err, &algorithm):
		return ccError(err)
	case errors.Is(err, route.ErrExpires):
		return remedy.New(err, "use a longer prefix, such as 2000::/3 instead of default")
	case errors.Is(err, route.ErrNoRoute):
		return remedy.New(err, "add one with ip route, and try again")
	case errors.Is(err, cc.ErrNoRates):
		return remedy.New(err, "leave --rate out, or use brutal")
	}
	return err
}

func newCCUndo(env *env) *cobra.Command {
	var (
		f  undoFlags
		to string
	)
	cmd := &cobra.Command{
		Use:   "undo [--to DEST]",
		Short: "Take back what use and load --default have set",
		Long: `undo with --to takes back your own use of an algorithm there. The route gets the
algorithm of another owner's use, or the former one. Without --to it lists all
uses and the default, of all owners, and asks. Algorithms that nothing else uses
are unloaded.`,
		Example: `  longhaul cc undo --to 203.0.113.0/24
  longhaul cc undo --yes`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.undoTo(cmd, env, to, func(k ledger.Key) bool {
				return k.Kind == ledger.Default || k.Kind == ledger.Route && k.Part == string(route.CongestionControl)
			})
		},
	}
	cmd.Flags().StringVar(&to, "to", "", destUsage)
	f.register(cmd.Flags())
	return cmd
}
