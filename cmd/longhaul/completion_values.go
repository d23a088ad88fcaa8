//go:build linux

package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"longhaul/internal/cc"
)

// flagValues are the values that the flags of commands take, where those are
// a few words.
var flagValues = map[string]map[string][]string{
	"longhaul relay": {
		"log-format": {"logfmt", "json"}, "log-level": {"debug", "info", "warn", "error"},
		"wan-side": {"auto", "listen", "forward", "both", "none"}, "transport": {"auto", "kernel"}, "proxy-out": {"v1", "v2"},
	},
	"longhaul status":          {"sort": {"goodput", "bytes", "age"}},
	"longhaul top":             {"sort": {"goodput", "retransmissions", "limited", "rtt"}},
	"longhaul service install": {"grant": append(slices.Clone(allGrants), "none")},
}

// completeValues adds what the shell can complete beyond names of commands
// and flags.
func completeValues(cmd *cobra.Command) {
	for flag, words := range flagValues[cmd.CommandPath()] {
		// It fails for a flag that there is not, and for one that has been here.
		if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic(err)
		}
	}
	switch cmd.CommandPath() {
	case "longhaul relay", "longhaul service install":
		if err := cmd.MarkFlagFilename("config", "yaml", "yml"); err != nil {
			panic(err)
		}
	case "longhaul config check":
		cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		}
	case "longhaul cc load", "longhaul cc unload", "longhaul cc use":
		cmd.ValidArgsFunction = completeAlgorithms
	}
	for _, sub := range cmd.Commands() {
		completeValues(sub)
	}
}

// completeAlgorithms offers those of longhaul's own that are not named yet.
func completeAlgorithms(_ *cobra.Command, given []string, start string) ([]string, cobra.ShellCompDirective) {
	names, err := cc.NewHost().Names()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(given, name) || !strings.HasPrefix(name, start) })
	return names, cobra.ShellCompDirectiveNoFileComp
}
