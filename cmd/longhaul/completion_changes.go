//go:build linux

package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/hostchanges"
)

// completeChanges completes the names of what longhaul has changed on this host.
func completeChanges(cmd *cobra.Command) {
	flag := func(name string, values func() []string) {
		if cmd.Flags().Lookup(name) == nil {
			return
		}
		err := cmd.RegisterFlagCompletionFunc(name, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return values(), cobra.ShellCompDirectiveNoFileComp
		})
		if err != nil {
			panic(err)
		}
	}
	switch cmd.CommandPath() {
	case "longhaul cc unload":
		cmd.ValidArgsFunction = func(_ *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
			names := changedNames(func(k ledger.Key) bool { return k.Kind == ledger.Algorithm })
			return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(given, name) }), cobra.ShellCompDirectiveNoFileComp
		}
	case "longhaul cc undo":
		flag("to", func() []string {
			return changedNames(func(k ledger.Key) bool { return k.Kind == ledger.Route && k.Part == "congctl" })
		})
	case "longhaul route undo":
		flag("to", func() []string { return changedNames(func(k ledger.Key) bool { return k.Kind == ledger.Route }) })
	case "longhaul mss undo":
		flag("to", func() []string { return ruleWords("to ") })
		flag("from", func() []string { return ruleWords("from ") })
	case "longhaul intercept clear":
		cmd.ValidArgsFunction = func(_ *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(given) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return changedNames(func(k ledger.Key) bool { return k.Kind == ledger.Intercept }), cobra.ShellCompDirectiveNoFileComp
		}
	}
}

// changed lists the changes in this network namespace.
func changed() []hostchanges.Change {
	changes, err := hostchanges.NewHost(ledger.By{}).List(hostchanges.Selection{Choose: ledger.AllClaims})
	if err != nil {
		return nil
	}
	return changes
}

// changedNames lists the names of changes, each once.
func changedNames(which func(ledger.Key) bool) (names []string) {
	for _, c := range changed() {
		if name := c.Key().Name; which(c.Key()) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// ruleWords lists the words behind another in the data of rules.
func ruleWords(behind string) (words []string) {
	for _, c := range changed() {
		if c.Kind != ledger.MSS {
			continue
		}
		if _, rest, found := strings.Cut(c.Key().Part, " "+behind); found {
			word, _, _ := strings.Cut(rest, " ")
			if word = strings.TrimSuffix(word, ","); !slices.Contains(words, word) {
				words = append(words, word)
			}
		}
	}
	return words
}
