package flow

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"longhaul/internal/words/units"
)

// Two paired relays carry a flow over connections of their own between them, its lanes. The
// relay's event loop admits, counts, watches and records such a flow as any other, and a carrier
// moves its bytes. Neither package imports the other: this file is what they say to each other.

// Carrier carries the flows of a near tunnel to the paired far relay. Its methods run on an event
// loop and must not block.
type Carrier interface {
	// Carry takes over an admitted client.
	Carry(c Client, o Owner) Carried

	// Taking says whether the far relay takes new flows now.
	Taking() Taking
}

// Client is a client whose flow a carrier takes over.
type Client struct {
	FD           int            // of a connected, non-blocking socket, which the carrier owns
	From, Listen netip.AddrPort // from the PROXY header where one was required
	Early        []byte         // what was read of its stream, without a PROXY header
	Name         Name           // of the flow
	Via          Via            // the relays that it has passed, without this one
	Offset       uint16         // of the port that the client dialed in the tunnel's range
	// Deadline is how long the far relay may take to reach the target, and how long the client
	// waits for a session, but for an outage, which it waits for as long as other flows;
	// 0: 10 s.
	Deadline time.Duration
	// Others: the tunnel has other hops. Until the far relay has a target, the carrier reads nothing
	// of the client and sends nothing that it has said, so that no request reaches two targets, and it
	// gives the client back (see End.Back) once the hop is lost or suspect or refuses the flow.
	Others bool
	// Opened hears that the far relay has a target, whose address the figures have from now on. It is
	// called once at most, before anything of the flow's end, with the flow's lock held: it must neither
	// block nor ask the carrier. Nil: nobody asks.
	Opened func()
	Legs   *LegOptions // which nobody changes; nil: the defaults
}

// LegOptions are what a carrier does with a flow's socket at this relay. How long a flow may be silent
// is the relay's to decide.
type LegOptions struct {
	ResetDrain time.Duration // for the delivery of bytes that came before a reset; 0: 10 s
	Joint      *Joint        // of a socket that leads to another part of the flow in this process; nil: it does not
}

// Owner is the relay's part of a flow that a carrier carries. Any goroutine calls its methods.
type Owner interface {
	// Closing sees the flow's socket before the carrier closes it, to read its figures.
	Closing(fd int)

	// Ended gets the flow's end, once, after its socket is closed.
	Ended(e End)
}

// OnEnd is an [Owner] that looks at the end alone.
type OnEnd func(End)

// Closing implements Owner.
func (OnEnd) Closing(int) {}

// Ended implements Owner.
func (f OnEnd) Ended(e End) { f(e) }

// Carried is a flow that a carrier moves. Its methods must not block.
type Carried interface {
	Figures() Figures

	// Owner is who has the flow here; nil: nobody, or nobody yet.
	Owner() Owner

	// Inspect calls look with the flow's socket and that of its present lane, each -1 if it has
	// none. Both stay open until look returns. The lane's counters and add are those of the flow.
	Inspect(look func(leg, lane int, add Counters))

	// EachLane returns the lanes of a flow that has several.
	EachLane() []Lane

	// WaitsForPath reports whether the flow's bytes wait for the path between the relays,
	// and not for somebody who does not read.
	WaitsForPath() bool

	// GiveBack asks for the client, which comes as an End with Back, unless the far relay has a
	// target for the flow already, or the client had no Others.
	GiveBack()

	// Reset resets both peers, and both relays record the reason. If the other relay is done with the
	// flow, only the peer here is reset, and with EndDrain its rest is left to the kernel.
	Reset(reason EndReason, err error)
}

// The states of a carried flow.
const (
	StateDialing    = "dialing"
	StateOpen       = "open"
	StateParked     = "parked"     // silent, without a lane
	StateResuming   = "resuming"   // without a lane that it needs
	StateDelivering = "delivering" // what came before its end
)

// Figures are a carried flow at one moment. JSON has what only such a flow has.
type Figures struct {
	State     string         `json:"-"`
	BytesUp   int64          `json:"-"`
	BytesDown int64          `json:"-"`
	Peer      string         `json:"-"` // the other relay
	Target    netip.AddrPort `json:"-"` // zero: none was dialed, as far as this relay knows
	Idle      time.Duration  `json:"-"` // since a byte or an end moved
	Ended     bool           `json:"-"` // a stream has ended: the flow waits for the other, or for acknowledgements
	Clean     bool           `json:"-"` // both have, and nothing is left but what the kernel has for the peer here

	Retained int64         `json:"retained_bytes"` // sent, and not yet acknowledged by the other relay
	Lanes    int           `json:"lanes"`          // connections over the WAN now
	Resumes  int           `json:"resumes"`        // lost lanes that others replaced
	Outage   units.Seconds `json:"outage_seconds"` // without a lane that it needed
	RTT      units.Seconds `json:"rtt_seconds"`    // between the relays
	// MemoryLimited: the flow would keep more, and the relay's memory does not allow it.
	MemoryLimited bool `json:"memory_limited,omitempty"`
}

// Counters are what the kernel has sent over lanes.
type Counters struct {
	BytesSent          int64 // with those that were sent again
	BytesRetransmitted int64
	Retransmits        int64 // segments, without those that the peer had already
}

// Plus adds counters.
func (c Counters) Plus(o Counters) Counters {
	return Counters{c.BytesSent + o.BytesSent, c.BytesRetransmitted + o.BytesRetransmitted, c.Retransmits + o.Retransmits}
}

// Minus subtracts counters.
func (c Counters) Minus(o Counters) Counters {
	return Counters{c.BytesSent - o.BytesSent, c.BytesRetransmitted - o.BytesRetransmitted, c.Retransmits - o.Retransmits}
}

// End is how a carried flow ended. Both relays have the same reason.
type End struct {
	Reason EndReason
	Err    error // behind the reason; nil for a clean end
	ByPeer bool  // Reason and Err are the other relay's word
	// Back is the client again, as Carry got it: the flow goes on at another hop. Reason says why it
	// does not here; nil: the flow has ended.
	Back *Client
	// BytesUp, client to target, are handed to the target's socket at the far relay, and
	// acknowledged at the near one.
	BytesUp, BytesDown int64
	Peer               string         // the other relay
	Target             netip.AddrPort // zero: none was dialed
	Resumes            int
	Outage             units.Seconds
	Lanes              Counters
	CongestionControl  string // of the session's lanes; empty: there was none
}

// Dialer has the targets of the flows that near relays ask for.
type Dialer interface {
	// Dial admits a flow and connects to its target; ctx has the near relay's deadline. An error
	// that is a [*Refusal] has the reason that both relays record; any other counts as
	// EndTargetUnreached.
	Dial(ctx context.Context, o Open) (Target, error)
}

// Open is a flow that a near relay asks for.
type Open struct {
	Tunnel         string         // the far one
	Peer           string         // the near relay's name
	Share          string         // the name whose share of the far tunnel the flow has; empty: nobody's
	Client, Listen netip.AddrPort // at the near relay; zero: it checks whether the target accepts
	Carried        Carried
	Name           Name   // zero: the near relay is of an older release
	Via            Via    // the relays that the flow has passed, without this one
	Offset         uint16 // of the port among those of the far tunnel's range
	// Admitted is called once the flow counts, before its target has accepted, with whoever has it until
	// then; nil: nobody asks. It must not block.
	Admitted func(Owner)
}

// Target is the connection to the target of a flow that a near relay asked for.
type Target struct {
	FD   int // of a connected, non-blocking socket, which the carrier owns
	To   netip.AddrPort
	Legs *LegOptions // which nobody changes; nil: the defaults
	// Reset is why the target has reset since it accepted, if somebody has taken
	// that from the socket already: an end that is read then is no end.
	Reset error
	Owner Owner // from now on; nil: nobody
}

// Refusal is the reason that a flow is not admitted, or has no target.
type Refusal struct {
	Reason EndReason
	Err    error // may be nil
}

func (r *Refusal) Error() string {
	if r.Err == nil {
		return string(r.Reason)
	}
	return string(r.Reason) + ": " + r.Err.Error()
}

// Unwrap returns the system's error.
func (r *Refusal) Unwrap() error { return r.Err }

// ErrDialCut is in the error of a Dial that the end of the process cut short. No other process is
// to dial for the flow.
var ErrDialCut = errors.New("the relay ended while it dialed")
