// Package integrity tests the chain of relays behind a tunnel. It walks from relay
// to relay and exchanges bytes on every leg and through the relays. It reports
// the worst fault and its leg.
//
// A relay answers only askers that share its key, and each hello once. The
// target at the end of the chain receives no byte. A health check asks its kernel alone: the last
// relay's SYN is answered, and a reset follows.
package integrity

import (
	"net/netip"
	"time"

	"longhaul/internal/words/printable"
	"longhaul/internal/words/units"
)

// Next is the kind of a tunnel's next hop.
type Next string

// The kinds of a next hop.
const (
	NextRelay  Next = "relay"
	NextTarget Next = "target"
)

// State is the result for a tunnel, a chain or a hop.
type State string

// The states. Bytes have passed all of a whole chain: both ways between the relays, and from the
// target. A lossy chain loses segments. One that accepts has no fault; of its target nothing is known
// but that it accepts.
const (
	Whole   State = "whole"
	Accepts State = "accepts"
	Lossy   State = "lossy"
	Broken  State = "broken"
)

// Reason is the cause of a fault.
type Reason string

// The reasons.
const (
	Refused     Reason = "refused"       // the connection was refused
	TimedOut    Reason = "timeout"       // no answer to the connect, or none any longer
	Unreachable Reason = "unreachable"   // no route
	Unresolved  Reason = "unresolved"    // the name has no address
	NoLocalPort Reason = "no-local-port" // ephemeral ports towards the address are used up
	NoResources Reason = "no-resources"  // out of descriptors or memory
	Reset       Reason = "reset"         // accepted, then reset
	Closed      Reason = "closed"        // accepted, then ended
	Silent      Reason = "silent"        // accepted, but no answer
	Clock       Reason = "clock"         // the relay refuses a check's time, even by its reported clock
	Busy        Reason = "busy"          // the relay answers too many checks at the same time
	Foreign     Reason = "foreign"       // the answer is not from a relay with this key
	Altered     Reason = "altered"       // received bytes differ from the sent ones
	Stalled     Reason = "stalled"       // some bytes pass, then no more
	Losing      Reason = "loss"          // segments are lost
	Loop        Reason = "loop"          // the chain leads back into itself
	TooLong     Reason = "too-long"      // more relays than a check follows
	Failed      Reason = "failed"        // anything else
)

// Kind is the kind of a hop.
type Kind string

// The kinds of hops.
const (
	KindRelay   Kind = "relay"   // a longhaul that answered
	KindTarget  Kind = "target"  // the end of the chain; it receives no bytes
	KindOther   Kind = "other"   // something between two relays: a proxy, address translation
	KindUnknown Kind = "unknown" // it did not answer
)

// Report is the result of checking a tunnel.
type Report struct {
	Tunnel         string    `json:"tunnel"`
	At             time.Time `json:"at"`
	ElapsedSeconds float64   `json:"elapsed_seconds"`
	State          State     `json:"state"`
	// Summary is the result in a sentence, Hint the remedy.
	Summary string  `json:"summary"`
	Hint    string  `json:"hint,omitempty"`
	Chains  []Chain `json:"chains"` // one for each hop of the tunnel
}

// Chain is the path through one hop of the tunnel to the end.
type Chain struct {
	Forward string `json:"forward"`        // the tunnel's hop as configured
	Note    string `json:"note,omitempty"` // why it gets no new flows, whatever the check finds
	State   State  `json:"state"`
	Fault   *Fault `json:"fault"` // null: none
	Hops    []Hop  `json:"hops"`
}

// Fault is a fault of a chain and its place.
type Fault struct {
	Reason Reason `json:"reason"`
	Hop    int    `json:"hop"` // number of the hop, from 1; the fault is between it and the previous one
	// From and To are the ends of the faulty leg.
	From string `json:"from"`
	To   string `json:"to"`
	// Direction is that of the altered or stalled bytes: "up", towards the
	// target, or "down". OffsetBytes counts from the beginning of their
	// connection, and is exact if WithinBytes is 1.
	Direction    string `json:"direction,omitempty"`
	AlteredBytes int64  `json:"altered_bytes,omitempty"`
	OffsetBytes  *int64 `json:"offset_bytes,omitempty"`
	WithinBytes  int    `json:"within_bytes,omitempty"`
	Detail       string `json:"detail,omitempty"` // the system's error
	Text         string `json:"text"`
	Hint         string `json:"hint,omitempty"`
}

// Hop is one hop of a chain with the leg to it. Unknown values are null.
type Hop struct {
	Kind    Kind           `json:"kind"`
	Address netip.AddrPort `json:"address"`
	Host    string         `json:"host,omitempty"`
	Tunnel  string         `json:"tunnel,omitempty"`
	Version string         `json:"version,omitempty"`
	State   State          `json:"state"`
	Connect *units.Seconds `json:"connect_seconds"`
	RTT     *units.Seconds `json:"rtt_seconds"`    // lowest RTT of TCP
	Answer  *units.Seconds `json:"answer_seconds"` // time of the relay's answer
	// ClockAheadSeconds is the lead of the relay's clock over that of the
	// checking relay.
	ClockAheadSeconds *int64 `json:"clock_ahead_seconds"`

	Greeting int64 `json:"greeting_bytes,omitempty"` // that a target has sent

	Up      *Direction `json:"up"` // over the leg to this hop
	Down    *Direction `json:"down"`
	Through *Through   `json:"through,omitempty"` // from the first relay through the intermediate ones
}

// Through is the result of bytes that passed through relays as in an ordinary
// flow.
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
	// OutOfOrder counts segments received out of order: they show losses that
	// the leg's sender does not see.
	OutOfOrder *int64 `json:"out_of_order_segments"`
}

// LossRatio is the share of lost segments; negative: unknown.
func (d *Direction) LossRatio() float64 {
	if d == nil || d.Segments == nil || d.LostSegments == nil || *d.Segments == 0 {
		return -1
	}
	return float64(*d.LostSegments) / float64(*d.Segments)
}

// name is the name of a hop in texts.
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

// clean makes another host's text safe for a terminal and a log.
func clean(s string) string {
	if len(s) > maxText {
		s = s[:maxText]
	}
	return printable.String(s)
}

func inSeconds(d time.Duration) *units.Seconds {
	if d <= 0 {
		return nil
	}
	v := units.Seconds(d.Round(time.Microsecond))
	return &v
}
