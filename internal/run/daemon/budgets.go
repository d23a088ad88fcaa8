package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"longhaul/internal/carry/transport"
	"longhaul/internal/run/config"
	"longhaul/internal/tune/cc"
	"longhaul/internal/words/ccnames"
)

// budgetKey is a kind of leg of a tunnel, whose connections share a rate.
type budgetKey struct{ tunnel, kind string }

// budgets are the rates that tunnels' connections share. The tunnel's name is the
// key, so that a reload changes the rate of existing flows.
type budgets struct {
	log  *slog.Logger
	host *cc.Host

	rates  *cc.Rates            // of the loaded algorithm, nil if unknown
	has    map[budgetKey]uint32 // of rates
	opened []*cc.Rates          // all of them: flows use them, also those that an older build has
	said   map[string]bool
}

// budgetsChange is the rates of a configuration before their commit.
type budgetsChange struct {
	of    *budgets
	name  string    // of the algorithm: its first or second one
	rates *cc.Rates // nil if unknown
	has   map[budgetKey]uint32
	made  []uint32              // those of has that are new
	next  map[budgetKey]cc.Rate // to set
	err   error                 // why there are no rates
}

func newBudgets(host *cc.Host, log *slog.Logger) *budgets {
	return &budgets{log: log, host: host, has: map[budgetKey]uint32{}, said: map[string]bool{}}
}

// wantedBudgets returns the configured shared rates of a tunnel's legs, by kind of leg.
func wantedBudgets(s config.Settings) map[string]cc.Rate {
	var wanted map[string]cc.Rate
	for kind, leg := range map[string]config.Leg{transport.LAN: s.LAN, transport.WAN: s.WAN} {
		if ccnames.NeedsRate(leg.CongestionControl) && leg.Rate > 0 {
			if wanted == nil {
				wanted = map[string]cc.Rate{}
			}
			wanted[kind] = cc.Rate{BitsPerSecond: int64(leg.Rate)}
		}
	}
	return wanted
}

// errSeveralRated is the error of a configuration whose tunnels name several algorithms that need a rate.
var errSeveralRated = errors.New("the configuration names several algorithms that need a rate")

// prepare finds the loaded brutal: another build may have replaced it.
func (b *budgets) prepare(c *config.Config) *budgetsChange {
	next := &budgetsChange{of: b, rates: b.rates, has: maps.Clone(b.has), next: map[budgetKey]cc.Rate{}}
	rated := slices.DeleteFunc(c.CongestionControls(), func(name string) bool { return !ccnames.NeedsRate(name) })
	switch len(rated) {
	case 0:
		return next
	case 1:
		next.name = rated[0]
	default:
		next.name, next.err = strings.Join(rated, " or "), errSeveralRated
		return next
	}
	now, err := b.open(next.name)
	if err != nil {
		next.err = err
	} else if now != b.rates {
		next.rates, next.has = now, map[budgetKey]uint32{}
	}
	return next
}

// open opens the rates of a loaded algorithm, once: a failed reload has opened them too.
func (b *budgets) open(name string) (*cc.Rates, error) {
	now, err := b.host.Rates(name)
	if err != nil {
		return nil, err
	}
	for _, known := range b.opened {
		if known.Same(now) {
			now.Close()
			return known, nil
		}
	}
	b.opened = append(b.opened, now)
	return now, nil
}

// find returns a budget for each wanted rate of a tunnel, by kind of leg.
func (b *budgetsChange) find(tunnel string, wanted map[string]cc.Rate) (ids map[string]uint32, err error) {
	switch {
	case len(wanted) == 0:
		return nil, nil
	case b.err != nil:
		return nil, b.err
	}
	ids = map[string]uint32{}
	for kind, rate := range wanted {
		key := budgetKey{tunnel, kind}
		id, ok := b.has[key]
		if !ok {
			if id, err = b.rates.NewBudget(rate); err != nil {
				return nil, err
			}
			b.has[key] = id
			b.made = append(b.made, id)
		}
		ids[kind] = id
		b.next[key] = rate
	}
	return ids, nil
}

// share adds the legs' connections to the budgets of their kind, before their first bytes: until then they
// have another congestion control, or brutal without a rate.
func (b *budgetsChange) share(ids map[string]uint32, l *legs, mayBe func(kind string, dialed bool) bool) *legs {
	rates, shared := b.rates, *l
	shared.rates = rates
	shared.early = func(dialed bool) bool {
		for kind := range ids {
			if mayBe(kind, dialed) {
				return true
			}
		}
		return l.early(dialed)
	}
	shared.established = func(fd int, dialed bool) (side, degraded string) {
		side, degraded = l.established(fd, dialed)
		if id := ids[side]; id != 0 {
			if err := rates.Join(uintptr(fd), id); err != nil && degraded == "" {
				degraded = "no share of the tunnel's rate: " + err.Error()
			}
		}
		return side, degraded
	}
	return &shared
}

// without reports a tunnel whose connections cannot share a rate.
func (b *budgetsChange) without(tunnel string, l *legs, err error) *legs {
	missing := transport.Lack{
		What:   fmt.Sprintf("a rate that the flows of %s share with %s; they use another congestion control", tunnel, b.name),
		Remedy: "longhaul cc use " + b.name + " --to DEST --rate RATE (as root), where the next hop is; or give the relay CAP_BPF",
	}
	switch {
	case errors.Is(err, errSeveralRated):
		missing.Remedy = "name one of " + b.name + " in all tunnels"
	case errors.Is(err, cc.ErrNoRates):
		missing.Remedy = "longhaul cc load " + b.name + " (as root), then reload the relay"
	}
	if !b.of.said[tunnel] {
		b.of.said[tunnel] = true
		b.of.log.Warn("cannot have "+missing.What, "error", err, "remedy", missing.Remedy)
	}
	lacking := *l
	lacking.lacks = func() []transport.Lack { return append(slices.Clone(l.lacks()), missing) }
	return &lacking
}

// commit sets the rates, also for existing flows. A removed tunnel keeps its rate while its flows last.
func (b *budgetsChange) commit() {
	b.of.rates, b.of.has = b.rates, b.has
	for key, rate := range b.next {
		if err := b.rates.SetBudget(b.has[key], rate); err != nil {
			b.of.log.Warn("cannot change the shared rate of flows", "tunnel", key.tunnel, "error", err)
		}
	}
}

// abort removes the rates that are new.
func (b *budgetsChange) abort() {
	for _, id := range b.made {
		b.of.remove(b.rates, id)
	}
}

func (b *budgets) remove(from *cc.Rates, id uint32) {
	if err := from.RemoveBudget(id); err != nil {
		b.log.Warn("cannot remove the shared rate of flows", "error", err)
	}
}

// close removes the rates after the last flow.
func (b *budgets) close() {
	for _, id := range b.has {
		b.remove(b.rates, id)
	}
	for _, r := range b.opened {
		r.Close()
	}
}
