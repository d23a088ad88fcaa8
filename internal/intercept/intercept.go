// Package intercept has this host take TCP connections that it routes into a relay's
// transparent listeners: nftables rules in a table of its own, a routing rule and a
// local route. Packets that belong to no listener and no socket of the relay pass as
// they would without it.
//
// See docs/design/interception.md.
package intercept

import (
	"errors"
	"net/netip"

	"longhaul/internal/ledger"
)

// DefaultMark is the bit of a packet's mark that has the kernel deliver a packet to the
// relay. DefaultTable is the routing table that delivers it.
const (
	DefaultMark  = 0x1000
	DefaultTable = 1812
)

// PortRange is an inclusive range of ports. A single port has Last equal to First.
type PortRange struct{ First, Last uint16 }

// Tunnel is what one tunnel of a relay intercepts: TCP connections that arrive at
// Interface, from a client in From to an address in To and a port in Ports.
type Tunnel struct {
	Name      string
	Interface string         // on which the clients' packets arrive
	From      []netip.Prefix // empty: everybody behind the interface
	To        []netip.Prefix
	Ports     []PortRange // empty: all
	// ListenPort is the port of the relay's transparent listeners on 127.0.0.1 and
	// [::1]. Without a listener there, new connections pass directly.
	ListenPort uint16
	// Paused: new connections pass directly, as of a relay that drains or sheds.
	// Connections that the relay has stay with it.
	Paused bool
}

// Options are what a relay intercepts.
type Options struct {
	Relay   string // its name
	Mark    uint32 // one bit; 0: DefaultMark
	Table   uint32 // 0: DefaultTable
	Tunnels []Tunnel
}

// Host is this machine, in the calling thread's network namespace. Its methods may be
// called from several processes at once, but with open sockets in between only from a
// thread that stays in that namespace.
type Host struct {
	Ledger string // directory of the ledger
	By     ledger.By
	DryRun bool // only say what would change
}

// NewHost returns this machine. by claims what is changed.
func NewHost(by ledger.By) *Host { return &Host{Ledger: ledger.DefaultDir, By: by} }

// Check returns the first thing on this host that interception would collide with, with
// its remedy, or a [*kernel.ErrUnsupported]. It changes nothing. What a relay of the
// same name left does not collide.
func (h *Host) Check(o Options) error { return errors.New("not yet") }

// Set has the host intercept exactly what o says, in place of what the relay of that
// name intercepted. The rules change in one atomic step: call it again with another
// Tunnel.Paused to take a tunnel out, or back. It completes or replaces what an
// interrupted Set left.
func (h *Host) Set(o Options) error { return errors.New("not yet") }

// Clear takes back what the relay of that name set. It is no error if there is nothing.
func (h *Host) Clear(relay string) error { return errors.New("not yet") }

// Commands returns the nft and ip commands that do what [Host.Set] does, as a shell
// takes them.
func Commands(o Options) []string { return nil }

// Status is what a relay intercepts, with counters.
type Status struct {
	Relay   string         `json:"relay"`
	Mark    uint32         `json:"mark"`
	Table   uint32         `json:"table"`
	Tunnels []TunnelStatus `json:"tunnels"`
	// Problem says what is missing, if something else removed a part.
	Problem string         `json:"problem,omitempty"`
	Claims  []ledger.Claim `json:"claims,omitempty"`
}

// TunnelStatus is a tunnel with its counters.
type TunnelStatus struct {
	Tunnel
	// Connections counts the SYNs that were given to the relay.
	Connections uint64 `json:"connections"`
}

// Show returns what stands in this network namespace, by relay.
func (h *Host) Show() ([]Status, error) { return nil, errors.New("not yet") }
