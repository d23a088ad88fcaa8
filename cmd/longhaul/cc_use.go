//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"longhaul/internal/cc"
	"longhaul/internal/destination"
	"longhaul/internal/remedy"
	"longhaul/internal/route"
	"longhaul/internal/units"
)

func newCCUse(env *env) *cobra.Command {
	var (
		asJSON, undo bool
		to, rate     string
	)
	cmd := &cobra.Command{
		Use:   "use --to PREFIX NAME",
		Short: "Use an algorithm towards some destinations, for every program",
		Long: `use sets an algorithm for all new connections from this host to a prefix, with a
metric of the route. Programs need no change. The metric is locked: the kernel
refuses a program that asks for another algorithm. use first loads an algorithm
of longhaul's that is not loaded yet.

use changes the prefix's own route. If there is none, it adds one with the next
hop of the route that covers the prefix now. --undo and cc unload restore it.

brutal needs a --rate, which all connections to the prefix share.`,
		Example: `  longhaul cc use --to 203.0.113.0/24 haul
  longhaul cc use --to 2001:db8:5::/48 brutal --rate 200Mbit
  longhaul cc use --to default haul
  longhaul cc use --to 203.0.113.0/24 --undo`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if to == "" {
				return usageError(remedy.New(errors.New("missing --to"), "add --to PREFIX, like --to 203.0.113.0/24"))
			}
			prefixes, err := destination.ParsePrefixes(to)
			switch {
			case err != nil:
				return usageError(err)
			case undo && (len(args) > 1 || rate != ""):
				return usageError(remedy.New(errors.New("--undo takes --to and nothing else"),
					"see "+cmd.CommandPath()+" --help"))
			case !undo && len(args) != 1:
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
			if undo {
				return ccUndo(env, prefixes, strings.Join(args, ""), asJSON)
			}
			return ccUse(cmd.Context(), env, prefixes, args[0], bps, asJSON)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&to, "to", "", "destinations: a `PREFIX` like 203.0.113.0/24, an address, or default")
	flags.StringVar(&rate, "rate", "", "rate of IP packets that the connections share (only brutal)")
	flags.BoolVar(&undo, "undo", false, "put the route back as it was")
	flags.BoolVar(&asJSON, "json", false, "print the outcome as JSON")
	return cmd
}

func ccUse(ctx context.Context, env *env, prefixes []netip.Prefix, name string, bps int64, asJSON bool) error {
	all, err := destination.NewHost().Use(ctx, prefixes, name, bps)
	if err != nil {
		return useError(err)
	}
	if asJSON {
		return json.NewEncoder(env.stdout).Encode(map[string]any{"uses": all})
	}
	for _, used := range all {
		writeNotes(env.stderr, used.Notes)
		if err := used.WriteText(env.stdout); err != nil {
			return err
		}
	}
	return nil
}

// writeNotes writes the notes on a change.
func writeNotes(w io.Writer, notes []string) {
	for _, note := range notes {
		fmt.Fprintln(w, "longhaul: note:", note)
	}
}

func useError(err error) error {
	switch {
	case errors.Is(err, route.ErrExpires):
		return remedy.New(err, "use a longer prefix, such as 2000::/3 instead of default")
	case errors.Is(err, route.ErrNoRoute):
		return remedy.New(err, "add one with ip route, and try again")
	case errors.Is(err, cc.ErrNoRates):
		return remedy.New(err, "leave --rate out, or use brutal")
	}
	return ccError(err)
}

func ccUndo(env *env, prefixes []netip.Prefix, name string, asJSON bool) error {
	all, err := destination.NewHost().Undo(prefixes, name)
	if errors.Is(err, route.ErrNotUsed) {
		return remedy.New(err, "see longhaul cc list")
	}
	if err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(env.stdout).Encode(map[string]any{"undone": all})
	}
	if len(all) == 0 {
		return remedy.New(errors.New("no default route uses a congestion control of longhaul cc use"),
			"see longhaul cc list")
	}
	for _, u := range all {
		if err := u.WriteText(env.stdout); err != nil {
			return err
		}
	}
	return nil
}
