// Package config reads longhaul's configuration: a YAML file, or the flags of
// a one-tunnel command line, which pass through the same parsing and checks.
//
// Loading starts from the defaults, decodes strictly and then validates. Every
// mistake that can be found in one pass is reported, each with its file, line
// and column (or its flag) and with what to write instead.
package config

import (
	"net/netip"
	"slices"
	"time"

	"longhaul/internal/units"
)

// Config is a whole, valid configuration.
type Config struct {
	// Name is what the relay is called among those of its user; empty means
	// that it takes what is free.
	Name string

	// ControlSocket is the path of the control socket. Empty means the default
	// place, [Off] means none.
	ControlSocket string

	// DrainTimeout is how long a stopping relay lets its flows finish;
	// negative means for as long as they need.
	DrainTimeout time.Duration

	// HalfCloseTimeout reaps a flow of which one direction has ended and the
	// other is silent this long; negative means never.
	HalfCloseTimeout time.Duration

	// StallTimeout is for how long a flow may hold memory and get nothing
	// delivered while memory is short; negative means for ever.
	StallTimeout time.Duration

	// ResetDrainTimeout bounds the delivery of what was received before a reset.
	ResetDrainTimeout time.Duration

	// MemoryLimit bounds what the flows' sockets and pipes hold; 0 means no bound.
	MemoryLimit units.Size

	// Limits say from where on new flows are refused.
	Limits Limits

	// HTTPListen are the addresses that answer to health checks and have metrics;
	// empty means none.
	HTTPListen []netip.AddrPort

	// HTTPNames are the host names of HTTPListen, beside the machine's own: in
	// lower case, without a final dot.
	HTTPNames []string

	// Dashboard says where the dashboard is served.
	Dashboard Dashboard

	// History says where the records of ended flows are kept.
	History History

	// Workers is the number of event loops; 0 means one per usable CPU.
	Workers int

	Log     Log
	Tunnels []Tunnel

	// Warnings name what is valid and seldom meant.
	Warnings []*Error `json:",omitempty"`
}

// Off is the word that switches a setting off.
const Off = "off"

// Log says how the log is written.
type Log struct {
	Format string // "logfmt" or "json"
	Level  string // "debug", "info", "warn" or "error"
}

// Tunnel is where a relay listens and where that leads.
type Tunnel struct {
	Name    string
	Listen  []Listen
	Forward []Forward
	Settings
}

// Ports is a range of ports, both ends included. One port has Low == High.
type Ports struct{ Low, High uint16 }

// Len is the number of ports.
func (p Ports) Len() int { return int(p.High) - int(p.Low) + 1 }

// Listen is one listening address with its ports.
type Listen struct {
	Addr  netip.Addr
	Ports Ports
}

// Forward is a next hop. Ports has as many ports as every Listen of its tunnel,
// to which they belong one to one.
type Forward struct {
	Host     string // name or literal address
	Ports    Ports
	Weight   int // of its share among those of the same priority
	Priority int // the least is chosen first
}

// Balance says how flows are spread over hops of the same priority.
type Balance string

// The ways of spreading flows.
const (
	BalanceOrdered    Balance = "ordered"
	BalanceLeastFlows Balance = "least-flows"
	BalanceRoundRobin Balance = "round-robin"
	BalanceSource     Balance = "source"
)

// Health says when a hop is left out of the choice. Zero durations and counts
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

// HealthCheck is how a hop is asked whether it can be used.
type HealthCheck string

// The health checks.
const (
	HealthOff     HealthCheck = "off"
	HealthConnect HealthCheck = "connect"

	// HealthEndToEnd asks the relay there, with the key of the tunnel's checks.
	HealthEndToEnd HealthCheck = "end-to-end"
)

// Settings are what a tunnel may set and `defaults` may set for all.
type Settings struct {
	Allow             []netip.Prefix // empty: everybody
	MaxFlows          int            // 0: no bound
	NewFlowsPerSecond float64        // 0: no bound

	// Of one source; 0: what it leaves is for others, negative: no bound.
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

// ProxyIn says whether a PROXY protocol header is required, and from whom.
type ProxyIn struct {
	Required bool
	Trusted  []netip.Prefix // empty: every source that is allowed
}

// TransportMode says who sets the socket options of a tunnel's legs.
type TransportMode string

// The transport modes.
const (
	TransportAuto   TransportMode = "auto"   // longhaul does, per leg
	TransportKernel TransportMode = "kernel" // nobody: the kernel's defaults stay
)

// WANSide says which of a tunnel's legs cross the WAN.
type WANSide string

// The WAN sides.
const (
	WANAuto    WANSide = "auto"
	WANListen  WANSide = "listen"
	WANForward WANSide = "forward"
	WANBoth    WANSide = "both"
	WANNone    WANSide = "none"
)

// Leg holds the socket settings of one kind of leg. The zero value of a field
// means that longhaul chooses.
type Leg struct {
	CongestionControl string
	Rate              units.Rate // what the path carries
	PacingRate        units.Rate // cap of the sending rate
	SendBuffer        units.Size
	ReceiveBuffer     units.Size
	MSS               int // bytes
	MTUProbing        bool
	Keepalive         Keepalive
	UserTimeout       time.Duration
	DSCP              *uint8
}

// Keepalive is how a silent peer is found dead; zero fields mean longhaul's defaults.
type Keepalive struct {
	Disabled bool
	Idle     time.Duration
	Interval time.Duration
	Count    int
}

// Addresses lists every listening address, port by port.
func (t Tunnel) Addresses() []netip.AddrPort {
	var all []netip.AddrPort
	for _, l := range t.Listen {
		for port := int(l.Ports.Low); port <= int(l.Ports.High); port++ {
			all = append(all, netip.AddrPortFrom(l.Addr, uint16(port)))
		}
	}
	return all
}

// Default is the configuration that a file or the flags add to.
func Default() Config {
	return Config{
		DrainTimeout:      time.Minute,
		HalfCloseTimeout:  time.Hour,
		ResetDrainTimeout: 30 * time.Second,
		StallTimeout:      30 * time.Second,
		Limits:            DefaultLimits(),
		History:           DefaultHistory(),
		Log:               Log{Format: "logfmt", Level: "info"},
	}
}

// DefaultSettings are those of a tunnel about which nothing else is said.
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
		for _, name := range []string{tunnel.LAN.CongestionControl, tunnel.WAN.CongestionControl} {
			if name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}
