//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/mss"
	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
)

func newMSS(env *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mss",
		Short: "Segment size: raise or clamp the MSS of connections through this host",
		Long: `mss changes the maximum segment size in the SYNs of TCP connections that pass a
device of this host, forwarded or its own. A rule names the direction of the
data whose segments it enlarges or shrinks. It stays until undo or a reboot.`,
		Example: `  longhaul mss set --dev eth0 --to 203.0.113.0/24 --raise 1460
  longhaul mss set --dev tun0 --clamp-to-pmtu
  longhaul mss list
  longhaul mss undo --dev eth0`,
		Args: cobra.ArbitraryArgs,
		RunE: needCommand,
	}
	cmd.AddCommand(newMSSSet(env), newMSSList(env), newMSSUndo(env))
	return cmd
}

// mssData are the flags that select a rule's data.
type mssData struct {
	device, to, from string
	port             uint16
}

func (d *mssData) register(flags *pflag.FlagSet) {
	flags.StringVar(&d.device, "dev", "", "the `DEVICE` that the connections pass")
	flags.StringVar(&d.to, "to", "", "data that is sent there: a prefix, address or host name, `DEST`")
	flags.StringVar(&d.from, "from", "", "data that comes from there, `DEST`")
	flags.Uint16Var(&d.port, "port", 0, "only connections from or to this TCP `PORT`")
}

// rules returns a rule without an action for each pair of prefixes of one IP version.
func (d *mssData) rules(ctx context.Context) ([]mss.Rule, error) {
	to, err := mssPrefixes(ctx, "to", d.to)
	if err != nil {
		return nil, err
	}
	from, err := mssPrefixes(ctx, "from", d.from)
	if err != nil {
		return nil, err
	}
	var rules []mss.Rule
	for _, t := range to {
		for _, f := range from {
			r := mss.Rule{Device: d.device, To: t, From: f, Port: d.port}
			if !t.IsValid() || !f.IsValid() || t.Addr().Is4() == f.Addr().Is4() {
				rules = append(rules, r)
			}
		}
	}
	if len(rules) == 0 {
		return nil, usageError(fmt.Errorf("data from %s never goes to %s: use prefixes of one IP version", d.from, d.to))
	}
	return rules, nil
}

// mssPrefixes parses a DEST; the zero prefix is any.
func mssPrefixes(ctx context.Context, flag, text string) ([]netip.Prefix, error) {
	prefixes, err := parseDestinations(ctx, flag, text)
	if len(prefixes) == 0 {
		prefixes = []netip.Prefix{{}}
	}
	return prefixes, err
}

// mssError adds the hint to an error.
func mssError(err error) error {
	var lacking *kernel.ErrUnsupported
	switch {
	case err == nil || remedy.Of(err) != "":
		return err
	case errors.As(err, &lacking):
		return remedy.New(err, "for connections of this host alone, longhaul route set --to DEST --advmss needs no BPF")
	case errors.Is(err, mss.ErrNoDevice):
		return remedy.New(err, "see ip link; for a device of another network namespace, add --netns NAME")
	}
	return err
}

func newMSSList(env *env) *cobra.Command {
	var (
		asJSON    bool
		namespace string
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the rules, with each one's matches, last change and owner",
		Long: `list lists the rules in the order in which the kernel tries them: the first that
matches a SYN decides. A rule changes no SYN that already has the wanted MSS,
has no MSS, or is signed (MD5, TCP-AO). longhaul host list has the rules of all
network namespaces.`,
		Example: `  longhaul mss list
  longhaul mss list --json | jq '.rules[] | {device, matched, rewritten}'`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := enterNamespace(namespace); err != nil {
				return err
			}
			rules, err := mss.NewHost(env.by()).List()
			if err != nil {
				return mssError(err)
			}
			if asJSON {
				return display.WriteJSON(env.stdout, map[string]any{"rules": append([]mss.Status{}, rules...)})
			}
			for _, r := range rules {
				if err := r.WriteText(env.stdout); err != nil {
					return err
				}
			}
			if len(rules) == 0 {
				fmt.Fprintln(env.stdout, "no rules")
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&asJSON, "json", false, "print everything as JSON")
	namespaceFlag(flags, &namespace)
	return cmd
}

func newMSSUndo(env *env) *cobra.Command {
	var (
		f    undoFlags
		data mssData
	)
	cmd := &cobra.Command{
		Use:   "undo [--dev DEVICE] [--to DEST] [--from DEST] ...",
		Short: "Take rules back, and with a device's last rule the program",
		Long: `undo takes back your rules that match all the flags given. A rule of another
owner for the same data is in force again. Without flags it lists all rules in
this network namespace, of all owners, and asks. It also removes the leftovers
of an interrupted command or of a deleted device.`,
		Example: `  longhaul mss undo --dev eth0 --to 203.0.113.0/24
  longhaul mss undo --yes`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rules, err := data.rules(cmd.Context())
			if err != nil {
				return err
			}
			if err := f.enter(env); err != nil {
				return err
			}
			device := ""
			if data.device != "" {
				if device, err = mss.DeviceKey(data.device); err != nil {
					return mssError(err)
				}
			}
			return f.undo(cmd, env, undoing{
				named: data != mssData{},
				which: func(k ledger.Key, c ledger.Claim) bool {
					return k.Kind == ledger.MSS && (device == "" || k.Name == device) &&
						slices.ContainsFunc(rules, func(r mss.Rule) bool { return r.Selects(c) })
				},
			})
		},
	}
	data.register(cmd.Flags())
	f.register(cmd.Flags())
	return cmd
}
