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
		Short: "Congestion control: bring algorithms to the kernel, and choose where they are used",
		Long: `cc loads longhaul's congestion control algorithms into the running kernel, with
no kernel module and no reboot. Any TCP program can use them then, and only the
sending side needs them. What is loaded stays until unload or a reboot.`,
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

// ccHost is the machine's algorithms, from the objects in a directory if one
// is given.
func ccHost(objects string) *cc.Host {
	host := cc.NewHost()
	if objects != "" {
		host.Objects = os.DirFS(objects)
	}
	return host
}

// ccFlags adds what list and load have in common.
func ccFlags(flags *pflag.FlagSet, objects *string) {
	flags.StringVar(objects, "objects", "", "`DIR` of compiled algorithms, for their development (default: those built in)")
}

// ccError adds what to do about an error of the loader.
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
		return remedy.New(err, "only what longhaul has loaded can be loaded anew or unloaded; see longhaul cc list")
	case errors.Is(err, fs.ErrPermission):
		return remedy.New(err, "what is loaded is pinned below /sys/fs/bpf, which is root's: run it as root")
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
		Short: "List the kernel's algorithms and ours: which are loaded, which could be, and why not",
		Long: `list shows every congestion control that a socket can have now, and those of
longhaul that could be loaded. What is registered is the same for the whole
machine; default and connections are of this network namespace.`,
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
