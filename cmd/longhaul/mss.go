//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/display"
	"longhaul/internal/kernel"
	"longhaul/internal/mss"
	"longhaul/internal/remedy"
	"longhaul/internal/units"
)

func newMSS(env *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mss",
		Short: "Segment size: raise or clamp the MSS of connections through this host",
		Long: `mss changes the maximum segment size in the SYNs of TCP connections that pass a
device of this host, forwarded or its own. A rule names the direction of the
data whose segments it enlarges or shrinks. It stays until clear or a reboot.`,
		Example: `  longhaul mss set --dev eth0 --toward 203.0.113.0/24 --raise 1460
  longhaul mss set --dev tun0 --clamp-to-pmtu
  longhaul mss show
  longhaul mss clear --dev eth0`,
		Args: cobra.ArbitraryArgs,
		RunE: needCommand,
	}
	cmd.AddCommand(newMSSSet(env), newMSSShow(env), newMSSClear(env))
	return cmd
}

// mssData are the flags that select a rule's data.
type mssData struct {
	device       string
	toward, from prefixFlag
	port         uint16
}

func (d *mssData) register(flags *pflag.FlagSet) {
	flags.StringVar(&d.device, "dev", "", "the `DEVICE` that the connections pass")
	flags.Var(&d.toward, "toward", "data that is sent to this `PREFIX`")
	flags.Var(&d.from, "from", "data that comes from this `PREFIX`")
	flags.Uint16Var(&d.port, "port", 0, "only connections from or to this TCP port")
}

// prefixFlag is a prefix, or a single address.
type prefixFlag struct{ netip.Prefix }

func (p *prefixFlag) Type() string { return "prefix" }

func (p *prefixFlag) String() string {
	if !p.IsValid() {
		return ""
	}
	return p.Prefix.String()
}

func (p *prefixFlag) Set(s string) (err error) {
	p.Prefix, err = units.ParsePrefix(s)
	if fix := remedy.Of(err); fix != "" { // flags have no hints of their own
		return fmt.Errorf("%w: %s", err, fix)
	}
	return err
}

// mssError adds the hint to an error.
func mssError(err error) error {
	var lacking *kernel.ErrUnsupported
	switch {
	case err == nil || remedy.Of(err) != "":
		return err
	case errors.As(err, &lacking):
		return remedy.New(err, "for connections of this host alone, longhaul route set PREFIX --advmss needs no BPF")
	case errors.Is(err, mss.ErrNoDevice):
		return remedy.New(err, "see ip link; for a device of another network namespace, add --netns NAME")
	}
	return err
}

func newMSSShow(env *env) *cobra.Command {
	var (
		asJSON, all bool
		namespace   string
	)
	cmd := &cobra.Command{
		Use:   "show",
		Short: "List the rules, with each one's matches and last change",
		Long: `show lists the rules in the order in which the kernel tries them: the first that
matches a SYN decides. A rule changes no SYN that already has the wanted MSS,
has no MSS, or is signed (MD5, TCP-AO).`,
		Example: `  longhaul mss show
  longhaul mss show --json | jq '.rules[] | {device, matched, rewritten}'`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := enterNamespace(namespace); err != nil {
				return err
			}
			rules, err := mss.NewHost().Show(all)
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
	flags.BoolVar(&all, "all", false, "list the rules of all network namespaces")
	namespaceFlag(flags, &namespace)
	return cmd
}

func newMSSClear(env *env) *cobra.Command {
	var (
		asJSON, all bool
		namespace   string
		data        mssData
	)
	cmd := &cobra.Command{
		Use:   "clear",
		Short: "Remove rules, and with a device's last rule the program",
		Long: `clear removes the rules that match all the flags given; without flags those of
every device. It also removes the leftovers of an interrupted command or of a
deleted device.`,
		Example: `  longhaul mss clear --dev eth0 --toward 203.0.113.0/24
  longhaul mss clear
  longhaul mss clear --all`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := enterNamespace(namespace); err != nil {
				return err
			}
			flags := cmd.Flags()
			picky := flags.Changed("dev") || flags.Changed("toward") || flags.Changed("from") || flags.Changed("port")
			result, err := mss.NewHost().Clear(cmd.Context(), all, func(r mss.Rule, _ uint32) bool {
				return (!flags.Changed("dev") || r.Device == data.device) &&
					(!flags.Changed("toward") || r.Toward == data.toward.Prefix) &&
					(!flags.Changed("from") || r.From == data.from.Prefix) &&
					(!flags.Changed("port") || r.Port == data.port)
			})
			if err != nil {
				return mssError(err)
			}
			if picky && len(result.Rules) == 0 {
				return remedy.New(errors.New("no rule matches these flags"), "see longhaul mss show")
			}
			if asJSON {
				return json.NewEncoder(env.stdout).Encode(result)
			}
			return result.WriteText(env.stdout)
		},
	}
	flags := cmd.Flags()
	data.register(flags)
	flags.BoolVar(&asJSON, "json", false, "print what was removed as JSON")
	flags.BoolVar(&all, "all", false, "in all network namespaces, deleted ones included")
	namespaceFlag(flags, &namespace)
	return cmd
}
