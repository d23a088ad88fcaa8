//go:build linux

package main

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/cc"
	"longhaul/internal/destination"
	"longhaul/internal/display"
	"longhaul/internal/kernel"
	"longhaul/internal/remedy"
)

func newCC(env *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cc",
		Short: "Congestion control: load algorithms and choose where the kernel uses them",
		Long: `cc loads longhaul's congestion control algorithms into the running kernel, with
no kernel module and no reboot. Any TCP program can then use them, and only the
sending side needs them. They stay loaded until unload or a reboot.`,
		Example: `  longhaul cc list
  longhaul cc load haul
  longhaul cc use --to 203.0.113.0/24 haul
  longhaul cc unload`,
		Args: cobra.ArbitraryArgs,
		RunE: needCommand,
	}
	cmd.AddCommand(newCCList(env), newCCLoad(env), newCCUnload(env), newCCUse(env))
	return cmd
}

// ccHost returns the machine's algorithms, with objects from a directory if one is
// given.
func ccHost(objects string) *cc.Host {
	host := cc.NewHost()
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
	var lacking *kernel.ErrUnsupported
	switch {
	case err == nil:
		return nil
	case errors.As(err, &lacking):
		return remedy.New(err, "the kernel's own algorithms work without it: see longhaul cc list")
	case errors.Is(err, cc.ErrUnknown):
		return remedy.New(err, "see longhaul cc list")
	case errors.Is(err, cc.ErrTaken):
		return remedy.New(err, "longhaul replaces and unloads only its own algorithms; see longhaul cc list")
	case errors.Is(err, fs.ErrPermission):
		return remedy.New(err, "root owns /sys/fs/bpf, where longhaul pins algorithms: run it as root")
	}
	return err
}

func newCCList(env *env) *cobra.Command {
	var (
		asJSON  bool
		objects string
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the kernel's algorithms and longhaul's, with their states",
		Long: `list shows every congestion control that a socket can use now, and longhaul's
algorithms that could be loaded, or why not. Registered algorithms are the same
for the whole machine; default and connections belong to this network namespace.`,
		Example: `  longhaul cc list
  longhaul cc list --json | jq -r '.algorithms[] | select(.default).name'`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			algorithms, err := ccHost(objects).List(true)
			if err != nil {
				return err
			}
			uses, err := destination.NewHost().Uses()
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
	ccFlags(cmd.Flags(), &objects)
	return cmd
}
