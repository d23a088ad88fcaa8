//go:build linux

package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/cc"
	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
)

// ccLoaded is one algorithm in the output of load.
type ccLoaded struct {
	Name    string     `json:"name"`
	Outcome cc.Outcome `json:"outcome"`
	Default bool       `json:"default,omitempty"`
	Notes   []string   `json:"notes,omitempty"`
}

func newCCLoad(env *env) *cobra.Command {
	var (
		f           changeFlags
		asDefault   bool
		objects, as string
	)
	cmd := &cobra.Command{
		Use:   "load NAME...",
		Short: "Load algorithms into the kernel",
		Long: `load registers algorithms with the kernel, where every program can choose them
by name. They stay after the command has ended. Loading the same build again
changes nothing. Another build is replaced, and connections keep the build they
began with.

Each algorithm has a second name, like lh_hybla, for hosts whose kernel has
another algorithm of the first.

It needs root, or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN with a BPF filesystem
that the user may write.`,
		Example: `  longhaul cc load haul
  longhaul cc load haul --default
  longhaul cc load hybla illinois
  longhaul cc load lh_hybla`,
		RunE: func(cmd *cobra.Command, names []string) error {
			switch {
			case len(names) == 0:
				return usageError(remedy.New(errors.New("missing algorithm name"), "see longhaul cc list"))
			case asDefault && len(names) > 1:
				return usageError(remedy.New(errors.New("only one algorithm can be the default"),
					"load the others with a second command"))
			case as != "" && len(names) > 1:
				return usageError(remedy.New(errors.New("--as names one algorithm, got several"),
					"load the others with a second command"))
			}
			if err := f.enter(env); err != nil {
				return err
			}
			host := ccHost(env, objects)
			host.DryRun = f.dryRun
			var done []ccLoaded
			for _, algorithm := range names {
				name := algorithm
				if as != "" {
					name = as
				}
				loaded, err := loadCC(cmd, host, algorithm, name, asDefault)
				if err != nil {
					if log := kernel.VerifierLog(err); log != "" && objects != "" {
						fmt.Fprintln(env.stderr, log)
					}
					return ccError(err)
				}
				done = append(done, loaded)
				writeNotes(env.stderr, loaded.Notes)
				if f.json {
					continue
				}
				fmt.Fprintf(env.stdout, "%s: %s", name, loaded.Outcome)
				if loaded.Default {
					fmt.Fprint(env.stdout, ", the default of this network namespace")
				}
				fmt.Fprintln(env.stdout)
			}
			if f.json {
				return display.WriteJSON(env.stdout, map[string]any{"loaded": done, "dry_run": f.dryRun})
			}
			return nil
		},
	}
	flags := cmd.Flags()
	f.register(flags)
	flags.BoolVar(&asDefault, "default", false,
		"make it the default of this network namespace; undo and unload restore the previous one")
	flags.StringVar(&as, "as", "", "register it under another `NAME`, to compare two builds")
	ccFlags(flags, &objects)
	return cmd
}

func loadCC(cmd *cobra.Command, host *cc.Host, algorithm, name string, asDefault bool) (ccLoaded, error) {
	result, err := host.Load(cmd.Context(), algorithm, name)
	if err != nil {
		return ccLoaded{}, err
	}
	if asDefault {
		if err := host.SetDefault(cmd.Context(), name); err != nil {
			return ccLoaded{}, err
		}
	}
	return ccLoaded{Name: name, Outcome: result.Outcome, Default: asDefault, Notes: result.Notes}, nil
}

func newCCUnload(env *env) *cobra.Command {
	var f undoFlags
	cmd := &cobra.Command{
		Use:   "unload [NAME...]",
		Short: "Take algorithms out of the kernel again",
		Long: `unload with NAME takes back your own load, default and uses of the algorithm. It
leaves the kernel unless others use it. Without NAME it lists all loaded
algorithms, defaults and uses, of all owners, and asks. Connections keep their
algorithm until they end.`,
		Example: `  longhaul cc unload haul
  longhaul cc unload haul --yes
  longhaul cc unload`,
		RunE: func(cmd *cobra.Command, names []string) error {
			if err := f.enter(env); err != nil {
				return err
			}
			if err := f.unloadUnrecorded(cmd, env, names); err != nil {
				return ccError(err)
			}
			return f.undo(cmd, env, undoing{
				named: len(names) > 0, everywhere: true,
				which: func(k ledger.Key, c ledger.Claim) bool {
					name := c.Needs
					if k.Kind == ledger.Algorithm {
						name = k.Name
					}
					return name != "" && (len(names) == 0 || slices.Contains(names, name))
				},
			})
		},
	}
	f.register(cmd.Flags())
	return cmd
}

// unloadUnrecorded clears what interrupted loads have left of algorithms. It refuses
// names of algorithms that longhaul has not loaded.
func (f *undoFlags) unloadUnrecorded(cmd *cobra.Command, env *env, names []string) error {
	host := ccHost(env, "")
	host.DryRun = f.dryRun
	book, err := ledger.Read(host.Ledger)
	if err != nil {
		return err
	}
	loaded, err := host.LoadedNames()
	if err != nil {
		return fmt.Errorf("list loaded algorithms: %w", err)
	}
	for _, name := range names {
		if len(book.Users(name)) > 0 || slices.Contains(loaded, name) {
			continue
		}
		if _, err := host.Unload(cmd.Context(), name); err != nil {
			return err
		}
	}
	return nil
}
