package flow

import (
	"slices"
	"time"
)

// Usability says whether a tunnel serves a new flow, and why not. Package usable decides it,
// and everybody else reads it.
type Usability struct {
	State    UseState  `json:"state"`
	Usable   bool      `json:"usable"` // a new flow would be served, as far as anybody knows
	Since    time.Time `json:"since,omitzero"`
	Problems []Problem `json:"problems,omitempty"` // of a tunnel that is not usable, the first to mend first
}

// UseState is the state of a tunnel for new flows.
type UseState string

// The states of a tunnel for new flows.
const (
	Untried   UseState = "untried"   // usable, though no flow and no check has shown it
	Up        UseState = "up"        // a flow or a check has succeeded
	Returning UseState = "returning" // every hop failed, and the relay tries one again
	Down      UseState = "down"
)

// Problem keeps a tunnel from serving new flows.
type Problem struct {
	Reason Reason `json:"reason"`
	Detail string `json:"detail"` // a clause about the tunnel, such as "is draining"
}

// Reason names a problem of a tunnel.
type Reason string

// The reasons for which a tunnel is not usable.
const (
	ReasonDraining    Reason = "draining"       // the whole relay is
	ReasonDrained     Reason = "drained"        // by the operator
	ReasonRemoved     Reason = "removed"        // by a reload
	ReasonListener    Reason = "no-listener"    // the host lacks an address where it listens
	ReasonNoRules     Reason = "no-rules"       // the host lacks rules of its interception, or its interface
	ReasonPaused      Reason = "paused"         // there is no room for connections
	ReasonShedding    Reason = "shedding"       // a resource is short
	ReasonResources   Reason = "near-the-limit" // a resource soon will be
	ReasonMaxFlows    Reason = "max-flows"
	ReasonPairDown    Reason = BypassPairDown
	ReasonHopsDown    Reason = BypassHopsDown
	ReasonHopsDrained Reason = "hops-drained"
)

// Has reports whether the tunnel has a problem of one of these reasons.
func (u *Usability) Has(reasons ...Reason) bool {
	return slices.ContainsFunc(u.Problems, func(p Problem) bool { return slices.Contains(reasons, p.Reason) })
}

// Reason names the first problem; empty: the tunnel is usable.
func (u *Usability) Reason() Reason {
	if len(u.Problems) == 0 {
		return ""
	}
	return u.Problems[0].Reason
}

// Detail is the clause of the first problem; empty: the tunnel is usable.
func (u *Usability) Detail() string {
	if len(u.Problems) == 0 {
		return ""
	}
	return u.Problems[0].Detail
}

// Event is a change of a state.
type Event struct {
	At      time.Time `json:"at"`
	Kind    string    `json:"kind"`              // of EventRelay and so on
	Tunnel  string    `json:"tunnel,omitempty"`  // of every kind but EventRelay and EventConfiguration
	Subject string    `json:"subject,omitempty"` // the hop, the paired relay or the path
	From    string    `json:"from"`
	To      string    `json:"to"`
	Reason  string    `json:"reason,omitempty"`
}

// The kinds of events.
const (
	EventRelay        = "relay"
	EventTunnel       = "tunnel"
	EventHop          = "hop"
	EventPair         = "pair"
	EventPath         = "path" // of a pair
	EventInterception = "interception"
	EventService      = "service"     // of the DNS, in forward
	EventCertificate  = "certificate" // of peers at a far tunnel

	EventConfiguration = "configuration" // of the relay, after `reload --confirm`
)
