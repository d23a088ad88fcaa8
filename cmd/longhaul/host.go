//go:build linux

package main

import (
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/hostchanges"
	"longhaul/internal/words/display"
)

func newHost(env *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "host",
		Short: "What this host can do for longhaul, and what longhaul has changed on it",
		Long: `host check tries out which features of longhaul work on this host.

host list shows every change of this host by a command or relay of longhaul:
loaded algorithms, defaults, metrics of routes, rules for the MSS, connections
that relays intercept. Each has its owners, and what uses it. A change ends with
its undo, or with a restart of the machine.`,
		Example: `  longhaul host check
  longhaul host list
  longhaul host undo --dry-run`,
		Args: cobra.ArbitraryArgs,
		RunE: needCommand,
	}
	cmd.AddCommand(newHostCheck(env), newHostList(env), newHostUndo(env))
	return cmd
}

func newHostList(env *env) *cobra.Command {
	var (
		asJSON    bool
		namespace string
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List all changes of this host with their owners and users",
		Long: `list shows the changes in all network namespaces. Of several claims on a thing
the last one is in force; the earlier ones stand below it. With --netns it
lists the changes in that namespace, and loaded algorithms.`,
		Example: `  longhaul host list
  longhaul host list --json | jq '.changes[] | {kind, what}'`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := enterNamespace(namespace); err != nil {
				return err
			}
			host := hostchanges.NewHost(env.by())
			changes, err := host.List(hostchanges.Selection{Choose: ledger.AllClaims, Everywhere: namespace == ""})
			if err != nil {
				return err
			}
			if asJSON {
				return display.WriteJSON(env.stdout, map[string]any{"changes": append([]hostchanges.Change{}, changes...)})
			}
			return hostchanges.WriteList(env.stdout, changes, time.Now())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print everything as JSON")
	namespaceFlag(cmd.Flags(), &namespace)
	return cmd
}

func newHostUndo(env *env) *cobra.Command {
	var f undoFlags
	cmd := &cobra.Command{
		Use:   "undo",
		Short: "Take back all changes of this host, of all owners",
		Long: `undo lists all changes, asks, and takes them back. Later changes of other
programs stay. With --netns it takes back the changes in that namespace, and the
algorithms that nothing else uses.`,
		Example: `  longhaul host undo
  longhaul host undo --dry-run
  longhaul host undo --yes`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.enter(env); err != nil {
				return err
			}
			return f.undo(cmd, env, undoing{everywhere: f.namespace == "", which: ledger.AllClaims})
		},
	}
	f.register(cmd.Flags())
	return cmd
}
