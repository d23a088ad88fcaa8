//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/destination"
	"longhaul/internal/tune/route"
	"longhaul/internal/words/display"
	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
)

func newRoute(env *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "route",
		Short: "TCP's settings per destination: segment size, windows, algorithm",
		Long: `route sets metrics of the route to a destination, which the kernel's TCP uses.
It changes the route in force and keeps its other attributes. It records the
previous metrics, and undo restores them.`,
		Example: `  longhaul route set --to 203.0.113.0/24 --advmss 1460 --initcwnd 40
  longhaul route list
  longhaul route undo --to 203.0.113.0/24`,
		Args: cobra.ArbitraryArgs,
		RunE: needCommand,
	}
	cmd.AddCommand(newRouteSet(env), newRouteList(env), newRouteUndo(env))
	return cmd
}

// routeFlags are the flags of set, in the order of the metrics in help and list.
var routeFlags = []struct {
	flag   string
	metric route.Metric
}{
	{"mtu", route.MTU}, {"advmss", route.AdvMSS}, {"cc", route.CongestionControl}, {"initcwnd", route.InitCwnd},
	{"initrwnd", route.InitRwnd}, {"window", route.Window}, {"quickack", route.QuickACK}, {"rto-min", route.RTOMin},
}

// routeSet holds the flags of set.
type routeSet struct {
	changeFlags
	mtu, advmss, initcwnd, initrwnd uint32
	to, cc, window, via, device     string
	quickack, lock                  bool
	rtoMin                          time.Duration
}

func newRouteSet(env *env) *cobra.Command {
	var s routeSet
	cmd := &cobra.Command{
		Use:   "set --to DEST [--advmss BYTES] [--mtu BYTES] ...",
		Short: "Set metrics of the route to a prefix",
		Long: `set changes the prefix's own route. If there is none, it adds one with the next
hop of the route that covers the prefix now, or with --via and --dev. New
connections use the metrics, existing ones mostly do not. Other metrics stay.`,
		Example: `  longhaul route set --to 203.0.113.0/24 --advmss 1460
  longhaul route set --to 203.0.113.9 --mtu 1400 --lock
  longhaul route set --to 2001:db8:5::/48 --cc haul --lock --initcwnd 40
  longhaul route set --to 198.51.100.0/24 --via 192.0.2.1 --mtu 9000`,
		Args: needTo(&s.to),
		RunE: func(cmd *cobra.Command, _ []string) error {
			prefixes, err := parseDestinations(cmd.Context(), "to", s.to)
			if err != nil {
				return err
			}
			change, err := s.change(cmd, prefixes)
			if err != nil {
				return usageError(err)
			}
			if err := s.enter(env); err != nil {
				return err
			}
			return s.run(cmd.Context(), env, prefixes, change)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&s.to, "to", "", destUsage)
	flags.Uint32Var(&s.mtu, "mtu", 0, "largest packet sent there, `BYTES`")
	flags.Uint32Var(&s.advmss, "advmss", 0, "MSS to announce; bounds segments from there, `BYTES`")
	flags.StringVar(&s.cc, "cc", "", "congestion control there, a `NAME` of cc list")
	flags.Uint32Var(&s.initcwnd, "initcwnd", 0, "first congestion window, `N` segments")
	flags.Uint32Var(&s.initrwnd, "initrwnd", 0, "first advertised receive window, `N` segments")
	flags.StringVar(&s.window, "window", "", "initial receive window, a `SIZE` like 256KiB")
	flags.BoolVar(&s.quickack, "quickack", false, "acknowledge every segment at once")
	flagvalue.AddDuration(flags, &s.rtoMin, "rto-min", "least retransmission timeout (instead of 200ms)")
	flags.BoolVar(&s.lock, "lock", false, "lock mtu (against discovery) and cc")
	flags.StringVar(&s.via, "via", "", "next hop of a new route, an `ADDRESS`")
	flags.StringVar(&s.device, "dev", "", "`DEVICE` of a new route")
	s.register(flags)
	return cmd
}

// needTo requires --to, and no argument.
func needTo(to *string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > 0 && *to == "":
			return usageError(remedy.New(fmt.Errorf("%s takes no argument, got %q", cmd.CommandPath(), args[0]),
				"write --to "+args[0]))
		case len(args) > 0:
			return noArgs(cmd, args)
		case *to == "":
			return usageError(remedy.New(errors.New("missing --to"), "add --to DEST, like --to 203.0.113.0/24"))
		}
		return nil
	}
}

// change builds the change of the flags, without the prefix.
func (s *routeSet) change(cmd *cobra.Command, prefixes []netip.Prefix) (route.Change, error) {
	c := route.Change{Device: s.device, Metrics: map[route.Metric]route.Value{}}
	if s.via != "" {
		var err error
		if c.Via, err = netip.ParseAddr(s.via); err != nil {
			return c, remedy.New(fmt.Errorf("invalid address in --via %q", s.via), "write it like 192.0.2.1")
		}
		c.Via = c.Via.Unmap()
	}
	lockable := map[route.Metric]bool{route.MTU: true, route.CongestionControl: true}
	locked := false
	for _, f := range routeFlags {
		if !cmd.Flags().Changed(f.flag) {
			continue
		}
		v := route.Value{Locked: s.lock && lockable[f.metric]}
		switch f.metric {
		case route.MTU:
			v.Number = s.mtu
		case route.AdvMSS:
			v.Number = s.advmss
		case route.CongestionControl:
			v.Name = s.cc
		case route.InitCwnd:
			v.Number = s.initcwnd
		case route.InitRwnd:
			v.Number = s.initrwnd
		case route.Window:
			size, err := units.ParseSize(s.window)
			if err != nil || size > math.MaxUint32 {
				return c, remedy.New(fmt.Errorf("invalid --window %q", s.window), "write it like 256KiB")
			}
			v.Number = uint32(size)
		case route.QuickACK:
			if s.quickack {
				v.Number = 1
			}
		case route.RTOMin:
			if s.rtoMin != s.rtoMin.Truncate(time.Millisecond) || s.rtoMin < time.Millisecond || s.rtoMin > 2*time.Minute {
				return c, remedy.New(fmt.Errorf("--rto-min %v is out of range", s.rtoMin), "use whole milliseconds, from 1ms to 2m")
			}
			v.Number, v.Locked = uint32(s.rtoMin/time.Millisecond), true // the kernel ignores an unlocked one
		}
		for _, prefix := range prefixes {
			if err := route.CheckValue(f.metric, v, prefix); err != nil {
				return c, err
			}
		}
		locked = locked || s.lock && lockable[f.metric]
		c.Metrics[f.metric] = v
	}
	switch {
	case len(c.Metrics) == 0:
		return c, remedy.New(errors.New("missing metric"),
			"add --advmss, --mtu, --cc or another; see longhaul route set --help")
	case s.lock && !locked:
		return c, remedy.New(errors.New("--lock needs --mtu or --cc"), "leave it out")
	}
	return c, nil
}

func (s *routeSet) run(ctx context.Context, env *env, prefixes []netip.Prefix, c route.Change) error {
	host := destination.NewHost(env.by())
	if s.dryRun {
		host.DryRun()
	}
	results, err := host.SetRoutes(ctx, prefixes, c)
	if err != nil {
		return routeError(err)
	}
	if s.json {
		return display.WriteJSON(env.stdout, map[string]any{"routes": results, "dry_run": s.dryRun})
	}
	for _, r := range results {
		writeNotes(env.stderr, r.Notes)
		is := ""
		if !r.Changed {
			is = " (already)"
		}
		fmt.Fprintf(env.stdout, "the route to %s has %s%s\n", r.Route.Prefix, route.ValuesText(c.Metrics), is)
	}
	return nil
}

// routeError adds the hint to an error of a route.
func routeError(err error) error {
	var algorithm *destination.AlgorithmError
	switch {
	case errors.As(err, &algorithm):
		return ccError(err)
	case errors.Is(err, route.ErrExpires):
		return remedy.New(err, "use a longer prefix, such as 2000::/3 instead of default")
	case errors.Is(err, route.ErrNoRoute):
		return remedy.New(err, "add --via or --dev, or add one with ip route")
	case errors.Is(err, route.ErrOtherHop):
		return remedy.New(err, "leave --via and --dev out, or change it with ip route")
	}
	return err
}

func newRouteList(env *env) *cobra.Command {
	var (
		asJSON    bool
		namespace string
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the metrics that longhaul has set",
		Long: `list shows each metric that longhaul has set in this network namespace, its
owner, and the value from before.`,
		Example: `  longhaul route list
  longhaul route list --json | jq -r '.routes[].prefix'`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := enterNamespace(namespace); err != nil {
				return err
			}
			settings, err := destination.NewHost(env.by()).Routes.Settings()
			if err != nil {
				return err
			}
			if asJSON {
				return display.WriteJSON(env.stdout, map[string]any{"routes": append([]route.Setting{}, settings...)})
			}
			for _, s := range settings {
				if err := s.WriteText(env.stdout); err != nil {
					return err
				}
			}
			if len(settings) == 0 {
				fmt.Fprintln(env.stdout, "nothing is set")
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print everything as JSON")
	namespaceFlag(cmd.Flags(), &namespace)
	return cmd
}

func newRouteUndo(env *env) *cobra.Command {
	var (
		f  undoFlags
		to string
	)
	cmd := &cobra.Command{
		Use:   "undo [--to DEST]",
		Short: "Put routes back as they were",
		Long: `undo with --to takes back all metrics that you have set there, those of longhaul
cc use included. A metric gets another owner's value, or the former one. Without
--to it lists all metrics in this network namespace, of all owners, and asks.
Later changes of other programs stay.`,
		Example: `  longhaul route undo --to 203.0.113.0/24
  longhaul route undo --yes`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.undoTo(cmd, env, to, func(k ledger.Key) bool {
				return k.Kind == ledger.Route
			})
		},
	}
	cmd.Flags().StringVar(&to, "to", "", destUsage)
	f.register(cmd.Flags())
	return cmd
}
