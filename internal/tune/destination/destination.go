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

	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/cc"
	"longhaul/internal/tune/route"
	"longhaul/internal/words/units"
)

// Host is this machine, in the calling thread's network namespace.
type Host struct {
	CC     *cc.Host
	Routes *route.Table
}

// NewHost returns this machine. by claims what is changed.
func NewHost(by ledger.By) *Host {
	return &Host{CC: cc.NewHost(by), Routes: &route.Table{Ledger: ledger.DefaultDir, By: by}}
}

// DryRun makes the host only say what would change.
func (h *Host) DryRun() {
	h.CC.DryRun, h.Routes.DryRun = true, true
}

// open opens the ledger.
func (h *Host) open() (*ledger.Book, error) { return ledger.Open(h.Routes.Ledger, h.Routes.DryRun) }

// Uses returns the prefixes of this network namespace with a congestion control of
// longhaul's.
func (h *Host) Uses() ([]route.Use, error) {
	settings, err := h.Routes.Settings()
	if err != nil {
		return nil, err
	}
	uses := []route.Use{}
	for _, s := range settings {
		if use, ok := s.Use(); ok {
			uses = append(uses, use)
		}
	}
	return uses, nil
}

// WriteUses writes prefixes as a table, or nothing without prefixes.
func WriteUses(w io.Writer, uses []route.Use) {
	if len(uses) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%-30s  %-28s  %s\n", "DESTINATIONS", "USE", "SET BY")
	for _, use := range uses {
		text := use.Algorithm + rateText(use.RateBps)
		fmt.Fprintf(w, "%-30s  %-28s  %s\n", use.Prefix, text, strings.Join(use.Owners, ", "))
	}
}

func rateText(bps int64) string {
	if bps == 0 {
		return ""
	}
	return fmt.Sprintf(", together at %s", units.Rate(bps))
}

// Used is the outcome of [Host.Use] for one prefix.
type Used struct {
	Use       route.Use      `json:"use"`
	Changed   bool           `json:"changed"` // false: already so
	Effective bool           `json:"effective"`
	Elsewhere []netip.Prefix `json:"elsewhere,omitempty"` // longer prefixes with routes of their own
	Notes     []string       `json:"notes,omitempty"`     // exceptions, and loaded algorithms
}

// WriteText writes a line about the outcome, without the notes.
func (u Used) WriteText(w io.Writer) error {
	already := ""
	if !u.Changed {
		already = " already"
	}
	_, err := fmt.Fprintf(w, "new connections to %s use %s%s%s\n", u.Use.Prefix, u.Use.Algorithm, already, rateText(u.Use.RateBps))
	return err
}

// Use sets a congestion control for new connections to prefixes, and claims it. It is
// locked: an application that asks for another one gets EPERM. rate, unless 0, is in
// bits per second, shared by the connections to each prefix. Use loads an algorithm of
// longhaul's that is not loaded. Of several prefixes it skips those without a route,
// if another has one.
func (h *Host) Use(ctx context.Context, prefixes []netip.Prefix, name string, bps int64) ([]Used, error) {
	value := route.Value{Name: name, Locked: true, RateBps: bps}
	results, err := h.SetRoutes(ctx, prefixes, route.Change{Metrics: map[route.Metric]route.Value{route.CongestionControl: value}})
	if err != nil {
		return nil, err
	}
	var all []Used
	for _, r := range results {
		use, _ := r.Route.Use()
		all = append(all, Used{use, r.Changed, r.Effective, r.Elsewhere, r.Notes})
	}
	return all, nil
}

// AlgorithmError is an error of loading or unloading a congestion control. Other errors
// are of routes and rates.
type AlgorithmError struct{ Err error }

func (e *AlgorithmError) Error() string { return e.Err.Error() }
func (e *AlgorithmError) Unwrap() error { return e.Err }

// ensureLoaded loads an algorithm of longhaul's that the kernel does not have.
func (h *Host) ensureLoaded(ctx context.Context, book *ledger.Book, name string) (note string, err error) {
	available, err := cc.Available()
	if err != nil || slices.Contains(available, name) {
		return "", err
	}
	result, err := h.CC.HoldIn(ctx, book, name)
	if err != nil {
		return "", &AlgorithmError{err}
	}
	return strings.Join(append([]string{name + " was not loaded, and is now"}, result.Notes...), "; "), nil
}

// RouteResult is the outcome of [Host.SetRoutes] for one prefix.
type RouteResult struct {
	Route     route.Setting  `json:"route"`
	Changed   bool           `json:"changed"` // false: already so
	Effective bool           `json:"effective"`
	Elsewhere []netip.Prefix `json:"elsewhere,omitempty"` // longer prefixes with routes of their own
	Notes     []string       `json:"notes,omitempty"`     // limits of the metrics
}

// SetRoutes sets the metrics of a change for prefixes. It loads a congestion control of
// longhaul's that is not loaded. Of several prefixes it skips those without a route, if
// another has one.
func (h *Host) SetRoutes(ctx context.Context, prefixes []netip.Prefix, c route.Change) (all []RouteResult, err error) {
	for _, prefix := range prefixes {
		c.Prefix = prefix
		if err := c.Check(); err != nil {
			return nil, err
		}
	}
	if err := route.CheckPrivilege(); err != nil {
		return nil, err
	}
	book, err := h.open()
	if err != nil {
		return nil, err
	}
	defer book.Close()
	var notes []string
	name := c.Metrics[route.CongestionControl].Name
	if name != "" {
		note, err := h.ensureLoaded(ctx, book, name)
		if err != nil {
			return nil, err
		}
		if note != "" {
			notes = append(notes, note)
		}
	}
	defer func() {
		// After a failure nothing may need the algorithm, and a new claim replaces others.
		if releaseErr := h.CC.ReleaseIn(context.WithoutCancel(ctx), book); releaseErr != nil {
			err = errors.Join(err, releaseErr)
		}
	}()
	for i, prefix := range prefixes {
		c.Prefix = prefix
		result, err := h.setRoute(book, c)
		// Many hosts have no default route of one family.
		if errors.Is(err, route.ErrNoRoute) && (len(all) > 0 || i < len(prefixes)-1) {
			continue
		}
		if err != nil {
			return all, err
		}
		result.Notes = append(notes, result.Notes...)
		notes = nil
		all = append(all, result)
	}
	return all, nil
}

// setRoute sets the rate before the route, so that no connection lacks it.
func (h *Host) setRoute(book *ledger.Book, c route.Change) (RouteResult, error) {
	before, err := h.inForce(book, c.Prefix)
	if err != nil {
		return RouteResult{}, err
	}
	want, named := c.Metrics[route.CongestionControl]
	rateChanged := false
	if named {
		rateChanged, err = h.setRate(c.Prefix, before, want)
		if err != nil {
			return RouteResult{}, err
		}
	}
	result, err := h.Routes.SetIn(book, c)
	if err != nil {
		if named {
			_, rateErr := h.setRate(c.Prefix, want, before)
			err = errors.Join(err, rateErr)
		}
		return RouteResult{}, err
	}
	notes := append(c.Notes(), result.Notes()...)
	return RouteResult{result.Setting, result.Changed || rateChanged, result.Effective, result.Elsewhere, notes}, nil
}

// inForce returns the congestion control that the ledger has for a prefix.
func (h *Host) inForce(book *ledger.Book, prefix netip.Prefix) (route.Value, error) {
	settings, err := h.Routes.SettingsIn(book)
	if err != nil {
		return route.Value{}, err
	}
	for _, s := range settings {
		if s.Prefix == prefix {
			return s.Values()[route.CongestionControl], nil
		}
	}
	return route.Value{}, nil
}

// setRate replaces a prefix's rate.
func (h *Host) setRate(prefix netip.Prefix, before, after route.Value) (changed bool, err error) {
	if before.RateBps == after.RateBps && (before.Name == after.Name || after.RateBps == 0) {
		return false, nil
	}
	if after.RateBps > 0 && (!h.CC.DryRun || cc.IsAvailable(after.Name)) {
		rates, err := h.CC.Rates(after.Name)
		if err != nil {
			return false, err
		}
		defer rates.Close()
		if !h.CC.DryRun {
			if _, err := rates.SetPrefix(prefix, cc.Rate{BitsPerSecond: after.RateBps}); err != nil {
				return false, err
			}
		}
	}
	if before.RateBps > 0 && (before.Name != after.Name || after.RateBps == 0) && !h.CC.DryRun {
		rates, err := h.CC.Rates(before.Name)
		if err != nil { // no longer loaded
			return true, nil
		}
		defer rates.Close()
		return true, rates.ClearPrefix(prefix)
	}
	return true, nil
}

// Undone is the outcome of [Host.UndoIn].
type Undone struct {
	Routes  []route.Undone
	Default *cc.UndoneDefault // nil if no claim on the default was chosen
}

// UndoIn takes back the chosen claims on routes and on the default of this network
// namespace. It returns the algorithms that the claims needed, for [cc.Host.UndoIn].
func (h *Host) UndoIn(book *ledger.Book, choose func(ledger.Key, ledger.Claim) bool) (undone Undone, released []string, err error) {
	undone.Routes, err = h.Routes.UndoIn(book, choose)
	for _, u := range undone.Routes {
		for _, m := range u.Metrics {
			for _, c := range m.Taken {
				if c.Needs != "" {
					released = append(released, c.Needs)
				}
			}
			if m.Metric != route.CongestionControl {
				continue
			}
			now, rateErr := h.inForce(book, u.Prefix)
			if rateErr == nil {
				_, rateErr = h.setRate(u.Prefix, m.Was, now)
			}
			err = errors.Join(err, rateErr)
		}
	}
	if err != nil {
		return undone, released, err
	}
	undone.Default, err = h.CC.UndoDefaultIn(book, choose)
	if undone.Default != nil {
		for _, c := range undone.Default.Taken {
			released = append(released, c.Needs)
		}
	}
	return undone, released, err
}
