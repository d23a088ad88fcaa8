// Package routing finds out whether the packets of intercepted connections pass this
// host in both directions, and names the cause if they do not.
//
// [Observer.Observe] sends one probe to a target, as a relay that keeps the client's
// address does, and one to a client, and watches the packets on all devices meanwhile.
// [Judge] is a pure function of an [Observation].
package routing

import (
	"net/netip"
	"slices"
	"time"
)

// Observation has what was seen of the way between a client and a target, whose
// connections a tunnel of this host intercepts.
type Observation struct {
	Relay     string `json:"relay"`
	Tunnel    string `json:"tunnel"`
	Interface string `json:"interface"` // of the clients' side
	// InterfaceAddress is this host's address there.
	InterfaceAddress netip.Addr     `json:"interface_address,omitzero"`
	Clients          netip.Prefix   `json:"clients"` // the tunnel's network that has the client
	Targets          netip.Prefix   `json:"targets"`
	Client           netip.Addr     `json:"client"`
	Target           netip.AddrPort `json:"target"`
	// Proxy: no client is known. Client is this host's own address at Interface.
	Proxy bool `json:"proxy,omitempty"`
	// SourceRelay: the relay dials from its own address, so the answers come to it.
	SourceRelay bool `json:"source_relay,omitempty"`
	// Problem says what is wrong with the relay's rules, such as that another program has
	// removed some, and what follows.
	Problem string `json:"problem,omitempty"`
	// Removed: another program has removed rules. Swallowed: new connections then get no
	// answer.
	Removed   bool `json:"removed,omitempty"`
	Swallowed bool `json:"swallowed,omitempty"`
	// Connections is how many the tunnel took since the relay's start.
	Connections uint64 `json:"connections"`
	// ClientDevice is the device of the route to the client, empty without one.
	ClientDevice string `json:"client_device,omitempty"`

	// Own is this host's address toward the target.
	Own netip.Addr `json:"own,omitzero"`
	// Toward is the connect from the client's address. Control is one from Own after
	// that has failed.
	Toward  *Connect `json:"toward,omitempty"`
	Control *Connect `json:"control,omitempty"`

	// Back is an echo request to the client from the target's address. BackControl is
	// one from this host's address after that has failed.
	Back        *Echo `json:"back,omitempty"`
	BackControl *Echo `json:"back_control,omitempty"`

	// FilterDrops is how far this host's count of packets that its reverse-path filter
	// dropped went up while it watched.
	FilterDrops uint64 `json:"reverse_path_filter_drops,omitempty"`

	// Masters are the VRRP routers whose adverts were seen.
	Masters []Master `json:"masters,omitempty"`
	// Stalled are flows of the tunnel to the target without an answer.
	Stalled []Stalled `json:"stalled,omitempty"`
	// Handshakes are those of clients of the tunnel that were seen and did not end.
	Handshakes []Handshake `json:"handshakes,omitempty"`
	// Strays counts answers of targets to clients whose connects did not pass here.
	Strays int `json:"strays,omitempty"`
}

// Result is what became of a connect.
type Result string

// The results.
const (
	Connected Result = "connected"
	Refused   Result = "refused"
	Rejected  Result = "rejected" // by an ICMP error, or for lack of a route
	Silent    Result = "silent"
)

// Connect is a connect and its packets. Devices are in the order in which a packet passed
// them.
type Connect struct {
	Result Result   `json:"result"`
	Error  string   `json:"error,omitempty"`
	SentBy []string `json:"sent_by,omitempty"` // devices by which the SYN left
	// AnsweredAt are the devices at which the answer arrived, and ForwardedBy those by
	// which this host passed it on to the client.
	AnsweredAt  []string `json:"answered_at,omitempty"`
	ForwardedBy []string `json:"forwarded_by,omitempty"`
	// ResetAt are the devices at which a reset of the client arrived, which a client
	// sends to an answer that it got and did not expect.
	ResetAt []string `json:"reset_at,omitempty"`
	// FilterDrops and ConntrackInvalid are how far this host's counters went up.
	FilterDrops      uint64 `json:"reverse_path_filter_drops,omitempty"`
	ConntrackInvalid uint64 `json:"conntrack_invalid,omitempty"`
}

// ok reports whether the target answered, be it with a reset.
func (c *Connect) ok() bool { return c != nil && (c.Result == Connected || c.Result == Refused) }

// Echo is an echo request to a client.
type Echo struct {
	Sent      bool     `json:"sent"`
	RepliedAt []string `json:"replied_at,omitempty"` // devices; empty: no reply passed here
}

// Master is a VRRP router that sends adverts.
type Master struct {
	Device  string     `json:"device"`
	ID      uint8      `json:"id"`
	Address netip.Addr `json:"address"`       // its own
	Own     bool       `json:"own,omitempty"` // this host
}

// Stalled is a flow whose target does not acknowledge what the relay sends again and again.
type Stalled struct {
	Source  netip.AddrPort `json:"source"`     // as the target sees it
	Silence time.Duration  `json:"silence_ns"` // since the last acknowledgement
	// SentBy and ArrivedAt are devices of packets that were seen.
	SentBy    []string `json:"sent_by,omitempty"`
	ArrivedAt []string `json:"arrived_at,omitempty"`
}

// Handshake is one of a client with the relay.
type Handshake struct {
	Client  netip.AddrPort `json:"client"`
	Target  netip.AddrPort `json:"target"`
	SYNs    int            `json:"syns"`    // from the client
	Repeats int            `json:"repeats"` // of them, after an answer
	Answers int            `json:"answers"` // of the relay
}

// masters returns the routers that have the virtual addresses at a device: this host,
// another one, or both.
func (o *Observation) masters(device string) (own, other *Master) {
	for i := range o.Masters {
		m := &o.Masters[i]
		switch {
		case m.Device != device:
		case m.Own:
			own = m
		default:
			other = m
		}
	}
	return own, other
}

func first(devices []string) string {
	if len(devices) == 0 {
		return ""
	}
	return devices[0]
}

// last is the device of the network layer for a packet that arrived: a port of a bridge
// comes before the bridge.
func last(devices []string) string {
	if len(devices) == 0 {
		return ""
	}
	return devices[len(devices)-1]
}

func has(devices []string, one string) bool { return slices.Contains(devices, one) }
