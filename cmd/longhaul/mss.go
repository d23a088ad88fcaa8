//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/display"
	"longhaul/internal/kernel"
	"longhaul/internal/mss"
	"longhaul/internal/remedy"
)

func newMSS(env *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mss",
		Short: "Segment size: raise or clamp the MSS of connections through this host",
		Long: `mss changes the maximum segment size in the SYNs of TCP connections that pass a
device of this host, forwarded or its own. A rule is named by the direction of
the data that it makes larger or smaller. It stays until clear or a reboot.`,
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

// mssData are the flags that say for which data a rule is.
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

// prefixFlag is a prefix, or an address that stands for itself alone.
type prefixFlag struct{ netip.Prefix }

func (p *prefixFlag) Type() string { return "prefix" }

func (p *prefixFlag) String() string {
	if !p.IsValid() {
		return ""
	}
	return p.Prefix.String()
}

func (p *prefixFlag) Set(s string) (err error) {
	p.Prefix, err = parsePrefix(s)
	if fix := remedy.Of(err); fix != "" { // flags have no hints of their own
		return fmt.Errorf("%w: %s", err, fix)
	}
	return err
}

// mssError adds what to do about an error.
func mssError(err error) error {
	var lacking *kernel.ErrUnsupported
	switch {
	case err == nil:
		return nil
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
		Short: "List the rules, how often each matched, and what it last changed",
		Long: `show lists the rules in the order in which they are tried: the first that
matches a SYN decides. A rule that matched more SYNs than it changed met some
that were as wanted already, had no MSS, or were signed (MD5, TCP-AO).`,
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
				return writeMSSJSON(env.stdout, rules)
			}
			for _, r := range rules {
				writeRule(env.stdout, r)
			}
			if len(rules) == 0 {
				fmt.Fprintln(env.stdout, "no rules")
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&asJSON, "json", false, "print everything as JSON")
	flags.BoolVar(&all, "all", false, "the rules of all network namespaces")
	namespaceFlag(flags, &namespace)
	return cmd
}

// mssStatus is a rule as JSON has it.
type mssStatus struct {
	mss.Status
	LastAgoSeconds *float64 `json:"last_ago_seconds,omitempty"`
}

func writeMSSJSON(w io.Writer, rules []mss.Status) error {
	all := []mssStatus{}
	for _, r := range rules {
		s := mssStatus{Status: r}
		if r.Rewritten > 0 {
			seconds := r.LastAgo.Seconds()
			s.LastAgoSeconds = &seconds
		}
		all = append(all, s)
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(map[string]any{"rules": all})
}

// writeRule prints two lines about a rule, or three if it is not in force.
func writeRule(w io.Writer, r mss.Status) {
	if r.Action == "" {
		fmt.Fprintf(w, "%s  %s\n", deviceText(r.Rule), r.Problem)
		return
	}
	fmt.Fprintf(w, "%s  %s\n", deviceText(r.Rule), ruleText(r.Rule))
	fmt.Fprintf(w, "    matched %s, changed %d", display.Plural(int(r.Matched), "SYN"), r.Rewritten)
	if r.Rewritten > 0 {
		fmt.Fprintf(w, "; the last %s ago: %d -> %d", display.Age(r.LastAgo.Seconds()), r.LastOld, r.LastNew)
	}
	fmt.Fprintln(w)
	if r.Problem != "" {
		fmt.Fprintf(w, "    %s\n", r.Problem)
	}
}

// deviceText is the device of a rule. That of another network namespace, or one
// that is gone, has no name here.
func deviceText(r mss.Rule) string {
	if r.Device == "" {
		return "(not here)"
	}
	return r.Device
}

// ruleText says what a rule does, without its device.
func ruleText(r mss.Rule) string {
	var b strings.Builder
	switch r.Action {
	case mss.Raise:
		fmt.Fprintf(&b, "raise to %d", r.MSS)
	case mss.Clamp:
		fmt.Fprintf(&b, "clamp to %d", r.MSS)
	case mss.ClampToRoute:
		b.WriteString("clamp to the route")
	case mss.ClampToPMTU:
		b.WriteString("clamp to the path MTU")
	}
	b.WriteString(": data")
	if r.From.IsValid() {
		fmt.Fprintf(&b, " from %s", r.From)
	}
	if r.Toward.IsValid() {
		fmt.Fprintf(&b, " toward %s", r.Toward)
	}
	if !r.From.IsValid() && !r.Toward.IsValid() {
		b.WriteString(" both ways")
	}
	if r.Port != 0 {
		fmt.Fprintf(&b, ", port %d", r.Port)
	}
	return b.String()
}

func newMSSClear(env *env) *cobra.Command {
	var (
		asJSON, all bool
		namespace   string
		data        mssData
	)
	cmd := &cobra.Command{
		Use:   "clear",
		Short: "Remove rules; with the last of a device all that was attached",
		Long: `clear removes the rules that fit all the flags given; without flags those of
every device. It also removes what a command that did not come to its end, or
a device that is gone, has left.`,
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
				return remedy.New(errors.New("no rule fits these flags"), "see longhaul mss show")
			}
			if asJSON {
				return json.NewEncoder(env.stdout).Encode(result)
			}
			for _, r := range result.Rules {
				fmt.Fprintf(env.stdout, "cleared %s  %s\n", deviceText(r), ruleText(r))
			}
			if result.Leftovers > 0 {
				fmt.Fprintf(env.stdout, "cleared what was left of %s\n", display.Plural(result.Leftovers, "device"))
			}
			if len(result.Rules) == 0 && result.Leftovers == 0 {
				fmt.Fprintln(env.stdout, "no rules")
			}
			return nil
		},
	}
	flags := cmd.Flags()
	data.register(flags)
	flags.BoolVar(&asJSON, "json", false, "print what was removed as JSON")
	flags.BoolVar(&all, "all", false, "in all network namespaces, those that are gone included")
	namespaceFlag(flags, &namespace)
	return cmd
}
