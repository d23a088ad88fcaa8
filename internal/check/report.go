package check

import (
	"net/netip"
	"time"

	"longhaul/internal/printable"
)

// Next says what a tunnel leads to.
type Next string

// The kinds of a next hop.
const (
	NextRelay  Next = "relay"
	NextTarget Next = "target"
)

// State is what a check found of a tunnel, a chain or a hop.
type State string

// The states. A lossy one is whole, and loses segments on the way.
const (
	Whole  State = "whole"
	Lossy  State = "lossy"
	Broken State = "broken"
)

// Reason says why a chain is broken.
type Reason string

// The reasons.
const (
	Refused     Reason = "refused"       // the connection was refused
	TimedOut    Reason = "timeout"       // no answer to the attempt to connect, or none any more
	Unreachable Reason = "unreachable"   // no way leads there
	Unresolved  Reason = "unresolved"    // the name has no address
	NoLocalPort Reason = "no-local-port" // ports towards the address are used up
	NoResources Reason = "no-resources"  // out of descriptors or memory
	Reset       Reason = "reset"         // accepted, then reset
	Closed      Reason = "closed"        // accepted, then ended
	Silent      Reason = "silent"        // accepted, and no answer
	Clock       Reason = "clock"         // the relay refuses a check's time, even by the clock that it told
	Busy        Reason = "busy"          // the relay answers too many checks at the same time
	Foreign     Reason = "foreign"       // what answers is no relay with this key
	Altered     Reason = "altered"       // bytes are not those that were sent
	Stalled     Reason = "stalled"       // little passes, more does not
	Losing      Reason = "loss"          // segments are lost; the chain is whole
	Loop        Reason = "loop"          // the chain leads back into itself
	TooLong     Reason = "too-long"      // more relays than a check walks
	Failed      Reason = "failed"        // anything else
)

// Kind is what a hop is.
type Kind string

// The kinds of hops.
const (
	KindRelay   Kind = "relay"   // a longhaul that answered
	KindTarget  Kind = "target"  // where the chain leads; it is sent nothing
	KindOther   Kind = "other"   // something between two relays: a proxy, address translation
	KindUnknown Kind = "unknown" // it did not answer
)

// Report is a check of a tunnel.
type Report struct {
	Tunnel         string    `json:"tunnel"`
	At             time.Time `json:"at"`
	ElapsedSeconds float64   `json:"elapsed_seconds"`
	State          State     `json:"state"`
	// Summary says in a sentence what was found, Hint what to do about it.
	Summary string  `json:"summary"`
	Hint    string  `json:"hint,omitempty"`
	Chains  []Chain `json:"chains"` // one for each hop of the tunnel
}

// Chain is the way through one hop of the tunnel to the end.
type Chain struct {
	Forward string `json:"forward"` // the tunnel's hop, as it is configured
	State   State  `json:"state"`
	Fault   *Fault `json:"fault"` // null: none was found
	Hops    []Hop  `json:"hops"`
}

// Fault is what is wrong with a chain, and where.
type Fault struct {
	Reason Reason `json:"reason"`
	Hop    int    `json:"hop"` // the number of the hop, from 1; what is wrong lies between it and the one before
	// From and To are the two ends between which it lies.
	From string `json:"from"`
	To   string `json:"to"`
	// Direction is that of what was altered or got stuck: "up", towards the
	// target, or "down". OffsetBytes counts from the beginning of the
	// connection on which it came, and is exact if WithinBytes is 1.
	Direction    string `json:"direction,omitempty"`
	AlteredBytes int64  `json:"altered_bytes,omitempty"`
	OffsetBytes  *int64 `json:"offset_bytes,omitempty"`
	WithinBytes  int    `json:"within_bytes,omitempty"`
	Detail       string `json:"detail,omitempty"` // the system's error
	Text         string `json:"text"`
	Hint         string `json:"hint,omitempty"`
}

// Hop is one hop of a chain, with the leg that leads to it. What is not known is
// null.
type Hop struct {
	Kind      Kind           `json:"kind"`
	Address   netip.AddrPort `json:"address"`
	Host      string         `json:"host,omitempty"`
	Tunnel    string         `json:"tunnel,omitempty"`
	Version   string         `json:"version,omitempty"`
	State     State          `json:"state"`
	ConnectMs *float64       `json:"connect_ms"`
	RTTMs     *float64       `json:"rtt_ms"`    // of TCP, the least
	AnswerMs  *float64       `json:"answer_ms"` // of a question to the relay
	// ClockAheadSeconds is by how much the relay's clock is ahead of that of the
	// relay that checks.
	ClockAheadSeconds *int64 `json:"clock_ahead_seconds"`

	Up      *Direction `json:"up"` // over the leg to this hop
	Down    *Direction `json:"down"`
	Through *Through   `json:"through,omitempty"` // from the first relay, through the ones between
}

// Through are figures of bytes that passed through relays as those of any flow.
type Through struct {
	Up   Direction `json:"up"`
	Down Direction `json:"down"`
}

// Direction is one direction of an exchange.
type Direction struct {
	Bytes        int64    `json:"bytes"`
	AlteredBytes int64    `json:"altered_bytes"`
	GoodputBps   *float64 `json:"goodput_bps"`
	Segments     *int64   `json:"segments"`
	LostSegments *int64   `json:"lost_segments"`
	// OutOfOrder counts segments that came out of order at the receiver: it
	// shows losses that the sender of the leg does not see.
	OutOfOrder *int64 `json:"out_of_order_segments"`
}

// LossRatio is the share of segments that were lost; negative if it is not known.
func (d *Direction) LossRatio() float64 {
	if d == nil || d.Segments == nil || d.LostSegments == nil || *d.Segments == 0 {
		return -1
	}
	return float64(*d.LostSegments) / float64(*d.Segments)
}

// name is how texts call a hop.
func (h Hop) name() string {
	address := h.Address.String()
	switch {
	case !h.Address.IsValid():
		return h.Host
	case h.Host != "":
		return h.Host + " (" + address + ")"
	}
	return address
}

const maxText = 256

// clean makes a text that another host sent fit for a terminal and a log.
func clean(s string) string {
	if len(s) > maxText {
		s = s[:maxText]
	}
	return printable.String(s)
}

func ms(d time.Duration) *float64 {
	if d <= 0 {
		return nil
	}
	v := float64(d.Round(time.Microsecond)) / float64(time.Millisecond)
	return &v
}
