// Package destination sets TCP's settings by destination: a congestion control with
// an optional rate, or other metrics of the route to a prefix. It can restore the
// previous settings.
//
// It combines [cc] for algorithms and rates with [route] for routes. Neither imports
// the other.
package destination

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"longhaul/internal/cc"
	"longhaul/internal/display"
	"longhaul/internal/remedy"
	"longhaul/internal/route"
	"longhaul/internal/units"
)

// Host is this machine, in the calling thread's network namespace.
type Host struct {
	CC     *cc.Host
	Routes *route.Table
}

// NewHost returns this machine.
func NewHost() *Host {
	return &Host{CC: cc.NewHost(), Routes: &route.Table{Undo: cc.DefaultUndo}}
}

// ParsePrefixes parses a prefix or a single address. The word default means the default
// routes of both families.
func ParsePrefixes(s string) ([]netip.Prefix, error) {
	if s == "default" {
		return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}, nil
	}
	prefix, err := units.ParsePrefix(s)
	if err != nil {
		return nil, err
	}
	return []netip.Prefix{prefix}, nil
}

// Use is a prefix with a congestion control, and perhaps a rate.
type Use struct {
	route.Use
	RateBps int64 `json:"rate_bits_per_second,omitempty"` // of IP packets; 0: none, or not readable by this user
}

// Uses returns the prefixes of this network namespace that Use gave a congestion
// control.
func (h *Host) Uses() ([]Use, error) {
	uses, err := h.Routes.CongestionControlUses()
	if err != nil {
		return nil, err
	}
	all := make([]Use, len(uses))
	for i, use := range uses {
		all[i].Use = use
		rates, err := h.CC.Rates(use.Algorithm)
		if err != nil { // none, or readable only by root
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

// WriteUses writes prefixes as a table, or nothing without prefixes.
func WriteUses(w io.Writer, uses []Use) {
	if len(uses) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%-40s  %s\n", "DESTINATIONS", "USE")
	for _, use := range uses {
		fmt.Fprintf(w, "%-40s  %s%s\n", use.Prefix, use.Algorithm, rateText(use.RateBps))
	}
}

func rateText(bps int64) string {
	if bps == 0 {
		return ""
	}
	return fmt.Sprintf(", together at %s", units.Rate(bps))
}

// Used is the outcome of [Host.Use] or [Host.Undo] for one prefix.
type Used struct {
	Use       *route.Use     `json:"use,omitempty"`    // nil after Undo
	Undone    *route.Use     `json:"undone,omitempty"` // nil after Use
	Changed   bool           `json:"changed"`          // false: already so
	Effective *bool          `json:"effective,omitempty"`
	Elsewhere []netip.Prefix `json:"elsewhere,omitempty"` // longer prefixes with routes of their own
	RateBps   int64          `json:"rate_bits_per_second,omitempty"`
	Notes     []string       `json:"notes,omitempty"` // exceptions, and loaded algorithms
}

// WriteText writes a line about the outcome, without the notes.
func (u Used) WriteText(w io.Writer) error {
	text := ""
	switch {
	case u.Undone != nil:
		text = u.Undone.UndoneText()
	case u.Changed:
		text = fmt.Sprintf("new connections to %s use %s%s", u.Use.Prefix, u.Use.Algorithm, rateText(u.RateBps))
	default:
		text = fmt.Sprintf("new connections to %s use %s already%s", u.Use.Prefix, u.Use.Algorithm, rateText(u.RateBps))
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

// Use sets a congestion control for new connections to prefixes. rate, unless 0, is in
// bits per second, shared by the connections to each prefix. Use loads an algorithm of
// longhaul's that is not loaded. Of several prefixes it skips those without a route,
// if another has one.
func (h *Host) Use(ctx context.Context, prefixes []netip.Prefix, name string, bps int64) ([]Used, error) {
	note, err := h.ensureLoaded(ctx, name)
	if err != nil {
		return nil, err
	}
	var all []Used
	for i, prefix := range prefixes {
		used, err := h.use(prefix, name, bps)
		// Many hosts have no default route of one family.
		if errors.Is(err, route.ErrNoRoute) && (len(all) > 0 || i < len(prefixes)-1) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if note != "" {
			used.Notes = append([]string{note}, used.Notes...)
			note = ""
		}
		all = append(all, used)
	}
	return all, nil
}

// AlgorithmError is an error of loading or unloading a congestion control. Other errors
// are of routes and rates.
type AlgorithmError struct{ Err error }

func (e *AlgorithmError) Error() string { return e.Err.Error() }
func (e *AlgorithmError) Unwrap() error { return e.Err }

// ensureLoaded loads an algorithm of longhaul's that the kernel does not have.
func (h *Host) ensureLoaded(ctx context.Context, name string) (note string, err error) {
	available, err := cc.Available()
	if err != nil || slices.Contains(available, name) {
		return "", err
	}
	result, err := h.CC.Load(ctx, name, name)
	if err != nil {
		return "", &AlgorithmError{err}
	}
	return strings.Join(append([]string{name + " was not loaded, and is now"}, result.Notes...), "; "), nil
}

// use sets the rate before the route, so that no connection lacks it.
func (h *Host) use(prefix netip.Prefix, name string, bps int64) (used Used, err error) {
	if bps > 0 {
		rates, err := h.CC.Rates(name)
		if err != nil {
			return Used{}, err
		}
		defer rates.Close()
		isNew, err := rates.SetPrefix(prefix, cc.Rate{BitsPerSecond: bps})
		if err != nil {
			return Used{}, err
		}
		defer func() {
			if err != nil && isNew {
				err = errors.Join(err, rates.ClearPrefix(prefix))
			}
		}()
	}
	result, err := h.Routes.UseCongestionControl(prefix, name)
	if err != nil {
		return Used{}, err
	}
	return Used{
		Use: &result.Use, Changed: result.Changed || bps > 0, Effective: &result.Effective, Elsewhere: result.Elsewhere,
		RateBps: bps, Notes: result.Notes(),
	}, nil
}

// Undo undoes [Host.Use] for prefixes. With a name, it refuses a prefix that uses
// another algorithm. Of several prefixes it skips unused ones. A single unused prefix
// is [route.ErrNotUsed].
func (h *Host) Undo(prefixes []netip.Prefix, name string) ([]Used, error) {
	var all []Used
	for _, prefix := range prefixes {
		uses, err := h.Routes.CongestionControlUses()
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(uses, func(u route.Use) bool { return u.Prefix == prefix })
		if i >= 0 && name != "" && uses[i].Algorithm != name {
			return nil, remedy.New(fmt.Errorf("%s uses %s, not %s", prefix, uses[i].Algorithm, name), "leave the name out")
		}
		if i < 0 && len(prefixes) > 1 {
			continue
		}
		undone, err := h.undo(prefix)
		if err != nil {
			return nil, err
		}
		all = append(all, Used{Undone: &undone, Changed: true})
	}
	return all, nil
}

// undo restores the route, and removes its rate.
func (h *Host) undo(prefix netip.Prefix) (route.Use, error) {
	undone, err := h.Routes.UndoCongestionControl(prefix)
	if err != nil {
		return undone, err
	}
	return undone, h.forgetRate(prefix, undone.Algorithm)
}

// forgetRate removes an algorithm's rate for a prefix.
func (h *Host) forgetRate(prefix netip.Prefix, algorithm string) error {
	rates, err := h.CC.Rates(algorithm)
	if err != nil { // no rate, or no longer loaded
		return nil
	}
	defer rates.Close()
	return rates.ClearPrefix(prefix)
}

// UndoAll restores every route of this network namespace that uses an algorithm, or
// all routes if the name is empty.
func (h *Host) UndoAll(name string) ([]route.Use, error) {
	uses, err := h.Routes.CongestionControlUses()
	if err != nil {
		return nil, err
	}
	var undone []route.Use
	for _, use := range uses {
		if name != "" && use.Algorithm != name {
			continue
		}
		if _, err := h.undo(use.Prefix); err != nil {
			return undone, err
		}
		undone = append(undone, use)
	}
	return undone, nil
}

// Unloaded is the outcome of [Host.Unload].
type Unloaded struct {
	Name            string      `json:"name"`
	Outcome         cc.Outcome  `json:"outcome"`
	Connections     int         `json:"connections,omitempty"` // that keep it
	Default         string      `json:"default,omitempty"`     // the restored default; empty: it was not the default
	Undone          []route.Use `json:"undone,omitempty"`
	StillRegistered bool        `json:"still_registered,omitempty"` // by another process that holds it
}

// Unload restores the routes that use an algorithm, and removes it from the kernel.
func (h *Host) Unload(ctx context.Context, name string) (Unloaded, error) {
	undone, err := h.UndoAll(name)
	if err != nil {
		return Unloaded{}, err
	}
	result, err := h.CC.Unload(ctx, name)
	if err != nil {
		return Unloaded{}, &AlgorithmError{err}
	}
	return Unloaded{name, result.Outcome, result.Sockets, result.Default, undone, result.StillRegistered}, nil
}

// WriteText writes a line about the algorithm, and one for each route.
func (u Unloaded) WriteText(w io.Writer) error {
	text := fmt.Sprintf("%s: %s", u.Name, u.Outcome)
	if u.Connections > 0 {
		text += fmt.Sprintf(", %s keep it", display.Plural(u.Connections, "connection"))
	}
	if u.Default != "" {
		text += fmt.Sprintf(", the default is %s again", u.Default)
	}
	if u.StillRegistered {
		text += ", still registered by another process that holds it"
	}
	for _, use := range u.Undone {
		text += "\n" + use.UndoneText()
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

// RouteResult is the outcome of [Host.SetRoute] or [Host.UnsetRoute].
type RouteResult struct {
	Route     route.Setting  `json:"route"`
	Changed   bool           `json:"changed"` // false: already so
	Effective *bool          `json:"effective,omitempty"`
	Elsewhere []netip.Prefix `json:"elsewhere,omitempty"` // longer prefixes with routes of their own
	Notes     []string       `json:"notes,omitempty"`     // limits of the metrics
}

// SetRoute sets metrics of a route. It loads a congestion control of longhaul's that is
// not loaded.
func (h *Host) SetRoute(ctx context.Context, c route.Change) (RouteResult, error) {
	var notes []string
	if name := c.Metrics[route.CongestionControl].Name; name != "" {
		note, err := h.ensureLoaded(ctx, name)
		if err != nil {
			return RouteResult{}, err
		}
		if note != "" {
			notes = append(notes, note)
		}
	}
	result, err := h.Routes.Set(c)
	if err != nil {
		return RouteResult{}, err
	}
	notes = append(append(notes, c.Notes()...), result.Notes()...)
	return RouteResult{result.Setting, result.Changed, &result.Effective, result.Elsewhere, notes}, nil
}

// UnsetRoute restores a route, and removes the rate of its congestion control.
func (h *Host) UnsetRoute(prefix netip.Prefix) (RouteResult, error) {
	undone, err := h.Routes.Unset(prefix)
	if err != nil {
		return RouteResult{}, err
	}
	if done := undone.Metrics[route.CongestionControl]; done != nil {
		err = h.forgetRate(prefix, done.Set.Name)
	}
	return RouteResult{Route: undone, Changed: true}, err
}
