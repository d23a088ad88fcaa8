//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/destination"
	"longhaul/internal/display"
	"longhaul/internal/remedy"
	"longhaul/internal/route"
	"longhaul/internal/units"
)

func newRoute(env *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "route",
		Short: "TCP's settings per destination: segment size, windows, algorithm",
		Long: `route sets metrics of the route to a destination, which the kernel's TCP uses.
It changes the route in force and keeps its other attributes. It records the
previous metrics, and undo restores them.`,
		Example: `  longhaul route set 203.0.113.0/24 --advmss 1460 --initcwnd 40
  longhaul route show
  longhaul route undo 203.0.113.0/24`,
		Args: cobra.ArbitraryArgs,
		RunE: needCommand,
	}
	cmd.AddCommand(newRouteSet(env), newRouteShow(env), newRouteUndo(env))
	return cmd
}

// routeFlags are the flags of set, in the order of the metrics in help and show.
var routeFlags = []struct {
	flag   string
	metric route.Metric
}{
	{"mtu", route.MTU}, {"advmss", route.AdvMSS}, {"congctl", route.CongestionControl}, {"initcwnd", route.InitCwnd},
	{"initrwnd", route.InitRwnd}, {"window", route.Window}, {"quickack", route.QuickACK}, {"rto-min", route.RTOMin},
}

// routeSet holds the flags of set.
type routeSet struct {
	mtu, advmss, initcwnd, initrwnd uint32
	congctl, window, via, device    string
	quickack, lock, json            bool
	rtoMin                          time.Duration
	namespace                       string
}

func newRouteSet(env *env) *cobra.Command {
	var s routeSet
	cmd := &cobra.Command{
		Use:   "set PREFIX [--advmss BYTES] [--mtu BYTES] ...",
		Short: "Set metrics of the route to a prefix",
		Long: `set changes the prefix's own route. If there is none, it adds one with the next
hop of the route that covers the prefix now, or with --via and --dev. New
connections use the metrics, existing ones mostly do not. Other metrics stay.`,
		Example: `  longhaul route set 203.0.113.0/24 --advmss 1460
  longhaul route set 203.0.113.9 --mtu 1400 --lock
  longhaul route set 2001:db8:5::/48 --congctl haul --lock --initcwnd 40
  longhaul route set 198.51.100.0/24 --via 192.0.2.1 --mtu 9000`,
		Args: exactArgs(1, "a prefix"),
		RunE: func(cmd *cobra.Command, args []string) error {
			change, err := s.change(cmd, args[0])
			if err != nil {
				return usageError(err)
			}
			if err := enterNamespace(s.namespace); err != nil {
				return err
			}
			return s.run(cmd.Context(), env, change)
		},
	}
	flags := cmd.Flags()
	flags.Uint32Var(&s.mtu, "mtu", 0, "largest packet sent there, `BYTES`")
	flags.Uint32Var(&s.advmss, "advmss", 0, "MSS to announce; bounds segments from there, `BYTES`")
	flags.StringVar(&s.congctl, "congctl", "", "congestion control there, a `NAME` of cc list")
	flags.Uint32Var(&s.initcwnd, "initcwnd", 0, "first congestion window, `SEGMENTS`")
	flags.Uint32Var(&s.initrwnd, "initrwnd", 0, "first advertised receive window, `SEGMENTS`")
	flags.StringVar(&s.window, "window", "", "initial receive window, a `SIZE` like 256KiB")
	flags.BoolVar(&s.quickack, "quickack", false, "acknowledge every segment at once")
	flags.DurationVar(&s.rtoMin, "rto-min", 0, "least retransmission timeout (instead of 200ms)")
	flags.BoolVar(&s.lock, "lock", false, "lock mtu (against discovery) and congctl")
	flags.StringVar(&s.via, "via", "", "next hop of a new route, an `ADDRESS`")
	flags.StringVar(&s.device, "dev", "", "`DEVICE` of a new route")
	flags.BoolVar(&s.json, "json", false, "print the outcome as JSON")
	namespaceFlag(flags, &s.namespace)
	return cmd
}

// change builds the change of the flags.
func (s *routeSet) change(cmd *cobra.Command, to string) (route.Change, error) {
	prefix, err := route.ParseDestination(to)
	if err != nil {
		return route.Change{}, err
	}
	c := route.Change{Prefix: prefix, Device: s.device, Metrics: map[route.Metric]route.Value{}}
	if s.via != "" {
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
			v.Name = s.congctl
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
		if err := route.CheckValue(f.metric, v, prefix); err != nil {
			return c, err
		}
		locked = locked || s.lock && lockable[f.metric]
		c.Metrics[f.metric] = v
	}
	switch {
	case len(c.Metrics) == 0:
		return c, remedy.New(errors.New("missing metric"),
			"add --advmss, --mtu, --congctl or another; see longhaul route set --help")
	case s.lock && !locked:
		return c, remedy.New(errors.New("--lock needs --mtu or --congctl"), "leave it out")
	}
	return c, nil
}

func (s *routeSet) run(ctx context.Context, env *env, c route.Change) error {
	result, err := destination.NewHost().SetRoute(ctx, c)
	if err != nil {
		return routeError(err)
	}
	if s.json {
		return json.NewEncoder(env.stdout).Encode(result)
	}
	writeNotes(env.stderr, result.Notes)
	is := ""
	if !result.Changed {
		is = " (already)"
	}
	fmt.Fprintf(env.stdout, "the route to %s has %s%s\n", c.Prefix, route.ValuesText(c.Metrics), is)
	return nil
}

// routeError adds the hint to an error of a route.
func routeError(err error) error {
	var algorithm *destination.AlgorithmError
	switch {
	case errors.As(err, &algorithm):
		return ccError(err)
	case errors.Is(err, route.ErrExpires):
		return remedy.New(err, "use a longer prefix, such as 2000::/3 instead of default6")
	case errors.Is(err, route.ErrNoRoute):
		return remedy.New(err, "add --via or --dev, or add one with ip route")
	case errors.Is(err, route.ErrNotUsed):
		return remedy.New(err, "see longhaul route show")
	case errors.Is(err, route.ErrOtherHop):
		return remedy.New(err, "leave --via and --dev out, or change it with ip route")
	}
	return err
}

func newRouteShow(env *env) *cobra.Command {
	var (
		asJSON    bool
		namespace string
	)
	cmd := &cobra.Command{
		Use:   "show",
		Short: "List the metrics that longhaul has set, and the previous ones",
		Example: `  longhaul route show
  longhaul route show --json | jq -r '.routes[].prefix'`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := enterNamespace(namespace); err != nil {
				return err
			}
			settings, err := destination.NewHost().Routes.Settings()
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
		asJSON, all bool
		namespace   string
	)
	cmd := &cobra.Command{
		Use:   "undo PREFIX... | --all",
		Short: "Put routes back as they were",
		Long: `undo restores all metrics that longhaul has set for the prefixes, those of
longhaul cc use included. It keeps later changes of others.`,
		Example: `  longhaul route undo 203.0.113.0/24
  longhaul route undo --all`,
		RunE: func(_ *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usageError(remedy.New(errors.New("longhaul route undo needs prefixes, or --all"),
					"see longhaul route show"))
			}
			var prefixes []netip.Prefix
			for _, arg := range args {
				prefix, err := route.ParseDestination(arg)
				if err != nil {
					return usageError(err)
				}
				prefixes = append(prefixes, prefix)
			}
			if err := enterNamespace(namespace); err != nil {
				return err
			}
			if all {
				settings, err := destination.NewHost().Routes.Settings()
				if err != nil {
					return err
				}
				for _, s := range settings {
					prefixes = append(prefixes, s.Prefix)
				}
			}
			return undoRoutes(env, prefixes, asJSON)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "everything that longhaul has set in this network namespace")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what was undone as JSON")
	namespaceFlag(cmd.Flags(), &namespace)
	return cmd
}

func undoRoutes(env *env, prefixes []netip.Prefix, asJSON bool) error {
	done := []destination.RouteResult{}
	for _, prefix := range prefixes {
		undone, err := destination.NewHost().UnsetRoute(prefix)
		if err != nil {
			return routeError(err)
		}
		done = append(done, undone)
		if !asJSON {
			fmt.Fprintln(env.stdout, undone.Route.UndoneText())
		}
	}
	if asJSON {
		return json.NewEncoder(env.stdout).Encode(map[string]any{"undone": done})
	}
	if len(done) == 0 {
		fmt.Fprintln(env.stdout, "nothing is set")
	}
	return nil
}
