//go:build linux

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/tune/cc"
	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
)

// pathsFlags are the flags of the commands on what haul remembers.
type pathsFlags struct {
	name string
	json bool
}

func (f *pathsFlags) register(flags *pflag.FlagSet, json string) {
	flags.StringVar(&f.name, "cc", "haul", "`NAME` under which haul is loaded")
	flags.BoolVar(&f.json, "json", false, json)
}

// open opens the memory of the algorithm.
func (f *pathsFlags) open(env *env) (*cc.Paths, error) {
	paths, err := ccHost(env, "").Paths(f.name)
	if errors.Is(err, cc.ErrNoPaths) {
		return nil, remedy.New(err, "load it with longhaul cc load haul, or name it with --cc NAME")
	}
	return paths, ccError(err)
}

func newCCPaths(env *env) *cobra.Command {
	var (
		f         pathsFlags
		namespace string
	)
	cmd := &cobra.Command{
		Use:   "paths",
		Short: "What haul remembers of paths, for connections to begin with",
		Long: `paths shows what haul remembers for 10 minutes of the path to each destination:
the least round trip, the rate that arrived, the share of packets that the path
loses by itself, and since when. A new connection that finds the same round trip
begins with half of that rate instead of ten packets, and takes the rest if it
arrives (Careful Resume, RFC 9959).

off has every connection begin with ten packets, in all network namespaces,
until on, or until haul is unloaded. Paths belong to one network namespace.
Connections that lacked data, or never left start-up, leave nothing to remember.`,
		Example: `  longhaul cc paths
  longhaul cc paths --json | jq -r '.paths[].destination'
  longhaul cc paths forget --to 203.0.113.0/24
  longhaul cc paths off`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownVerb(cmd, args[0])
			}
			if err := enterNamespace(namespace); err != nil {
				return err
			}
			paths, err := f.open(env)
			if err != nil {
				return err
			}
			defer paths.Close()
			list, err := paths.List()
			if err != nil {
				return err
			}
			resumes, err := paths.Resumes()
			if err != nil {
				return err
			}
			if f.json {
				return display.WriteJSON(env.stdout, map[string]any{"paths": append([]cc.CarriedPath{}, list...), "resumes": resumes})
			}
			if len(list) == 0 {
				fmt.Fprintln(env.stdout, "no path is remembered")
			} else {
				cc.WritePaths(env.stdout, list)
			}
			if !resumes {
				fmt.Fprintln(env.stdout, "off: no connection begins with them; longhaul cc paths on changes that")
			}
			return nil
		},
	}
	f.register(cmd.Flags(), "print everything as JSON")
	namespaceFlag(cmd.Flags(), &namespace)
	cmd.AddCommand(newCCPathsForget(env), newCCPathsSwitch(env, true), newCCPathsSwitch(env, false))
	return cmd
}

func newCCPathsForget(env *env) *cobra.Command {
	var (
		f             pathsFlags
		to, namespace string
	)
	cmd := &cobra.Command{
		Use:   "forget [--to DEST]",
		Short: "Forget paths of this network namespace",
		Long: `forget removes what haul remembers of the paths to DEST, or of all. The next
connection there begins with ten packets. Present ones keep what they know.`,
		Example: `  longhaul cc paths forget
  longhaul cc paths forget --to 203.0.113.7`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			prefixes, err := parseDestinations(cmd.Context(), "to", to)
			if err != nil {
				return err
			}
			if err := enterNamespace(namespace); err != nil {
				return err
			}
			paths, err := f.open(env)
			if err != nil {
				return err
			}
			defer paths.Close()
			n, err := paths.Forget(prefixes...)
			if err != nil {
				return err
			}
			if f.json {
				return display.WriteJSON(env.stdout, map[string]any{"forgotten": n})
			}
			fmt.Fprintf(env.stdout, "%s forgotten\n", display.Plural(n, "path"))
			return nil
		},
	}
	cmd.Flags().StringVar(&to, "to", "", destUsage)
	f.register(cmd.Flags(), "print the number as JSON")
	namespaceFlag(cmd.Flags(), &namespace)
	return cmd
}

// newCCPathsSwitch returns the command on or off.
func newCCPathsSwitch(env *env, on bool) *cobra.Command {
	var f pathsFlags
	word, short, long := "off", "Have every connection begin with ten packets", `off has every new connection begin with ten packets, in all network namespaces,
whatever is remembered of its path. haul still remembers paths, for the time
after on. It holds until haul is unloaded, also if another build replaces it.`
	if on {
		word, short, long = "on", "Have connections begin with what the path carried", `on takes off back: a new connection begins with half of the rate that its path
carried in the last 10 minutes, if the round trip is the same. It is on after a
load.`
	}
	cmd := &cobra.Command{
		Use: word, Short: short, Long: long,
		Example: "  longhaul cc paths " + word,
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			paths, err := f.open(env)
			if err != nil {
				return err
			}
			defer paths.Close()
			if err := paths.SetResumes(on); err != nil {
				return err
			}
			if f.json {
				return display.WriteJSON(env.stdout, map[string]any{"resumes": on})
			}
			fmt.Fprintf(env.stdout, "%s: %s\n", f.name, map[bool]string{
				true: "new connections begin with what the path carried", false: "new connections begin with ten packets"}[on])
			return nil
		},
	}
	f.register(cmd.Flags(), "print the setting as JSON")
	return cmd
}
