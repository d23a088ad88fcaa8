// Package intercept has this host take TCP connections that it routes into a relay's
// transparent listeners: nftables rules in a table of its own, a routing rule and a
// local route. Packets that belong to no listener and no socket of the relay pass as
// they would without it.
//
// See docs/design/interception.md.
package intercept

import (
	"cmp"
	"net/netip"
	"slices"

	"longhaul/internal/sys/ledger"
	"longhaul/internal/words/portrange"
)

// DefaultMark is the bit of a packet's mark that has the kernel deliver a packet to the
// relay. DefaultTable is the routing table that delivers it.
const (
	DefaultMark  = 0x1000
	DefaultTable = 1812
)

// Tunnel is what one tunnel of a relay intercepts: TCP connections that arrive at
// Interface, from a client in From to an address in To and a port in Ports.
type Tunnel struct {
	Name      string            `json:"name"`
	Interface string            `json:"interface"`      // on which the clients' packets arrive
	From      []netip.Prefix    `json:"from,omitempty"` // empty: everybody behind the interface
	To        []netip.Prefix    `json:"to"`
	Ports     []portrange.Range `json:"ports,omitempty"` // empty: all
	// ListenPort is the port of the relay's transparent listener on 127.0.0.1, and
	// ListenPort6 of that on [::1]. Without a listener there, new connections pass
	// directly. A port may be 0 if To has no prefix of its family, and in a plan.
	ListenPort  uint16 `json:"listen_port,omitempty"`
	ListenPort6 uint16 `json:"listen_port6,omitempty"`
	// Mirror has SYNs wait at HoldPort on 127.0.0.1 and HoldPort6 on [::1], where
	// nobody answers them, until they come again with an answer (see package hold).
	Mirror    bool   `json:"mirror,omitempty"`
	HoldPort  uint16 `json:"hold_port,omitempty"`
	HoldPort6 uint16 `json:"hold_port6,omitempty"`
	// SourceRelay: the relay dials from its own address. The rules are the same.
	SourceRelay bool `json:"source_relay,omitempty"`
	// PastForwardRules: the tunnel may take connections that the host would not forward.
	PastForwardRules bool `json:"past_forward_rules,omitempty"`
	// Paused: new connections pass directly, as of a relay that drains or sheds.
	// Connections that the relay has stay with it.
	Paused bool `json:"paused,omitempty"`
}

// Takes reports whether the tunnel intercepts connections of a client to a target.
func (t Tunnel) Takes(client netip.Addr, target netip.AddrPort) bool {
	return t.LeadsTo(target) && (len(t.From) == 0 || contain(t.From, client))
}

// LeadsTo reports whether the tunnel intercepts connections to a target.
func (t Tunnel) LeadsTo(target netip.AddrPort) bool {
	return contain(t.To, target.Addr()) && portrange.Has(t.Ports, target.Port())
}

func contain(all []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Dialer is a tunnel that intercepts nothing, and dials targets from its clients' own
// addresses: the rules bring the targets' answers to its sockets.
type Dialer struct {
	Name  string            `json:"name"`
	From  []netip.Prefix    `json:"from"` // clients
	To    []netip.Prefix    `json:"to"`   // targets
	Ports []portrange.Range `json:"ports,omitempty"`
}

// Options are what a relay intercepts.
type Options struct {
	Relay   string   `json:"relay"`           // its name
	Mark    uint32   `json:"mark,omitempty"`  // one bit; 0: DefaultMark
	Table   uint32   `json:"table,omitempty"` // 0: DefaultTable
	Tunnels []Tunnel `json:"tunnels"`
	Dialers []Dialer `json:"dialers,omitempty"`
	// AnswerPorts: the relay has only connections to the ports of its tunnels. Packets of
	// other ports then cost less.
	AnswerPorts bool `json:"answer_ports,omitempty"`
}

// IsEmpty reports whether a relay needs no rules.
func (o Options) IsEmpty() bool { return len(o.Tunnels)+len(o.Dialers) == 0 }

// Equal reports whether two relays intercept the same in the same way.
func (o Options) Equal(p Options) bool {
	return o.Relay == p.Relay && o.Mark == p.Mark && o.Table == p.Table && o.AnswerPorts == p.AnswerPorts &&
		slices.EqualFunc(o.Tunnels, p.Tunnels, Tunnel.equal) && slices.EqualFunc(o.Dialers, p.Dialers, Dialer.equal)
}

func (t Tunnel) equal(u Tunnel) bool {
	return t.Name == u.Name && t.Interface == u.Interface && t.ListenPort == u.ListenPort && t.ListenPort6 == u.ListenPort6 &&
		t.Mirror == u.Mirror && t.HoldPort == u.HoldPort && t.HoldPort6 == u.HoldPort6 && t.SourceRelay == u.SourceRelay &&
		t.PastForwardRules == u.PastForwardRules && t.Paused == u.Paused &&
		slices.Equal(t.From, u.From) && slices.Equal(t.To, u.To) && slices.Equal(t.Ports, u.Ports)
}

func (d Dialer) equal(e Dialer) bool {
	return d.Name == e.Name && slices.Equal(d.From, e.From) && slices.Equal(d.To, e.To) && slices.Equal(d.Ports, e.Ports)
}

// has reports whether there are targets of the family.
func (o Options) has(f family) bool {
	return slices.ContainsFunc(o.Tunnels, func(t Tunnel) bool { return f.in(t.To) }) ||
		slices.ContainsFunc(o.Dialers, func(d Dialer) bool { return f.in(d.To) })
}

func (o Options) mark() uint32 { return cmp.Or(o.Mark, DefaultMark) }

func (o Options) table() uint32 { return cmp.Or(o.Table, DefaultTable) }

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

// Commands returns the nft and ip commands that do what [Host.Set] does, as a shell
// takes them.
func Commands(o Options) (lines []string) {
	for _, d := range deliveries(o) {
		for _, arguments := range d.commands() {
			lines = append(lines, "ip "+arguments)
		}
	}
	for _, arguments := range newRuleset(o).commands() {
		lines = append(lines, "nft '"+arguments+"'")
	}
	return lines
}

// Status is what a relay intercepts, with counters.
type Status struct {
	Relay   string         `json:"relay"`
	Mark    uint32         `json:"mark"`
	Table   uint32         `json:"table"`
	Tunnels []TunnelStatus `json:"tunnels"`
	Dialers []DialerStatus `json:"dialers,omitempty"`
	// Problem says what is wrong and what follows, such as of Missing.
	Problem string `json:"problem,omitempty"`
	// Missing are the parts that another program has removed.
	Missing []Missing      `json:"missing,omitempty"`
	Claims  []ledger.Claim `json:"claims,omitempty"`
}

// TunnelStatus is a tunnel with its counters.
type TunnelStatus struct {
	Tunnel
	// Connections counts the SYNs that were given to the relay.
	Connections uint64 `json:"connections"`
	// Bypassed counts the SYNs that passed directly because the tunnel was paused.
	Bypassed uint64 `json:"bypassed"`
	// Signed counts the SYNs that passed directly because their segments are signed
	// (TCP-MD5, TCP-AO), which no relay can split.
	Signed uint64 `json:"signed"`
}

// DialerStatus is a dialer with its counter.
type DialerStatus struct {
	Dialer
	// Connections counts the targets' answers to a SYN.
	Connections uint64 `json:"connections"`
}
