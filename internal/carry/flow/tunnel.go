package flow

import (
	"net/netip"
	"time"

	"longhaul/internal/words/units"
)

// Tunnel is the state of one tunnel. Its counters begin with the relay
// and survive reloads.
type Tunnel struct {
	Name       string           `json:"name"`
	State      string           `json:"state"` // listening, shedding, paused, drained, draining or removed
	Usability  Usability        `json:"usability"`
	Listen     []netip.AddrPort `json:"listen"`
	Intercepts string           `json:"intercepts,omitempty"` // routed connections that it takes; Listen has its transparent listeners then
	Bypass     *Bypass          `json:"bypass,omitempty"`     // of a tunnel that may let new connections pass by when_down
	Forward    []string         `json:"forward"`
	Balance    string           `json:"balance"`
	Hops       []Hop            `json:"hops"`
	// DeadFamilies says of each name in Forward which family of its addresses does not answer
	// while the other does.
	DeadFamilies []string `json:"dead_families,omitempty"`
	// Service is where Forward and Hops come from; nil: from the configuration.
	Service *Service `json:"service,omitempty"`

	FlowsNow   int64 `json:"flows_now"`
	FlowsPeak  int64 `json:"flows_peak"`
	FlowsLimit int   `json:"flows_limit,omitempty"`
	FlowsTotal int64 `json:"flows_total"`
	BytesUp    int64 `json:"bytes_up"` // with those of running flows
	BytesDown  int64 `json:"bytes_down"`
	Relayed    int64 `json:"relayed_total,omitempty"` // intercepted connections that another relay had intercepted before
	Denied     int64 `json:"denied_total"`            // source or target not allowed, bad PROXY header
	Limited    int64 `json:"limited_total"`           // by the limits on flows and their rate
	Shed       int64 `json:"shed_total"`              // refused because a resource was short
	Refused    int64 `json:"refused_total"`           // no target accepted
	Errors     int64 `json:"errors_total"`            // ended by a reset, a timeout or missing resources
	Checks     int64 `json:"checks_total"`            // integrity checks; flows_total includes them

	Life         int64                `json:"-"` // another one if the relay counts anew, since the tunnel was removed and came back
	Peers        map[string]PeerBytes `json:"-"` // by the other relay of a pair
	ShedBy       map[string]int64     `json:"shed_by_reason"`
	Ended        []Ended              `json:"ended"` // flows that were admitted and have ended
	AcceptQueues []AcceptQueue        `json:"accept_queues"`
	// ForwardRules are of an intercepting tunnel, for each family of its targets.
	ForwardRules []ForwardRules `json:"forward_rules,omitempty"`
	// Host lists what this host lacks of what the tunnel needs.
	Host []HostProblem `json:"host,omitempty"`
}

// PeerBytes are those of a tunnel's flows that came over a peer, or went to it.
type PeerBytes struct{ Up, Down int64 }

// HostProblem is a part of the host's state that is not as a tunnel needs it.
type HostProblem struct {
	Part    HostPart  `json:"part"`
	Problem string    `json:"problem"` // in a sentence
	Fix     string    `json:"fix,omitempty"`
	Since   time.Time `json:"since"`
	// Blocks: the tunnel gets no new connections because of it.
	Blocks bool `json:"blocks"`
}

// HostPart is a kind of the host's state.
type HostPart string

// The parts.
const (
	HostRules     HostPart = "rules"     // nftables, routing rules and routes of interception
	HostInterface HostPart = "interface" // of an intercepting tunnel
	HostSetting   HostPart = "setting"   // a sysctl that interception needs
	HostAddress   HostPart = "address"   // of a listener
	HostTLSFiles  HostPart = "tls-files" // of http_listen or the dashboard; never of a tunnel
)

// Reason is that of a tunnel which is not usable for lack of the part.
func (p HostPart) Reason() Reason {
	if p == HostAddress {
		return ReasonListener
	}
	return ReasonNoRules
}

// HostParts are all parts.
var HostParts = []HostPart{HostRules, HostInterface, HostSetting, HostAddress}

// ForwardRules says what the host's own rules for forwarded packets would do with the
// connections that a tunnel intercepts, and which pass those rules.
type ForwardRules struct {
	Family  string `json:"family"`            // "ipv4" or "ipv6"
	Outcome string `json:"outcome"`           // of netfilter.Outcome
	Detail  string `json:"detail"`            // the outcome on one line
	Problem string `json:"problem,omitempty"` // what an operator should know
	Fix     string `json:"fix,omitempty"`     // what to do about it
}

// Bypass says whether new connections of an intercepting tunnel pass the relay because
// its pair or every hop is down.
type Bypass struct {
	Reason string    `json:"reason,omitempty"` // BypassPairDown or BypassHopsDown; empty: the tunnel takes new connections
	Since  time.Time `json:"since,omitzero"`   // of Reason
	Total  int64     `json:"times_total"`
}

// The reasons of a bypass.
const (
	BypassPairDown = "pair-down"
	BypassHopsDown = "hops-down"
)

// HopState is the state of a hop in the choice for new flows.
type HopState string

// The states of a hop. The first two are usable.
const (
	HopUntried   HopState = "untried"   // no connect and no probe has ended
	HopUp        HopState = "up"        // a connect or a probe has succeeded
	HopEjected   HopState = "ejected"   // by failed connects, for a time
	HopReturning HopState = "returning" // that time is over, and nothing has succeeded since
	HopDown      HopState = "down"      // by probes
	HopDrained   HopState = "drained"   // by the operator
	HopSameHost  HopState = "same-host" // its far relay is that of an earlier hop, which is in use
)

// Hop is the state of one next hop of a tunnel.
type Hop struct {
	Name     string    `json:"name"` // as configured
	State    HopState  `json:"state"`
	Usable   bool      `json:"usable"`         // new flows are led to it
	Since    time.Time `json:"since,omitzero"` // of State; missing: since the start
	Weight   int       `json:"weight"`
	Priority int       `json:"priority"`
	Checked  bool      `json:"checked"` // at least one probe has ended
	// RTT is of the latest successful probe; the monitor replaces it by the
	// median of the target legs to the hop.
	RTT        units.Seconds `json:"rtt_seconds,omitempty"`
	FlowsNow   int64         `json:"flows_now"`
	FlowsTotal int64         `json:"flows_total"`
	Failed     int64         `json:"failed_total"`         // flows whose connect failed
	LastError  string        `json:"last_error,omitempty"` // of a connect or a probe
	// Host is the host of a site that the far relay of a pair is.
	Host string   `json:"host,omitempty"`
	Pair *PairHop `json:"-"` // of a hop that is a far relay
}

// AcceptQueue is the queue of connections that wait to be accepted at a
// listening address.
type AcceptQueue struct {
	Listen  netip.AddrPort `json:"listen"`
	Waiting uint32         `json:"waiting"`
	Limit   uint32         `json:"limit"`         // of waiting connections
	Dropped uint32         `json:"dropped_total"` // refused by the kernel, mostly because the queue was full
}
