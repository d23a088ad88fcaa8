package daemon

import (
	"errors"
	"fmt"
	"log/slog"
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

	name  string    // of the loaded algorithm: its first or second one
	rates *cc.Rates // of the loaded algorithm, nil if unknown
	left  []*cc.Rates
	has   map[budgetKey]uint32
	next  map[budgetKey]cc.Rate // set by keep
	err   error                 // why there are no rates
	said  map[string]bool
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

// begin forgets rates that keep did not set, and finds the loaded brutal: another
// build may have replaced it.
func (b *budgets) begin(c *config.Config) {
	b.next, b.err = map[budgetKey]cc.Rate{}, nil
	rated := slices.DeleteFunc(c.CongestionControls(), func(name string) bool { return !ccnames.NeedsRate(name) })
	switch len(rated) {
	case 0:
		return
	case 1:
		b.name = rated[0]
	default:
		b.err = fmt.Errorf("the configuration names both %s: name one of them", strings.Join(rated, " and "))
		return
	}
	var now *cc.Rates
	if now, b.err = b.host.Rates(b.name); b.err != nil {
		return
	}
	if b.rates != nil && b.rates.Same(now) {
		now.Close()
		return
	}
	if b.rates != nil { // its flows, and those of a failed reload, still use it
		b.left = append(b.left, b.rates)
	}
	b.rates, b.has = now, map[budgetKey]uint32{}
}

// find returns a budget for each wanted rate of a tunnel, by kind of leg.
func (b *budgets) find(tunnel string, wanted map[string]cc.Rate) (ids map[string]uint32, err error) {
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
		}
		ids[kind] = id
		b.next[key] = rate
	}
	return ids, nil
}

// share adds the legs' connections to the budgets of their kind.
func (b *budgets) share(ids map[string]uint32, l *legs) *legs {
	rates, shared := b.rates, *l
	shared.rates = rates
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
func (b *budgets) without(tunnel string, l *legs, err error) *legs {
	missing := transport.Lack{
		What:   fmt.Sprintf("a rate that the flows of %s share with %s; they use another congestion control", tunnel, b.name),
		Remedy: "longhaul cc use " + b.name + " --to DEST --rate RATE (as root), where the next hop is; or give the relay CAP_BPF",
	}
	if errors.Is(err, cc.ErrNoRates) {
		missing.Remedy = "longhaul cc load " + b.name + " (as root), then reload the relay"
	}
	if !b.said[tunnel] {
		b.said[tunnel] = true
		b.log.Warn("cannot have "+missing.What, "error", err, "remedy", missing.Remedy)
	}
	lacking := *l
	lacking.lacks = func() []transport.Lack { return append(slices.Clone(l.lacks()), missing) }
	return &lacking
}

// keep sets the rates of the last translate, also for existing flows. A removed
// tunnel keeps its rate while its flows last.
func (b *budgets) keep() {
	for key, rate := range b.next {
		if err := b.rates.SetBudget(b.has[key], rate); err != nil {
			b.log.Warn("cannot change the shared rate of flows", "tunnel", key.tunnel, "error", err)
		}
	}
	b.next = nil
}

// close removes the rates after the last flow.
func (b *budgets) close() {
	for _, id := range b.has {
		if err := b.rates.RemoveBudget(id); err != nil {
			b.log.Warn("cannot remove the shared rate of flows", "error", err)
		}
	}
	for _, r := range append(b.left, b.rates) {
		if r != nil {
			r.Close()
		}
	}
}
