//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"longhaul/internal/cc"
	"longhaul/internal/remedy"
	"longhaul/internal/route"
	"longhaul/internal/units"
)

// routeTable is this network namespace's main routing table.
func routeTable() *route.Table { return &route.Table{Undo: cc.DefaultUndo} }

// ccUsed is what use prints as JSON.
type ccUsed struct {
	Use       *route.Use     `json:"use,omitempty"`
	Undone    *route.Use     `json:"undone,omitempty"`
	Changed   bool           `json:"changed"`
	Effective *bool          `json:"effective,omitempty"`
	Elsewhere []netip.Prefix `json:"elsewhere,omitempty"` // longer prefixes with routes of their own
	RateBps   int64          `json:"rate_bits_per_second,omitempty"`
	Notes     []string       `json:"notes,omitempty"`
}

func newCCUse(env *env) *cobra.Command {
	var (
		asJSON, undo bool
		to, rate     string
	)
	cmd := &cobra.Command{
		Use:   "use --to PREFIX NAME",
		Short: "Use an algorithm towards some destinations, whatever program sends",
		Long: `use gives an algorithm to all new connections from this host to a prefix, by
the route's metric: no program needs to know. The choice is locked; a program
that asks for another algorithm is refused. One of longhaul's own is loaded if
it is not yet.

The prefix's own route is changed; if it has none, one is made with the next
hop that covers it now. --undo puts everything back, and so does cc unload.

brutal needs to be told a --rate, which all connections to the prefix share.`,
		Example: `  longhaul cc use --to 203.0.113.0/24 haul
  longhaul cc use --to 2001:db8:5::/48 brutal --rate 200Mbit
  longhaul cc use --to default haul
  longhaul cc use --to 203.0.113.0/24 --undo`,
		RunE: func(cmd *cobra.Command, args []string) error {
			prefixes, err := parseDestination(to)
			switch {
			case err != nil:
				return usageError(err)
			case undo && (len(args) > 1 || rate != ""):
				return usageError(remedy.New(errors.New("--undo wants the prefix and nothing else"), "see "+cmd.CommandPath()+" --help"))
			case !undo && len(args) != 1:
				return usageError(remedy.New(errors.New("longhaul cc use wants the name of one algorithm"), "see longhaul cc list"))
			}
			bps := int64(0)
			if rate != "" {
				r, err := units.ParseRate(rate)
				if err != nil {
					return usageError(remedy.New(err, "write it like 200Mbit"))
				}
				bps = int64(r)
			}
			if undo {
				return ccUndo(cmd, env, prefixes, args, asJSON)
			}
			return ccUse(cmd, env, prefixes, args[0], bps, asJSON)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&to, "to", "", "destinations: a `PREFIX` like 203.0.113.0/24, an address, or default")
	flags.StringVar(&rate, "rate", "", "rate that the connections share, of IP packets (only brutal)")
	flags.BoolVar(&undo, "undo", false, "put the route back as it was")
	flags.BoolVar(&asJSON, "json", false, "print the outcome as JSON")
	return cmd
}

// parseDestination reads what --to says. The word default stands for both
// families.
func parseDestination(s string) ([]netip.Prefix, error) {
	if s == "" {
		return nil, remedy.New(errors.New("longhaul cc use wants to know for which destinations"), "add --to PREFIX, like --to 203.0.113.0/24")
	}
	if s == "default" {
		return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}, nil
	}
	prefix, err := parsePrefix(s)
	if err != nil {
		return nil, err
	}
	return []netip.Prefix{prefix}, nil
}

// parsePrefix reads a prefix, or an address that stands for itself alone.
func parsePrefix(s string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(s); err == nil && address.Zone() == "" {
		address = address.Unmap()
		return netip.PrefixFrom(address, address.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		return prefix, remedy.New(fmt.Errorf("%q is no prefix", s), "write it like 203.0.113.0/24 or 2001:db8::/32")
	}
	if prefix.Addr().Is4In6() {
		return prefix, remedy.New(fmt.Errorf("%s is an IPv4 prefix in IPv6 form", prefix), "write it as IPv4")
	}
	if prefix != prefix.Masked() {
		return prefix, remedy.New(fmt.Errorf("%s has bits beyond its length", prefix), fmt.Sprintf("did you mean %s?", prefix.Masked()))
	}
	return prefix, nil
}

func ccUse(cmd *cobra.Command, env *env, prefixes []netip.Prefix, name string, bps int64, asJSON bool) error {
	host := cc.NewHost()
	note, err := ensureLoaded(cmd, host, name)
	if err != nil {
		return ccError(err)
	}
	var all []ccUsed
	for _, prefix := range prefixes {
		used, err := useOne(host, prefix, name, bps)
		// A host may well have no default route of one family.
		if errors.Is(err, route.ErrNoRoute) && len(prefixes) > 1 && (len(all) > 0 || prefix != prefixes[len(prefixes)-1]) {
			continue
		}
		if err != nil {
			return useError(err)
		}
		if note != "" {
			used.Notes = append([]string{note}, used.Notes...)
			note = ""
		}
		all = append(all, used)
	}
	if asJSON {
		return json.NewEncoder(env.stdout).Encode(map[string]any{"uses": all})
	}
	for _, used := range all {
		for _, n := range used.Notes {
			fmt.Fprintln(env.stderr, "longhaul: note:", n)
		}
		is := "use " + used.Use.Algorithm
		if !used.Changed {
			is += " already"
		}
		if used.RateBps > 0 {
			is += fmt.Sprintf(", together at %s", units.Rate(used.RateBps))
		}
		fmt.Fprintf(env.stdout, "new connections to %s %s\n", used.Use.Prefix, is)
	}
	return nil
}

// ensureLoaded loads one of ours that the kernel does not have.
func ensureLoaded(cmd *cobra.Command, host *cc.Host, name string) (note string, err error) {
	available, err := cc.Available()
	if err != nil || slices.Contains(available, name) {
		return "", err
	}
	result, err := host.Load(cmd.Context(), name, name)
	if err != nil {
		return "", err
	}
	return strings.Join(append([]string{name + " was not loaded, and is now"}, result.Notes...), "; "), nil
}

// useOne tells the rate before the route, so that no connection goes without.
func useOne(host *cc.Host, prefix netip.Prefix, name string, bps int64) (used ccUsed, err error) {
	if bps > 0 {
		rates, err := host.Rates(name)
		if err != nil {
			return ccUsed{}, err
		}
		defer rates.Close()
		wasNew, err := rates.SetPrefix(prefix, cc.Rate{BitsPerSecond: bps})
		if err != nil {
			return ccUsed{}, err
		}
		defer func() {
			if err != nil && wasNew {
				err = errors.Join(err, rates.ClearPrefix(prefix))
			}
		}()
	}
	result, err := routeTable().UseCongestionControl(prefix, name)
	if err != nil {
		return ccUsed{}, err
	}
	used = ccUsed{Use: &result.Use, Changed: result.Changed || bps > 0, Effective: &result.Effective, Elsewhere: result.Elsewhere, RateBps: bps}
	if len(result.Elsewhere) > 0 {
		used.Notes = append(used.Notes, elsewhereNote(prefix, result.Elsewhere))
	}
	if !result.Effective {
		used.Notes = append(used.Notes, ineffectiveNote(prefix))
	}
	return used, nil
}

func useError(err error) error {
	switch {
	case errors.Is(err, route.ErrExpires):
		return remedy.New(err, "use a longer prefix, such as 2000::/3 instead of default")
	case errors.Is(err, route.ErrNoRoute):
		return remedy.New(err, "add one with ip route, and try again")
	case errors.Is(err, cc.ErrNoRates):
		return remedy.New(err, "leave --rate out, or use brutal")
	}
	return ccError(err)
}

func ccUndo(cmd *cobra.Command, env *env, prefixes []netip.Prefix, names []string, asJSON bool) error {
	var all []ccUsed
	for _, prefix := range prefixes {
		uses, err := routeTable().CongestionControlUses()
		if err != nil {
			return err
		}
		i := slices.IndexFunc(uses, func(u route.Use) bool { return u.Prefix == prefix })
		if i >= 0 && len(names) == 1 && uses[i].Algorithm != names[0] {
			return remedy.New(fmt.Errorf("%s uses %s, not %s", prefix, uses[i].Algorithm, names[0]), "leave the name out")
		}
		if i < 0 && len(prefixes) > 1 {
			continue
		}
		undone, err := undoUse(prefix)
		if errors.Is(err, route.ErrNotUsed) {
			return remedy.New(err, "see longhaul cc list")
		}
		if err != nil {
			return err
		}
		all = append(all, ccUsed{Undone: &undone, Changed: true})
	}
	if asJSON {
		return json.NewEncoder(env.stdout).Encode(map[string]any{"undone": all})
	}
	if len(all) == 0 {
		return remedy.New(errors.New("no congestion control was given to the default routes"), "see longhaul cc list")
	}
	for _, u := range all {
		fmt.Fprintln(env.stdout, undoneLine(*u.Undone))
	}
	return nil
}

// undoUse puts the route back, and takes the rate away that was told with it.
func undoUse(prefix netip.Prefix) (route.Use, error) {
	undone, err := routeTable().UndoCongestionControl(prefix)
	if err != nil {
		return undone, err
	}
	return undone, forgetRate(prefix, undone.Algorithm)
}

// forgetRate takes away the rate that an algorithm was told for a prefix.
func forgetRate(prefix netip.Prefix, algorithm string) error {
	rated, err := cc.NewHost().Rates(algorithm)
	if err != nil { // it has none, or is not loaded any more
		return nil
	}
	defer rated.Close()
	return rated.ClearPrefix(prefix)
}

func undoneLine(u route.Use) string {
	switch {
	case u.Made:
		return fmt.Sprintf("the route to %s is gone again", u.Prefix)
	case u.FormerAlgorithm != "":
		return fmt.Sprintf("new connections to %s use %s again", u.Prefix, u.FormerAlgorithm)
	}
	return fmt.Sprintf("new connections to %s use the default again", u.Prefix)
}

// undoUsesOf puts back every route of this network namespace that uses an
// algorithm, or any if the name is empty.
func undoUsesOf(name string) ([]route.Use, error) {
	uses, err := routeTable().CongestionControlUses()
	if err != nil {
		return nil, err
	}
	var undone []route.Use
	for _, use := range uses {
		if name != "" && use.Algorithm != name {
			continue
		}
		if _, err := undoUse(use.Prefix); err != nil {
			return undone, err
		}
		undone = append(undone, use)
	}
	return undone, nil
}
