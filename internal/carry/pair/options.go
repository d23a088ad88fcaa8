package pair

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

// maxDeadline bounds the time in which a peer wants a target: what a configuration may have.
const maxDeadline = time.Hour

// Defaults of options that are zero.
const (
	DefaultResume        = 2 * time.Minute
	DefaultParkAfter     = 30 * time.Second
	DefaultStripeAfter   = 512 << 10
	DefaultReplacedAfter = 10 * time.Second
	DefaultRefusedFor    = 5 * time.Second
	DefaultLateNoResume  = 30 * time.Second
	DefaultResetDrain    = 10 * time.Second
	DefaultRetained      = 256 << 20
)

// waitNoResume is how long a flow that does not resume waits for its first lane, or for
// another while nothing was lost with the one before.
const waitNoResume = 10 * time.Second

// Options are what all links and sessions of a process share.
type Options struct {
	Identity Identity
	Release  string // longhaul's version, as text
	Log      *slog.Logger
	// RetainedLimit bounds the memory of all stores together, in bytes. It is asked for again
	// each second; nil: DefaultRetained.
	RetainedLimit func() int64
	// Boot is the same for each process of this host until the host restarts, and of no other host;
	// 0: unknown.
	Boot uint64
	// Elsewhere takes a socket whose preface names another instance, such as the
	// process that this one replaces. It reports whether it took the descriptor;
	// first are the bytes that were read of it. Nil: there is none.
	Elsewhere func(instance uint64, fd int, first []byte) bool
	// Fate is what became of another process that this one follows, as far as it concerns a session of
	// a near relay. With FateInOrder come the flows of it that are owed, as Owed has them. Nil: this
	// process follows none.
	Fate func(instance uint64, near NearSession) (fate Fate, owed []byte)
	// Trace is this process's part of the trace of a flow that the other relay asks about, and the parts of
	// the relays behind this one, which may take until ctx ends. If it is nil, this end answers no TRACE.
	Trace func(ctx context.Context, f flow.Carried) flow.Trace
	// ParkAfter is the silence after which a flow gives its lane back.
	ParkAfter time.Duration
	// StripeAfter is how many bytes a flow moves before it gets more than one lane.
	StripeAfter uint64
	// CompressAlways: sessions that compress make records of all bytes, whether that gains
	// anything or not.
	CompressAlways bool
	// Without are features that links do not offer, as those of an older release.
	Without wire.Features
	// LateNoResume is the shortest time for what is under way in a flow that ends with its lane; 0:
	// DefaultLateNoResume.
	LateNoResume time.Duration
	// MaxBegun is how many handshakes may be in the middle of TLS; 0: maxBegun for every two CPUs.
	MaxBegun int
	// ReplacedAfter is how long a near process may be away whose successor is here.
	ReplacedAfter time.Duration
	// RefusedFor is for how long the host of a far process that is away refuses every connection until
	// that process counts as dead.
	RefusedFor time.Duration
}

// Fate is what became of a process before this one.
type Fate byte

// The fates.
const (
	FateUnknown Fate = iota // it has died, or this process does not know it, or not what it owed
	FateOpen                // it has not ended yet, or it is not known yet how
	FateInOrder             // it has ended, and what it owed is known
)

// LinkOptions are the way of one near tunnel to its far relay.
type LinkOptions struct {
	Tunnel string
	Peer   string // its name in Identity
	Hop    string // the far relay as the configuration names it; empty: the tunnel has no other
	Place  int    // among the tunnel's hops: of those that lead to one host, only the first is used
	Ports  int    // in the tunnel's range; 0: 1
	// Addresses are those of the far relay now, the one to try first first.
	Addresses func(context.Context) ([]netip.AddrPort, error)
	// LanesTo are the prefixes in which the own address of a far relay may lie, beside the addresses of
	// Addresses: it is the far relay's word, and connections go there.
	LanesTo  []netip.Prefix
	Paths    []PathOptions // none: one, by the host's routes
	Warm     int           // idle lanes, on each path
	Lanes    int           // of a flow that moves much; 0: 1
	Resume   time.Duration // how long a flow waits for a lane; 0: DefaultResume
	NoResume bool          // a flow ends with its lane; Resume has no meaning then
	Clear    bool          // lanes in clear; the far relay must want the same
	Compress bool          // records that become smaller are compressed while lanes are what limits a flow
	// Origin is the same for each process of this near tunnel, also after a restart. By it, and by
	// Boot, the far relay finds the flows of processes that have died; empty: they wait for Resume.
	Origin string
	// Stood: the pair stood before this process began, as the process before it says, and has been away
	// for Away.
	Stood bool
	Away  time.Duration
	Host  string // that was met then
	// Changed is called whenever what Taking says of new flows may have become another: whether they are to
	// come here, or the host. It is called without locks, for several changes perhaps once; nil: nobody asks.
	Changed func()
	// Prepare sets options of a socket before it connects; nil: none.
	Prepare func(fd int) error
	// Established sets options of a lane or control connection that stands; nil: none.
	Established func(fd int)
}

// Acceptor is a far tunnel. Its methods are called again for each connection and
// each flow, from many goroutines, so that a reload reaches sessions that stand.
type Acceptor interface {
	Tunnel() string
	// Admits reports whether a peer may open flows here.
	Admits(peer string) bool
	// Removed reports whether the tunnel is gone: nobody may open flows. Those that exist
	// go on.
	Removed() bool
	// Trouble says why the tunnel takes no flows now, so that each client would be reset; empty: it takes
	// them. known is false while nobody knows. It is asked for often.
	Trouble() (text string, known bool)
	// Clear reports whether lanes go in clear. A peer that wants it otherwise is refused.
	Clear() bool
	// Advertise is the address at which this process takes connections and no other host does, for near
	// relays that have dialed one that several hosts share; invalid: the one from which the kernel sends
	// to the near relay, with the port to which that has come.
	Advertise() netip.AddrPort
	flow.Dialer
}

// refusal is the cause of an error of Dial.
func refusal(err error) stream.Cause {
	var r *flow.Refusal
	if errors.As(err, &r) {
		return cause(r.Reason, r.Err)
	}
	return cause(flow.EndTargetUnreached, err)
}

// NearSession names a session as its far relay knows it.
type NearSession struct {
	Peer     string `json:"peer"`
	Instance uint64 `json:"near_instance,omitempty"`
	Session  uint64 `json:"session,omitempty"`
}

// Owed are flows that have ended in a process, while their near relay may wait for news of them.
type Owed struct {
	NearSession        // of all sessions of the peer, if it has no numbers
	Flows       []byte `json:"flows,omitempty"` // as HELLO has them; none: any flow may be owed
}

// PathOptions are one way to a far relay.
type PathOptions struct {
	Name      string     // that no other of the link has
	Local     netip.Addr // that connections are bound to; invalid: any
	Interface string     // through which packets leave; empty: any
	// Addresses are those of the far relay on this path; nil: those of the link.
	Addresses func(context.Context) ([]netip.AddrPort, error)
	Standby   bool // used while all others are lost
}

// usualLegs are what a flow without options has.
var usualLegs = flow.LegOptions{ResetDrain: DefaultResetDrain}

// withDefaults returns the options themselves where nothing lacks: thousands of flows share them.
func withDefaults(o *flow.LegOptions) *flow.LegOptions {
	switch {
	case o == nil:
		return &usualLegs
	case o.ResetDrain == 0:
		return &flow.LegOptions{ResetDrain: DefaultResetDrain, Joint: o.Joint}
	}
	return o
}
