//go:build linux

package main

import (
	"net"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/cc"
	"longhaul/internal/watch/monitor/history"
	"longhaul/lab"
	"longhaul/lab/experiments"
	"longhaul/lab/link"
)

// netnsDir has a file for each namespace of ip netns.
const netnsDir = "/run/netns"

// completeFlags completes values of flags by the thing that they name, in every command.
// A flag that has a function already keeps it.
func completeFlags(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		placeholder, _ := pflag.UnquoteUsage(f)
		switch placeholder {
		case "", "FILE":
			return // a switch, or completed by the shell
		case "DIR":
			_ = cmd.MarkFlagDirname(f.Name)
			return
		}
		complete := cobra.NoFileCompletions
		if words := flagWords(cmd, f.Name); words != nil {
			complete = completeWords(words, placeholder == "LIST")
		}
		_ = cmd.RegisterFlagCompletionFunc(f.Name, complete)
	})
	if cmd.CommandPath() == "longhaul lab exec" {
		cmd.ValidArgsFunction = func(_ *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(given) > 0 {
				return nil, cobra.ShellCompDirectiveDefault // of the program
			}
			return labHosts(), cobra.ShellCompDirectiveNoFileComp
		}
	}
	for _, sub := range cmd.Commands() {
		completeFlags(sub)
	}
}

// flagWords returns the function that lists the values of a flag, or nil.
func flagWords(cmd *cobra.Command, flag string) func() []string {
	fixed := func(words ...string) func() []string { return func() []string { return words } }
	switch flag {
	case "cc", "wan-cc", "lan-cc", "against":
		return algorithmNames
	case "dev":
		return deviceNames
	case "netns":
		return func() []string { return namesIn(netnsDir) }
	case "aqm":
		return link.AQMNames
	case "loss-place":
		return fixed("before", "after")
	case "host-ecn":
		return lab.HostECNNames
	case "police-scope":
		return fixed("link", "flow")
	case "atm", "ecn":
		return fixed("on", "off")
	case "down":
		return fixed("a-to-b", "b-to-a", "both", "none")
	}
	switch cmd.CommandPath() + " --" + flag {
	case "longhaul history --sort":
		return fixed(strings.Split(joinWords(history.Orders()), ", ")...)
	}
	if parent := cmd.Parent(); flag == "case" && parent != nil && parent.CommandPath() == "longhaul lab run" {
		return func() []string {
			for _, e := range experiments.All() {
				if e.Name == cmd.Name() {
					return e.Cases
				}
			}
			return nil
		}
	}
	return nil
}

// completeWords offers words; in a list those that it does not have yet.
func completeWords(words func() []string, isList bool) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, start string) (offered []string, _ cobra.ShellCompDirective) {
		before := ""
		if comma := strings.LastIndex(start, ","); isList && comma >= 0 {
			before, start = start[:comma+1], start[comma+1:]
		}
		given := strings.Split(before, ",")
		for _, word := range words() {
			if strings.HasPrefix(word, start) && !slices.Contains(given, word) {
				offered = append(offered, before+word)
			}
		}
		return offered, cobra.ShellCompDirectiveNoFileComp
	}
}

// algorithmNames returns the kernel's congestion controls and longhaul's own.
func algorithmNames() []string {
	names, _ := cc.Available() // without it, only our own
	own, _ := cc.NewHost(ledger.By{}).Offered()
	names = append(names, own...)
	slices.Sort(names)
	return slices.Compact(names)
}

func deviceNames() []string {
	devices, _ := net.Interfaces() // none to offer without it
	return namesOf(devices, func(d net.Interface) string { return d.Name })
}

// namesIn returns the names of a directory's entries; none if it cannot be read.
func namesIn(dir string) []string {
	entries, _ := os.ReadDir(dir)
	return namesOf(entries, os.DirEntry.Name)
}

// labHosts returns the hosts of a running lab.
func labHosts() []string {
	return namesOf(lab.TwoSites(lab.MitreConditions()).Hosts, func(h lab.HostSpec) string { return h.Name })
}

func namesOf[T any](all []T, name func(T) string) []string {
	names := make([]string, len(all))
	for i, one := range all {
		names[i] = name(one)
	}
	return names
}
