//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"longhaul/internal/cc"
	"longhaul/internal/destination"
	"longhaul/internal/remedy"
	"longhaul/internal/route"
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
		asJSON, asDefault bool
		objects, as       string
	)
	cmd := &cobra.Command{
		Use:   "load NAME...",
		Short: "Load algorithms into the kernel",
		Long: `load registers algorithms with the kernel, where every program can choose them
by name. They stay after the command has ended. Loading the same build again
changes nothing. Another build is replaced, and connections keep the build they
began with.

It needs root, or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN with a BPF filesystem
that the user may write.`,
		Example: `  longhaul cc load haul
  longhaul cc load haul --default
  longhaul cc load hybla illinois`,
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
			host := ccHost(objects)
			var done []ccLoaded
			for _, algorithm := range names {
				name := algorithm
				if as != "" {
					name = as
				}
				loaded, err := loadCC(cmd, host, algorithm, name, asDefault)
				if err != nil {
					if log := cc.VerifierLog(err); log != "" && objects != "" {
						fmt.Fprintln(env.stderr, log)
					}
					return ccError(err)
				}
				done = append(done, loaded)
				writeNotes(env.stderr, loaded.Notes)
				if asJSON {
					continue
				}
				fmt.Fprintf(env.stdout, "%s: %s", name, loaded.Outcome)
				if loaded.Default {
					fmt.Fprint(env.stdout, ", the default of this network namespace")
				}
				fmt.Fprintln(env.stdout)
			}
			if asJSON {
				return json.NewEncoder(env.stdout).Encode(map[string]any{"loaded": done})
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&asJSON, "json", false, "print the outcome as JSON")
	flags.BoolVar(&asDefault, "default", false,
		"make it the default of this network namespace; unload restores the previous one")
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
		if err := host.SetDefault(name); err != nil {
			return ccLoaded{}, err
		}
	}
	return ccLoaded{Name: name, Outcome: result.Outcome, Default: asDefault, Notes: result.Notes}, nil
}

func newCCUnload(env *env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "unload [NAME...]",
		Short: "Take algorithms out of the kernel again",
		Long: `unload undoes load. Without NAME it undoes everything that load and use have
changed. It restores the previous default and the routes that use the algorithm.
Connections keep their algorithm until they end. Another network namespace keeps
it as its default until it chooses another.`,
		Example: `  longhaul cc unload haul
  longhaul cc unload`,
		RunE: func(cmd *cobra.Command, names []string) error {
			host := destination.NewHost()
			everything := len(names) == 0
			if everything {
				all, err := host.CC.LoadedNames()
				if err != nil {
					return ccError(fmt.Errorf("list loaded algorithms: %w", err))
				}
				names = all
			}
			done := []destination.Unloaded{}
			for _, name := range names {
				unloaded, err := host.Unload(cmd.Context(), name)
				if err != nil {
					return routeError(err)
				}
				done = append(done, unloaded)
				if asJSON {
					continue
				}
				if err := unloaded.WriteText(env.stdout); err != nil {
					return err
				}
			}
			var undone []route.Use
			if everything { // routes may use the kernel's own algorithms
				var err error
				if undone, err = host.UndoAll(""); err != nil {
					return err
				}
			}
			if asJSON {
				return json.NewEncoder(env.stdout).Encode(map[string]any{"unloaded": done, "undone": undone})
			}
			for _, use := range undone {
				fmt.Fprintln(env.stdout, use.UndoneText())
			}
			if len(names) == 0 && len(undone) == 0 {
				fmt.Fprintln(env.stdout, "nothing was loaded")
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the outcome as JSON")
	return cmd
}
