//go:build linux

package main

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/carry/relay/names"
	"longhaul/internal/run/config"
	"longhaul/internal/watch/fleet"
	"longhaul/internal/watch/web"
	"longhaul/internal/words/display"
	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
)

func newFleet(env *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "fleet",
		Short:   "Ask many relays at once",
		Long:    `fleet asks the relays of an inventory, all at the same time. It changes nothing.`,
		Example: `  longhaul fleet status relays.yaml`,
		Args:    cobra.ArbitraryArgs,
		RunE:    needCommand,
	}
	cmd.AddCommand(newFleetStatus(env))
	return cmd
}

// fleetStatus has the flags of fleet status.
type fleetStatus struct {
	srv, dns      string
	tokenFile, ca string
	timeout       time.Duration
	json          bool
}

func newFleetStatus(env *env) *cobra.Command {
	f := fleetStatus{timeout: 1500 * time.Millisecond}
	cmd := &cobra.Command{
		Use:   "status (INVENTORY | --srv SERVICE)",
		Short: "Show all relays in one table: state, tunnels, pairs, goodput, alerts",

		DisableFlagsInUseLine: true,

		Long: `status asks the dashboard of every relay in the file INVENTORY, or of every
target of a service's SRV records, at most 64 at a time, and prints a row for
each. Below the table each problem has a sentence, the worst first.

  STATE       ok, degraded (a tunnel or pair is not usable, or there is a
              warning), draining, down (no connection), slow (no answer in
              time), refused (token, certificate, or no dashboard)
  TUNNELS     usable for new flows, of all
  PAIRS       sessions with paired relays that are up, of all
  UP, DOWN    goodput to targets and to clients, bits per second
  LAG, LOST   age of the oldest record that a sink of the history lacks, and
              records that one will never get

Flags hold for relays that the inventory gives no value of their own. With --srv
all targets must be below the service's domain.

Exit codes: 0 every relay is ok; 1 one is not, or none was found; 2 wrong
command line or inventory.`,
		Example: `  longhaul fleet status relays.yaml
  longhaul fleet status relays.yaml --json | jq '.problems[]'
  longhaul fleet status --srv _longhaul._tcp.example.net --token-file token`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.srv != "" && len(args) > 0:
				return usageError(remedy.New(errors.New("choose an inventory, or --srv"), "leave one of them out"))
			case f.srv != "":
				return nil
			case f.dns != "":
				return usageError(remedy.New(errors.New("--dns is for --srv"), "add --srv, or leave --dns out"))
			}
			return exactArgs(1, "an INVENTORY, or --srv")(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.srv, "srv", "", "ask the targets of this `SERVICE`, such as _longhaul._tcp.example.net")
	flags.StringVar(&f.dns, "dns", "", "ask the DNS server at this `ADDRESS` (the system's)")
	flags.StringVar(&f.tokenFile, "token-file", "", "`FILE` with the token of the dashboards")
	flags.StringVar(&f.ca, "ca", "", "`FILE` with the authorities of their certificates (the system's)")
	flagvalue.AddDuration(flags, &f.timeout, "timeout", "longest wait for a relay's answer")
	flags.BoolVar(&f.json, "json", false, "print everything as JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var given []config.Flag
		for _, flag := range []config.Flag{
			{Name: "token-file", Key: "token_file", Values: []string{f.tokenFile}},
			{Name: "ca", Key: "ca", Values: []string{f.ca}},
			{Name: "timeout", Key: "timeout", Values: []string{units.FormatDuration(f.timeout)}},
		} {
			if cmd.Flags().Changed(flag.Name) {
				flag.Name = "--" + flag.Name
				given = append(given, flag)
			}
		}
		relays, resolver, err := f.relays(cmd.Context(), args, given)
		if err != nil {
			return err
		}
		return f.print(env, fleet.Ask(cmd.Context(), relays, fleet.Options{Resolver: resolver}))
	}
	return cmd
}

// relays are those of the inventory, or of the service.
func (f *fleetStatus) relays(ctx context.Context, args []string, flags []config.Flag) (relays []fleet.Relay, resolver *net.Resolver, err error) {
	path := ""
	if len(args) > 0 {
		path = args[0]
	}
	inventory, err := config.LoadFleet(path, config.FleetChecks{
		Token: func(path string) error { _, err := web.ReadToken(path); return err },
		CA:    func(path string) error { _, err := fleet.ReadCA(path); return err },
	}, flags...)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range inventory.Relays {
		relays = append(relays, fleet.Relay(r))
	}
	if f.srv == "" {
		return relays, nil, nil
	}
	if err := names.CheckService(f.srv); err != nil {
		return nil, nil, usageError(err)
	}
	if f.dns != "" {
		if resolver, err = fleet.ResolverAt(f.dns); err != nil {
			return nil, nil, usageError(err)
		}
	}
	relays, err = fleet.Discover(ctx, resolver, f.srv)
	for i := range relays {
		usual := fleet.Relay(inventory.Usual)
		usual.Name, usual.URL = relays[i].Name, relays[i].URL
		relays[i] = usual
	}
	return relays, resolver, err
}

func (f *fleetStatus) print(env *env, r *fleet.Report) error {
	var err error
	if f.json {
		err = display.WriteJSON(env.stdout, r)
	} else {
		err = r.WriteText(env.stdout)
	}
	if err == nil && !r.Well {
		err = &exitError{status: exitFailure}
	}
	return err
}
