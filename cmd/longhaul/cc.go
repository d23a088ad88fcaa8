//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/cc"
	"longhaul/internal/display"
	"longhaul/internal/kernel"
	"longhaul/internal/remedy"
	"longhaul/internal/route"
	"longhaul/internal/units"
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
			uses, err := ccUses()
			if err != nil {
				return err
			}
			if asJSON {
				encoder := json.NewEncoder(env.stdout)
				encoder.SetIndent("", "  ")
				return encoder.Encode(map[string]any{"algorithms": algorithms, "uses": uses})
			}
			writeAlgorithms(env.stdout, algorithms, time.Now())
			writeUses(env.stdout, uses)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print everything as JSON")
	ccFlags(cmd.Flags(), &objects)
	return cmd
}

// writeAlgorithms prints a table that fits a terminal of 80 columns, with
// remarks that are too long for it on a line of their own.
func writeAlgorithms(w io.Writer, algorithms []cc.Algorithm, now time.Time) {
	const (
		row   = "%-15s  %-8s  %-11s  %11s  %s"
		left  = 80 - (15 + 2 + 8 + 2 + 11 + 2 + 11 + 2)
		below = "  "
	)
	line := func(values ...any) {
		fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf(row, values...), " "))
	}
	line("NAME", "FROM", "STATE", "CONNECTIONS", "")
	for _, a := range algorithms {
		connections := "-"
		if a.Sockets != nil {
			connections = fmt.Sprint(*a.Sockets)
		}
		remarks, more := strings.Join(algorithmRemarks(a, now), ", "), ""
		if len(remarks) > left {
			remarks, more = "", below+remarks+"\n"
		}
		line(a.Name, a.Origin, a.State, connections, remarks)
		fmt.Fprint(w, more)
	}
}

func algorithmRemarks(a cc.Algorithm, now time.Time) (remarks []string) {
	if a.Default {
		remarks = append(remarks, "default")
	}
	if a.Restricted {
		remarks = append(remarks, "restricted to CAP_NET_ADMIN")
	}
	if a.LoadedAt != nil {
		remarks = append(remarks, "loaded "+display.Age(now.Sub(*a.LoadedAt).Seconds())+" ago")
	}
	if a.Algorithm != "" {
		remarks = append(remarks, "is "+a.Algorithm)
	}
	if a.Outdated {
		remarks = append(remarks, "by another build: load it again to replace it")
	}
	if a.Why != "" {
		return append(remarks, a.Why)
	}
	if a.Summary != "" && a.LoadedAt == nil {
		remarks = append(remarks, a.Summary)
	}
	return remarks
}

// ccPrefix is a prefix that was given an algorithm, and perhaps a rate.
type ccPrefix struct {
	route.Use
	RateBps int64 `json:"rate_bits_per_second,omitempty"`
}

// ccUses are the prefixes of this network namespace.
func ccUses() ([]ccPrefix, error) {
	uses, err := routeTable().CongestionControlUses()
	if err != nil {
		return nil, err
	}
	all := make([]ccPrefix, len(uses))
	for i, use := range uses {
		all[i].Use = use
		rates, err := cc.NewHost().Rates(use.Algorithm)
		if err != nil { // has none, or is for root to see
			continue
		}
		prefixes, err := rates.Prefixes()
		rates.Close()
		if err != nil {
			return nil, err
		}
		for _, p := range prefixes {
			if p.Prefix == use.Prefix {
				all[i].RateBps = p.Rate.BitsPerSecond
			}
		}
	}
	return all, nil
}

func writeUses(w io.Writer, uses []ccPrefix) {
	if len(uses) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%-40s  %s\n", "DESTINATIONS", "USE")
	for _, use := range uses {
		fmt.Fprintf(w, "%-40s  %s", use.Prefix, use.Algorithm)
		if use.RateBps > 0 {
			fmt.Fprintf(w, ", together at %s", units.Rate(use.RateBps))
		}
		fmt.Fprintln(w)
	}
}
