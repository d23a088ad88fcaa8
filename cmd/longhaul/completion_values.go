//go:build linux

package main

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/find/hostcheck"
	"longhaul/internal/run/config"
	"longhaul/internal/run/control"
	"longhaul/internal/run/service"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/cc"
)

// flagValues are the values of flags that take one of a few words.
var flagValues = map[string]map[string][]string{
	"longhaul relay": {
		"log-format": {"logfmt", "json"}, "log-level": {"debug", "info", "warn", "error"},
		"wan-side": {"auto", "listen", "forward", "both", "none"}, "transport": {"auto", "kernel"}, "proxy-out": {"v1", "v2"},
		"balance": {"ordered", "least-flows", "round-robin", "source"}, "check-next": {"relay", "target"},
	},
	"longhaul ready":           {"ignore": {"shedding", "hops", "host"}},
	"longhaul status":          {"sort": {"goodput", "bytes", "age"}},
	"longhaul top":             {"sort": {"goodput", "retransmissions", "limited", "rtt"}},
	"longhaul host check":      {"path": slices.Sorted(maps.Keys(hostcheck.Paths()))},
	"longhaul service install": {"grant": append(service.DropInNames(), "auto", "none")},
}

// completeValues completes values of flags and arguments.
func completeValues(cmd *cobra.Command) {
	for flag, words := range flagValues[cmd.CommandPath()] {
		// It fails for a missing flag, and for one that already has a function.
		if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic(err)
		}
	}
	switch cmd.CommandPath() {
	case "longhaul relay", "longhaul service install":
		if err := cmd.MarkFlagFilename("config", "yaml", "yml"); err != nil {
			panic(err)
		}
	case "longhaul config check", "longhaul pair apply", "longhaul fleet status":
		cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		}
	case "longhaul check", "longhaul ready":
		cmd.ValidArgsFunction = completeTunnels
	case "longhaul drain", "longhaul resume":
		cmd.ValidArgsFunction = completeTunnelsAndHops
	case "longhaul pair remove", "longhaul pair rename":
		cmd.ValidArgsFunction = completePeers
	case "longhaul cc load", "longhaul cc use", "longhaul cc unload":
		cmd.ValidArgsFunction = completeAlgorithms
	}
	if f := cmd.Flags(); f.Lookup("control-socket") != nil && f.Lookup("name") != nil && cmd.Name() != "relay" {
		if err := cmd.RegisterFlagCompletionFunc("name", completeRelays); err != nil {
			panic(err)
		}
	}
	if strings.HasPrefix(cmd.CommandPath(), "longhaul history") {
		completeHistory(cmd)
	}
	for _, sub := range cmd.Commands() {
		completeValues(sub)
	}
}

// completeTunnels offers the tunnels of the running relay, or of the service's
// configuration if no relay answers.
func completeTunnels(cmd *cobra.Command, given []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	if len(given) == 0 {
		for _, t := range tunnelsToComplete(cmd) {
			names = append(names, t.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeTunnelsAndHops offers the tunnels, their hops, and TUNNEL/HOP.
func completeTunnelsAndHops(cmd *cobra.Command, given []string, start string) (names []string, _ cobra.ShellCompDirective) {
	names, directive := completeTunnels(cmd, given, start)
	var hops, both []string
	if len(given) == 0 {
		for _, t := range tunnelsToComplete(cmd) {
			for _, hop := range t.Forward {
				hops, both = append(hops, hop), append(both, t.Name+"/"+hop)
			}
		}
	}
	slices.Sort(hops)
	return slices.Concat(names, slices.Compact(hops), both), directive
}

// tunnelToComplete is a tunnel of the status, or of a file.
type tunnelToComplete struct {
	Name    string
	Forward []string
}

func tunnelsToComplete(cmd *cobra.Command) []tunnelToComplete {
	var chosen relayChoice
	if f := cmd.Flags().Lookup("control-socket"); f != nil {
		chosen = relayChoice{f.Value.String(), cmd.Flags().Lookup("name").Value.String()}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var status struct{ Tunnels []tunnelToComplete }
	if body, err := askRelay(ctx, &env{getenv: os.Getenv}, chosen); err == nil && json.Unmarshal(body, &status) == nil {
		return status.Tunnels
	}
	var tunnels []tunnelToComplete
	if c, err := (config.Loader{Resolve: config.PlaceholderResolver()}).Load(ctx, service.ConfigFile); err == nil {
		for _, t := range c.Tunnels {
			one := tunnelToComplete{Name: t.Name}
			for _, f := range t.Forward {
				one.Forward = append(one.Forward, f.String())
			}
			tunnels = append(tunnels, one)
		}
	}
	return tunnels
}

// completeRelays offers the names of the running relays.
func completeRelays(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	names, _ := control.Running(ctx, control.Directory(os.Getenv))
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeAlgorithms offers longhaul's algorithms that the line does not name yet.
func completeAlgorithms(_ *cobra.Command, given []string, start string) ([]string, cobra.ShellCompDirective) {
	names, err := cc.NewHost(ledger.By{}).Offered()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(given, name) || !strings.HasPrefix(name, start) })
	return names, cobra.ShellCompDirectiveNoFileComp
}

func namesOf[T any](all []T, name func(T) string) []string {
	names := make([]string, len(all))
	for i, one := range all {
		names[i] = name(one)
	}
	return names
}
