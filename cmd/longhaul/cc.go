//go:build linux

package main

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/cc"
	"longhaul/internal/tune/destination"
	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
)

func newCC(env *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cc",
		Short: "Congestion control: load algorithms and choose where the kernel uses them",
		Long: `cc loads longhaul's congestion control algorithms into the running kernel, with
no kernel module and no reboot. Any TCP program can then use them, and only the
sending side needs them. They stay loaded until unload, or until the undo of the
last use, or a reboot.`,
		Example: `  longhaul cc list
  longhaul cc load haul
  longhaul cc use haul --to 203.0.113.0/24
  longhaul cc undo --to 203.0.113.0/24
  longhaul cc paths`,
		Args: cobra.ArbitraryArgs,
		RunE: needCommand,
	}
	cmd.AddCommand(newCCList(env), newCCLoad(env), newCCUnload(env), newCCUse(env), newCCUndo(env), newCCPaths(env))
	return cmd
}

// ccHost returns the machine's algorithms, with objects from a directory if one is
// given.
func ccHost(env *env, objects string) *cc.Host {
	host := cc.NewHost(env.by())
	if objects != "" {
		host.Objects = os.DirFS(objects)
	}
	return host
}

// ccFlags adds the flags that list and load share.
func ccFlags(flags *pflag.FlagSet, objects *string) {
	flags.StringVar(objects, "objects", "", "`DIR` of compiled algorithms, for their development (default: those built in)")
}

// ccError adds the hint to an error of the loader.
func ccError(err error) error {
	var (
		lacking *kernel.ErrUnsupported
		taken   *cc.TakenError
		unknown *cc.UnknownError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &lacking):
		return remedy.New(err, "the kernel's own algorithms work without it: see longhaul cc list")
	case errors.As(err, &unknown):
		if meant := remedy.Nearest(unknown.Name, cc.NewHost(ledger.By{}).Known()); meant != "" {
			return remedy.New(err, "did you mean "+meant+"? see longhaul cc list")
		}
		return remedy.New(err, "see longhaul cc list")
	case errors.As(err, &taken) && taken.Second != "":
		return remedy.New(err, "longhaul's has a second name: longhaul cc load "+taken.Second)
	case errors.Is(err, cc.ErrTaken):
		return remedy.New(err, "longhaul replaces and unloads only its own algorithms; see longhaul cc list")
	case errors.Is(err, fs.ErrPermission):
		return remedy.New(err, "run it as root: longhaul pins algorithms in /sys/fs/bpf, and records changes in "+ledger.DefaultDir)
	}
	return err
}

func newCCList(env *env) *cobra.Command {
	var (
		asJSON             bool
		objects, namespace string
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the kernel's algorithms and longhaul's, with their states",
		Long: `list shows every congestion control that a socket can use now, and longhaul's
algorithms that could be loaded, or why not. Registered algorithms are the same
for the whole machine; default, connections and destinations belong to one
network namespace.`,
		Example: `  longhaul cc list
  longhaul cc list --json | jq -r '.algorithms[] | select(.default).name'`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := enterNamespace(namespace); err != nil {
				return err
			}
			algorithms, err := ccHost(env, objects).List(true)
			if err != nil {
				return err
			}
			uses, err := destination.NewHost(env.by()).Uses()
			if err != nil {
				return err
			}
			if asJSON {
				return display.WriteJSON(env.stdout, map[string]any{"algorithms": algorithms, "uses": uses})
			}
			cc.WriteList(env.stdout, algorithms, time.Now())
			destination.WriteUses(env.stdout, uses)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print everything as JSON")
	namespaceFlag(cmd.Flags(), &namespace)
	ccFlags(cmd.Flags(), &objects)
	return cmd
}
