// Package relay is the split-TCP data path: it accepts a connection, admits
// it, dials the next hop, moves the bytes of both directions with splice, and
// ends both legs the way their peers ended them.
//
// Its promise about endings: a peer sees a clean end of stream only if the
// other peer ended its stream cleanly and every byte before that end has been
// handed over. Everything else, the death of this process included, reaches
// the peer as a reset.
package relay

import (
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"time"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/carry/relay/names"
	"longhaul/internal/sys/splice"
	"longhaul/internal/words/portrange"
)

// Options describe a relay. The zero value of every field is usable.
type Options struct {
	// Workers is the number of event loops; 0 means one per usable CPU.
	Workers int

	// HalfCloseTimeout reaps a flow of which one direction has ended and the
	// other has been silent this long. 0 means the default of one hour;
	// negative means never.
	HalfCloseTimeout time.Duration

	// ResetDrainTimeout bounds how long bytes that were received before a
	// reset may take to reach the other peer, which is reset after them.
	// 0 means 30 s.
	ResetDrainTimeout time.Duration

	// MemoryLimitBytes bounds what the flows' sockets and pipes hold, as the
	// kernel counts; 0 means no bound. SetMemoryLimit changes it.
	MemoryLimitBytes int64

	// StallTimeout is for how long a flow that holds memory may get none of it
	// delivered while memory is short; then it may be reset. 0 means 30 s,
	// negative never.
	StallTimeout time.Duration

	// Listeners are sockets that another process has handed over. The first
	// change takes one over in place of binding its address anew. The caller
	// closes the files after that change was committed.
	Listeners []Listener

	// Drained are the names of tunnels that are drained from the start.
	Drained []string

	// Hops is what another relay knew of hops that could not be used, and Names
	// what it knew of names.
	Hops  []hops.Memory
	Names []names.Memory

	// Log receives events of the relay (not of flows). Nil discards them.
	Log *slog.Logger

	// OnFlows is told of every flow that has ended and of every connection
	// that was refused admission, each once, those of one turn of an event
	// loop together. It runs on the loop: it must not block, and the slice is
	// used again once it returns. Nil means nobody listens.
	OnFlows func([]report.Record)

	// LegStats says whether somebody will look at the kernel's figures of the
	// legs of a flow that ends now, having lasted so long. They cost a short
	// connection a tenth of its time. Nil means always. It runs on the loop.
	LegStats func(lasted time.Duration) bool

	// Resolve turns a host name into addresses; nil means the system's
	// resolver. It is never called for literal addresses.
	Resolve names.Resolver

	// openPipe stands in for the making of pipes, in tests of their exhaustion.
	openPipe func() *splice.Pipe

	// clock stands in for the monotonic clock of the event loops, in tests of deadlines.
	clock func() time.Duration
}

// Tunnel is where a relay listens, who may use it and where it leads.
type Tunnel struct {
	// Name identifies the tunnel across reloads, in logs and in status.
	Name string

	// Listen are the listening addresses. Listen[i] leads to
	// Forward[j].Port + (Listen[i].Port - lowest port of Listen): port
	// ranges map one to one.
	Listen []netip.AddrPort

	// Inherited are listening sockets that somebody else has bound (systemd
	// socket activation). The relay takes them over; it listens on them in
	// place of the equal entry of Listen, or in addition to Listen.
	Inherited []*os.File

	// Transparent listeners take connections to any address that the kernel
	// delivers to them (TPROXY). The listening address of a flow is the one that
	// its client dialed. Listen has loopback addresses; a connection to one of
	// them is refused. A drained tunnel goes on listening: whoever has the kernel
	// deliver connections stops that.
	Transparent bool
	Intercepts  string // what the kernel delivers there, for status
	// SourceClient dials from the client's own address and port. The network has
	// to bring the target's packets back to this host.
	SourceClient bool
	// LocalTargets has flows reach addresses of this host that their clients dialed,
	// where no other hop is given.
	LocalTargets bool
	// Forward are the next hops. A flow's connect is tried on one after the
	// other, by priority and Balance, until one accepts. If they have carriers,
	// the tunnel is a near one, and its flows go to far relays.
	Forward []hops.Target
	// Service is the service of the DNS that Forward comes from, which may be empty then.
	Service string
	Balance hops.Balance // empty means ordered
	Health  hops.Health

	// Allow are the source prefixes that may use the tunnel; empty allows
	// everybody. A source in IPv4-mapped IPv6 form counts as IPv4.
	Allow []netip.Prefix

	// MaxFlows bounds concurrent flows; 0 means no bound. MaxFlowsPerSource
	// bounds those of an IPv4 address or an IPv6 network of 64 bits; 0 means
	// eight times what is free of MaxFlows, negative no bound.
	MaxFlows, MaxFlowsPerSource int

	// NewFlowsPerSecond bounds the rate of new flows with a burst of one
	// second's worth; 0 means no bound.
	NewFlowsPerSecond float64

	// NewFlowsPerSecondPerSource bounds the rate of each source's new flows, at
	// least 1; 0 means that none takes the last eighth or so of
	// NewFlowsPerSecond from others, negative no bound.
	NewFlowsPerSecondPerSource float64

	ConnectTimeout time.Duration // over all targets and addresses; 0 means 10 s
	IdleTimeout    time.Duration // reset a flow that moved no byte for this long; 0 means never

	ProxyIn  ProxyIn
	ProxyOut ProxyVersion

	// Transport sets up the sockets of both legs. Nil leaves the kernel's
	// defaults in place.
	Transport Transport

	// Destinations replace Transport for legs to targets in their prefixes, the
	// longest prefix first.
	Destinations []Destination

	// Integrity answers integrity checks. Nil forwards them as any other bytes.
	Integrity IntegrityServer

	// PairServer makes this a far tunnel, which takes only the flows of near
	// relays. The hops of a near tunnel have carriers. Nil: it is no far tunnel.
	PairServer PairServer
	// Resume is how long a flow waits for one of several far relays if a pair of the
	// tunnel has stood; before, ConnectTimeout is.
	Resume time.Duration
	// Dialable bounds what near relays may have a far tunnel dial whose hop is the
	// address that the client dialed.
	Dialable Dialable
}

// Equal reports whether a reload may leave the tunnel as it is. Transports and servers are equal
// if they are the same one. Inherited does not count: Prepare compares those sockets by address.
func (t *Tunnel) Equal(o *Tunnel) bool {
	return t.Name == o.Name &&
		slices.Equal(t.Listen, o.Listen) &&
		t.Transparent == o.Transparent &&
		t.Intercepts == o.Intercepts &&
		t.SourceClient == o.SourceClient &&
		t.LocalTargets == o.LocalTargets &&
		slices.Equal(t.Forward, o.Forward) &&
		t.Service == o.Service &&
		t.Balance == o.Balance &&
		t.Health == o.Health &&
		slices.Equal(t.Allow, o.Allow) &&
		t.MaxFlows == o.MaxFlows &&
		t.MaxFlowsPerSource == o.MaxFlowsPerSource &&
		t.NewFlowsPerSecond == o.NewFlowsPerSecond &&
		t.NewFlowsPerSecondPerSource == o.NewFlowsPerSecondPerSource &&
		t.ConnectTimeout == o.ConnectTimeout &&
		t.IdleTimeout == o.IdleTimeout &&
		t.ProxyIn.equal(&o.ProxyIn) &&
		t.ProxyOut == o.ProxyOut &&
		t.Transport == o.Transport &&
		slices.Equal(t.Destinations, o.Destinations) &&
		t.Integrity == o.Integrity &&
		t.PairServer == o.PairServer &&
		t.Resume == o.Resume &&
		t.Dialable.equal(&o.Dialable)
}

// Dialable are the flows that a far tunnel dials as their clients did.
type Dialable struct {
	From  []netip.Prefix    // clients; empty: all
	To    []netip.Prefix    // targets; empty: none
	Ports []portrange.Range // of the targets; empty: all
}

func (d *Dialable) equal(o *Dialable) bool {
	return slices.Equal(d.From, o.From) && slices.Equal(d.To, o.To) && slices.Equal(d.Ports, o.Ports)
}

// Destination is the transport of legs to the targets in a prefix.
type Destination struct {
	Prefix    netip.Prefix
	Transport Transport
}

// transportTo returns the transport of legs to a target, and the prefix of the
// destination that has it, which is not valid if none has.
func (t *Tunnel) transportTo(target netip.Addr) (Transport, netip.Prefix) {
	target = target.Unmap()
	for _, d := range t.Destinations {
		if d.Prefix.Contains(target) {
			return d.Transport, d.Prefix
		}
	}
	return t.Transport, netip.Prefix{}
}

// ProxyIn says from whom a PROXY protocol header (v1 or v2) is required.
// A connection of any other source is refused when Required is set.
type ProxyIn struct {
	Required bool
	Trusted  []netip.Prefix // empty: every source that Allow admits
}

func (p *ProxyIn) equal(o *ProxyIn) bool {
	return p.Required == o.Required && slices.Equal(p.Trusted, o.Trusted)
}

// ProxyVersion is the PROXY protocol version that is sent to the target.
type ProxyVersion uint8

// The PROXY protocol versions.
const (
	ProxyNone ProxyVersion = 0
	ProxyV1   ProxyVersion = 1
	ProxyV2   ProxyVersion = 2
)

// Transport sets the socket options of a leg. Implementations are called from
// several event loops at once and must not block.
type Transport interface {
	// Prepare sets what must stand before the handshake, on a listening
	// socket (dialed false) or on one that is about to connect. Connections
	// that stood before the relay took their listener over are prepared as that.
	Prepare(fd int, dialed bool) error

	// Early reports whether a leg needs Established before its first bytes.
	Early(dialed bool) bool

	// Established sets what depends on the path once the handshake is done. If Early
	// does not ask for it, that is for a flow that moves 16 KiB, outlives its first
	// second, or is looked at.
	// It returns what it found the leg to be: side is "lan" or "wan", and
	// degraded says in one clause what was asked for and could not be had,
	// empty when the leg is as asked.
	Established(fd int, dialed bool) (side, degraded string)

	// Lasting sets, on a leg that was dialed, what only a connection needs
	// that outlives its first second. side is what Established returned.
	Lasting(fd int, side string) error
}

// Leftover is a flow that had not ended when the relay stopped.
type Leftover struct {
	Tunnel         string
	Client, Target netip.AddrPort

	// What was received for the peer and not acknowledged by it.
	ToClientBytes, ToTargetBytes int64

	// Delivering says that both peers had ended their streams: the kernel goes
	// on to deliver the rest, and both ends. Otherwise the flow was reset.
	Delivering bool
}
