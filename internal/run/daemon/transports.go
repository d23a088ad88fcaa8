package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/carry/transport"
	"longhaul/internal/run/config"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/cc"
	"longhaul/internal/words/sorted"
)

// transports is the part that makes the relay's tunnels of a configuration, with the socket settings of
// their legs. Tunnels with the same settings share one, so each lack is reported once.
type transports struct {
	log     *slog.Logger
	getenv  func(string) string
	host    *cc.Host
	budgets *budgets

	mu      sync.Mutex // guards current, which status reads from other goroutines
	current map[transportKey]*legs
	tunnels []relay.Tunnel // in force, as this part has made them
}

// transportsChange is prepared legs before their commit.
type transportsChange struct {
	of      *transports
	budgets *budgetsChange
	memory  transport.Memory
	next    map[transportKey]*legs
	tunnels []relay.Tunnel
}

// transportKey is a tunnel's settings of its legs, as a comparable value.
type transportKey struct {
	lan, wan         transport.Options // without DSCP,
	lanDSCP, wanDSCP int               // kept separately; -1 leaves the mark unchanged
	side             config.WANSide
	lanes            transport.WANSide // of a paired tunnel
	memory           transport.Memory
	tunnel           string // set if its connections share a rate of their own
}

// legs is relay's Transport: the functions of a transport.Tunnel, or those that budgets puts
// before them.
type legs struct {
	prepare     func(fd int, dialed bool) error
	early       func(dialed bool) bool
	established func(fd int, dialed bool) (side, degraded string)
	lasting     func(fd int, side string) error
	lacks       func() []transport.Lack
	rates       *cc.Rates // that its connections share, nil for none
}

func (l *legs) Prepare(fd int, dialed bool) error { return l.prepare(fd, dialed) }

func (l *legs) Early(dialed bool) bool { return l.early(dialed) }

func (l *legs) Established(fd int, dialed bool) (side, degraded string) {
	return l.established(fd, dialed)
}

func (l *legs) Lasting(fd int, side string) error { return l.lasting(fd, side) }

func newTransports(host *cc.Host, getenv func(string) string, log *slog.Logger) *transports {
	return &transports{log: log, getenv: getenv, host: host, budgets: newBudgets(host, log)}
}

// Prepare loads the congestion controls that the configuration names, and makes its tunnels.
func (t *transports) Prepare(ctx context.Context, p *plan) (Change, error) {
	if p.onlyHops {
		p.tunnels = slices.Clone(t.tunnels)
		for i := range p.tunnels {
			p.tunnels[i].Forward = targets(&p.Tunnels[i])
		}
		return setting(func() {}), nil
	}
	host := *t.host
	host.By = ledger.OfRelay(t.getenv, p.relayName)
	if !p.dryRun {
		loadNamedCC(ctx, &host, p.Config, t.log)
	}
	change, tunnels, err := t.prepare(p.Config)
	if err != nil {
		return nil, err
	}
	p.tunnels, change.tunnels = tunnels, slices.Clone(tunnels)
	return change, nil
}

func (t *transports) prepare(c *config.Config) (*transportsChange, []relay.Tunnel, error) {
	change := &transportsChange{of: t, budgets: t.budgets.prepare(c), memory: memoryOf(c), next: map[transportKey]*legs{}}
	tunnels, err := change.translate(c)
	if err != nil {
		change.Abort()
		return nil, nil, err
	}
	return change, tunnels, nil
}

// translate converts a configuration into the relay's types. It keeps transports in
// use, except those with a lack: the host may have changed since.
func (t *transportsChange) translate(c *config.Config) ([]relay.Tunnel, error) {
	var out []relay.Tunnel
	for _, tun := range c.Tunnels {
		rt := relay.Tunnel{
			Name:              tun.Name,
			Listen:            tun.Addresses(),
			Allow:             slices.Clone(tun.Allow),
			MaxFlows:          tun.MaxFlows,
			NewFlowsPerSecond: tun.NewFlowsPerSecond,

			MaxFlowsPerSource:          tun.MaxFlowsPerSource,
			NewFlowsPerSecondPerSource: tun.NewFlowsPerSecondPerSource,

			ConnectTimeout: tun.ConnectTimeout,
			IdleTimeout:    tun.IdleTimeout,
			Balance:        hops.Balance(tun.Balance),
			Health:         health(tun.Health),
			ProxyIn:        relay.ProxyIn{Required: tun.ProxyIn.Required, Trusted: slices.Clone(tun.ProxyIn.Trusted)},
			ProxyOut:       relay.ProxyVersion(tun.ProxyOut),
		}
		if tun.Intercept.Enabled() {
			rt.Listen, rt.Transparent = transparentListens(tun.Intercept.To), true
			rt.Intercepts = tun.Intercept.String()
		}
		rt.SourceClient = tun.Source == config.SourceClient
		rt.Health.Blind = rt.SourceClient
		rt.LocalTargets = tun.Intercept.LocalTargets || tun.Original.LocalTargets
		rt.Dialable = relay.Dialable{From: tun.Original.From, To: tun.Original.To, Ports: tun.Original.Ports}
		rt.Forward, rt.Service = targets(&tun), tun.Service
		if tun.Transport != config.TransportKernel {
			l, err := t.legs(tun.Name, tun.Settings, lanesOf(&tun))
			if err != nil {
				return nil, fmt.Errorf("tunnel %s: %w", tun.Name, err)
			}
			rt.Transport = l
			for _, d := range tun.Destinations {
				there := tun.Settings
				there.LAN, there.WAN = d.LAN, d.WAN
				// A rate that connections share is one of each destination.
				l, err := t.legs(fmt.Sprintf("%s to %s", tun.Name, d.Prefix), there, transport.WANNone)
				if err != nil {
					return nil, fmt.Errorf("tunnel %s: destination %s: %w", tun.Name, d.Prefix, err)
				}
				rt.Destinations = append(rt.Destinations, relay.Destination{Prefix: d.Prefix, Transport: l})
			}
		}
		out = append(out, rt)
	}
	return out, nil
}

// targets are a tunnel's hops in the relay's types.
func targets(t *config.Tunnel) []hops.Target {
	if t.LeadsAsDialed() {
		return []hops.Target{{Original: true}}
	}
	var all []hops.Target
	for _, f := range t.Forward {
		all = append(all, hops.Target{Host: f.Host, Port: f.Ports.First, Ports: f.Ports.Len(), Weight: f.Weight, Priority: f.Priority})
	}
	return all
}

func (t *transportsChange) legs(tunnelName string, s config.Settings, lanes transport.WANSide) (*legs, error) {
	key := transportKey{lan: legOptions(s.LAN), wan: legOptions(s.WAN), lanDSCP: -1, wanDSCP: -1, side: s.WANSide, lanes: lanes, memory: t.memory}
	if s.LAN.DSCP != nil {
		key.lanDSCP = int(*s.LAN.DSCP)
	}
	if s.WAN.DSCP != nil {
		key.wanDSCP = int(*s.WAN.DSCP)
	}
	key.lan.DSCP, key.wan.DSCP = nil, nil // pointers differ where the marks are the same
	shared := wantedBudgets(s)
	if len(shared) > 0 {
		key.tunnel = tunnelName
	}
	if l := t.next[key]; l != nil {
		return l, nil
	}
	l := t.of.current[key]
	if l == nil || len(l.lacks()) > 0 || (len(shared) > 0 && l.rates != t.budgets.rates) {
		lan, wan := legOptions(s.LAN), legOptions(s.WAN)
		ids, noRate := t.budgets.find(tunnelName, shared)
		if noRate != nil {
			// Brutal without a rate sends almost nothing.
			for kind, leg := range map[string]*transport.Options{transport.LAN: &lan, transport.WAN: &wan} {
				if _, ok := shared[kind]; ok && leg.PacingRateBps == 0 {
					leg.CongestionControl = ""
				}
			}
		}
		tunnel, err := transport.New(transport.Legs{LAN: lan, WAN: wan, Side: transport.WANSide(s.WANSide), Lanes: lanes, Memory: t.memory}, t.of.log)
		if err != nil {
			return nil, err
		}
		l = &legs{prepare: tunnel.Prepare, early: tunnel.Early, established: tunnel.Established, lasting: tunnel.Lasting, lacks: tunnel.Lacks}
		switch {
		case noRate != nil:
			l = t.budgets.without(tunnelName, l, noRate)
		case len(ids) > 0:
			l = t.budgets.share(ids, l, tunnel.MayBe)
		}
	}
	t.next[key] = l
	return l, nil
}

// Commit makes the prepared transports the current ones.
func (t *transportsChange) Commit() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.of.current, t.of.tunnels = t.next, t.tunnels
	t.budgets.commit()
}

// Abort leaves the congestion controls loaded: other programs may use them by now.
func (t *transportsChange) Abort() { t.budgets.abort() }

// lacks lists the lacks of the tunnels' legs, each once.
func (t *transports) lacks() []transport.Lack {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := []transport.Lack{}
	for _, l := range t.current {
		for _, missing := range l.lacks() {
			if !slices.Contains(all, missing) {
				all = append(all, missing)
			}
		}
	}
	sorted.By(all, func(a, b transport.Lack) int { return strings.Compare(a.What, b.What) })
	return all
}

// memoryOf is the memory that this process may use, by its configuration, or else by its host.
func memoryOf(c *config.Config) transport.Memory {
	return transport.Memory{Bytes: usableMemory(int64(c.MemoryLimit)), ByUs: c.MemoryLimit > 0}
}

// lanesOf says which legs of a tunnel are lanes of pairs.
func lanesOf(t *config.Tunnel) transport.WANSide {
	near, far := t.Pair.Paired(), t.PairFrom.Paired()
	switch {
	case near && far:
		return transport.WANBoth
	case near:
		return transport.WANForward
	case far:
		return transport.WANListen
	}
	return transport.WANNone
}

// health converts the configuration's health settings into the relay's types.
func health(h config.Health) hops.Health {
	out := hops.Health{
		Interval:   h.Interval,
		Timeout:    h.Timeout,
		Rise:       h.Rise,
		Fall:       h.Fall,
		EjectAfter: h.EjectAfter,
		EjectFor:   h.EjectFor,
		SlowReturn: h.SlowReturn,
	}
	if h.Check == config.HealthConnect {
		out.Probe = hops.ConnectProbe{}
	}
	return out
}

func legOptions(l config.Leg) transport.Options {
	return transport.Options{
		CongestionControl: l.CongestionControl,
		PathRateBps:       int64(l.Rate),
		PacingRateBps:     int64(l.PacingRate),
		SendBuffer:        int(l.SendBuffer),
		ReceiveBuffer:     int(l.ReceiveBuffer),
		MSS:               l.MSS,
		MTUProbing:        l.MTUProbing,
		Keepalive:         transport.Keepalive(l.Keepalive),
		UserTimeout:       l.UserTimeout,
		DSCP:              l.DSCP,
	}
}

var _ relay.Transport = (*legs)(nil)
