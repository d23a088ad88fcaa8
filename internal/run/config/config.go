// Package config loads longhaul's configuration from a YAML file or the flags
// of a one-tunnel command line. Both pass through the same parsing and checks.
//
// Loading starts from the defaults, decodes strictly and then validates. It
// reports every mistake that one pass can find, each with its file, line and
// column (or its flag) and a fix.
package config

import (
	"net/netip"
	"slices"
	"time"

	"longhaul/internal/words/portrange"
	"longhaul/internal/words/units"
)

// Config is a complete, valid configuration.
type Config struct {
	// Name is the relay's name among those of its user; empty means that the
	// relay takes a free one.
	Name string

	// ControlSocket is the path of the control socket. Empty means the default
	// path, [Off] none.
	ControlSocket string

	// DrainTimeout bounds the time that a stopping relay waits for its flows;
	// negative means no bound.
	DrainTimeout time.Duration

	// HalfCloseTimeout ends a flow of which one direction has ended and the
	// other has been silent this long; negative means never.
	HalfCloseTimeout time.Duration

	// StallTimeout bounds the time that a flow may hold memory without
	// delivering any of it while memory is short; negative means no bound.
	StallTimeout time.Duration

	// ResetDrainTimeout bounds the delivery of bytes that were received before
	// a reset.
	ResetDrainTimeout time.Duration

	// MemoryLimit bounds the memory of the flows' sockets and pipes; 0 means no
	// bound.
	MemoryLimit units.Size

	// Limits are the thresholds at which new flows are refused.
	Limits Limits

	// HTTPListen lists the addresses for health checks and metrics; empty means
	// none.
	HTTPListen []netip.AddrPort

	// HTTPNames lists the host names of HTTPListen besides the machine's own,
	// in lower case and without a final dot.
	HTTPNames []string

	// Metrics configures how much of the tunnels metrics have.
	Metrics Metrics

	// Dashboard configures the dashboard.
	Dashboard Dashboard

	// History configures the storage of records of ended flows.
	History History

	// Workers is the number of event loops; 0 means one per usable CPU.
	Workers int

	// PairKeys is the directory of this host's pair key and the keys of its
	// peers; empty means the default one.
	PairKeys string `json:",omitzero"`

	// Interception is what the rules of intercepting tunnels use.
	Interception Interception `json:",omitzero"`

	Log     Log
	Tunnels []Tunnel

	// Warnings lists settings that are valid but rarely intended.
	Warnings []*Error `json:",omitempty"`
}

// Off is the word that disables a setting.
const Off = "off"

// Metrics is how much of the tunnels metrics have.
type Metrics struct {
	Detail MetricsDetail
}

// MetricsDetail is what metrics tell apart.
type MetricsDetail string

// The details.
const (
	DetailHop    MetricsDetail = "hop"
	DetailTunnel MetricsDetail = "tunnel" // fewer series, for hundreds of tunnels
)

// Log is the format and level of the log.
type Log struct {
	Format string // "logfmt" or "json"
	Level  string // "debug", "info", "warn" or "error"
}

// Tunnel is the configuration of a tunnel. It listens or intercepts.
type Tunnel struct {
	Name      string
	Listen    []Listen
	Intercept Intercept `json:",omitzero"`
	Source    Source    `json:",omitzero"` // empty without Intercept and Original
	Refuse    Refuse    `json:",omitzero"` // empty without Intercept
	WhenDown  WhenDown  `json:",omitzero"` // empty without Intercept
	Forward   []Forward // empty: to those of Service, or to the address that the client dialed
	Service   string    `json:",omitzero"` // of the DNS, whose SRV records are the hops
	Original  Original  `json:",omitzero"` // of a far tunnel without Forward
	Pair      Pair      `json:",omitzero"` // the far relay to which the tunnel leads
	PairFrom  PairFrom  `json:",omitzero"` // the near relays whose flows the tunnel takes
	// Destinations replace LAN and WAN for legs to targets in their prefixes.
	Destinations []Destination `json:",omitempty"` // the longest prefix first
	Settings
}

// LeadsAsDialed reports whether the tunnel leads to the address that a client dialed.
func (t *Tunnel) LeadsAsDialed() bool { return len(t.Forward) == 0 && t.Service == "" }

// SeveralHops reports whether the tunnel leads to several hops, or may at another time.
func (t *Tunnel) SeveralHops() bool { return len(t.Forward) > 1 || t.Service != "" }

// Listen is one listening address with its ports.
type Listen struct {
	Addr  netip.Addr
	Ports portrange.Range
}

// Forward is a next hop. Ports has as many ports as each Listen of its tunnel;
// they map one to one.
type Forward struct {
	Host     string // literal address, or name; with a final dot it is complete, and has no search domain
	Ports    portrange.Range
	Weight   int // relative to hops of the same priority
	Priority int // the lowest is chosen first
}

// Balance is the way in which flows are spread over hops of equal priority.
type Balance string

// The ways to spread flows.
const (
	BalanceOrdered    Balance = "ordered"
	BalanceLeastFlows Balance = "least-flows"
	BalanceRoundRobin Balance = "round-robin"
	BalanceSource     Balance = "source"
)

// Health configures when a hop gets no new flows. Zero durations and counts
// mean the relay's defaults.
type Health struct {
	Check      HealthCheck
	Interval   time.Duration
	Timeout    time.Duration
	Rise, Fall int
	EjectAfter int // negative: never
	EjectFor   time.Duration
	SlowReturn time.Duration // negative: at once
}

// HealthCheck is the kind of a hop's health check.
type HealthCheck string

// The health checks.
const (
	HealthOff     HealthCheck = "off"
	HealthConnect HealthCheck = "connect"

	// HealthEndToEnd queries the relay at the hop, with the key of the tunnel's
	// checks.
	HealthEndToEnd HealthCheck = "end-to-end"
)

// Settings are the settings that a tunnel and `defaults` share.
type Settings struct {
	Allow             []netip.Prefix // empty: everybody
	MaxFlows          int            // 0: no bound
	NewFlowsPerSecond float64        // 0: no bound

	// Of one source; 0: a share that leaves room for others, negative: no
	// bound.
	MaxFlowsPerSource          int
	NewFlowsPerSecondPerSource float64

	ConnectTimeout time.Duration
	IdleTimeout    time.Duration // 0: never
	Balance        Balance
	Health         Health
	ProxyIn        ProxyIn
	ProxyOut       int // PROXY protocol version sent to the target: 0 (none), 1 or 2
	Check          Check
	Transport      TransportMode
	WANSide        WANSide
	LAN, WAN       Leg
}

// ProxyIn configures the PROXY protocol header required from clients.
type ProxyIn struct {
	Required bool
	Trusted  []netip.Prefix // empty: every source that is allowed
}

// TransportMode selects the party that sets the socket options of a tunnel's
// legs.
type TransportMode string

// The transport modes.
const (
	TransportAuto   TransportMode = "auto"   // longhaul, per leg
	TransportKernel TransportMode = "kernel" // the kernel: its defaults stay
)

// WANSide selects the legs of a tunnel that cross the WAN.
type WANSide string

// The WAN sides.
const (
	WANAuto    WANSide = "auto"
	WANListen  WANSide = "listen"
	WANForward WANSide = "forward"
	WANBoth    WANSide = "both"
	WANNone    WANSide = "none"
)

// Addresses lists every listening address, port by port.
func (t Tunnel) Addresses() []netip.AddrPort {
	var all []netip.AddrPort
	for _, l := range t.Listen {
		for port := int(l.Ports.First); port <= int(l.Ports.Last); port++ {
			all = append(all, netip.AddrPortFrom(l.Addr, uint16(port)))
		}
	}
	return all
}

// Entrance is where the tunnel's flows come from, in one word that no other tunnel of the
// host has: its first listening address, or the first connections that it intercepts.
func (t Tunnel) Entrance() string {
	if !t.Intercept.Enabled() {
		return t.Listen[0].String()
	}
	i := t.Intercept
	if len(i.Ports) > 0 {
		i.Ports = i.Ports[:1]
	}
	i.To = i.To[:1]
	if len(i.From) > 0 {
		return i.From[0].String() + "," + i.String()
	}
	return i.String()
}

// Default is the base to which a file or flags add.
func Default() Config {
	return Config{
		DrainTimeout:      time.Minute,
		HalfCloseTimeout:  time.Hour,
		ResetDrainTimeout: 30 * time.Second,
		StallTimeout:      30 * time.Second,
		Limits:            DefaultLimits(),
		Metrics:           Metrics{Detail: DetailHop},
		History:           DefaultHistory(),
		Log:               Log{Format: "logfmt", Level: "info"},
	}
}

// DefaultSettings are the settings of a tunnel without its own.
func DefaultSettings() Settings {
	return Settings{
		ConnectTimeout: 10 * time.Second,
		Balance:        BalanceOrdered,
		Health:         Health{Check: HealthOff},
		Check:          defaultCheck(),
		Transport:      TransportAuto,
		WANSide:        WANAuto,
	}
}

// CongestionControls are the algorithms that the configuration names, each once.
func (c *Config) CongestionControls() []string {
	var names []string
	for _, tunnel := range c.Tunnels {
		if tunnel.Transport == TransportKernel {
			continue
		}
		legs := []Leg{tunnel.LAN, tunnel.WAN}
		for _, d := range tunnel.Destinations {
			legs = append(legs, d.LAN, d.WAN)
		}
		for _, leg := range legs {
			name := leg.CongestionControl
			if name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}
