// Package flow is the vocabulary of flows that relay, monitor, history, web and
// daemon share: an end-to-end byte stream with the two TCP connections, its legs,
// that carry it.
package flow

import (
	"bytes"
	"net/netip"
	"time"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/units"
)

// ID identifies a flow of one relay process; it is never used twice.
type ID uint64

// Address is an address with a port, empty in JSON if it is missing. One without a port whose last bits
// are 0 is what a relay sends where it truncates clients: its text is a prefix, such as 10.1.2.0/24.
type Address struct{ netip.AddrPort }

// TruncatedBits is how many bits of an address are left of a truncated one.
func TruncatedBits(a netip.Addr) int {
	if a.Is4() {
		return 24
	}
	return 48
}

// Truncated is the prefix that is left of an address; invalid: the address is whole, or missing.
func (a Address) Truncated() netip.Prefix {
	if !a.IsValid() || a.Port() != 0 || a.Addr().IsUnspecified() {
		return netip.Prefix{}
	}
	if p := netip.PrefixFrom(a.Addr(), TruncatedBits(a.Addr())); p.Masked() == p {
		return p
	}
	return netip.Prefix{}
}

func (a Address) String() string {
	if p := a.Truncated(); p.IsValid() {
		return p.String()
	}
	return a.AddrPort.String()
}

// MarshalText is String, empty for a missing address.
func (a Address) MarshalText() ([]byte, error) {
	if p := a.Truncated(); p.IsValid() {
		return p.MarshalText()
	}
	return a.AddrPort.MarshalText()
}

// UnmarshalText reads what MarshalText writes.
func (a *Address) UnmarshalText(text []byte) error {
	if !bytes.ContainsRune(text, '/') {
		return a.AddrPort.UnmarshalText(text)
	}
	var p netip.Prefix
	err := p.UnmarshalText(text)
	a.AddrPort = netip.AddrPortFrom(p.Addr(), 0)
	return err
}

// Leg names one of the two legs of a flow.
type Leg string

// The legs.
const (
	ClientLeg Leg = "client"
	TargetLeg Leg = "target"
)

// Sample is the state of a flow at one moment.
type Sample struct {
	ID     ID
	Name   Name   // the same in every relay that carries the flow
	Peer   string // the other relay of the pair that brings the flow or takes it on; empty: none
	Tunnel string
	State  string // header, dialing, check, open, client-ended, target-ended, delivering, resetting, parked or resuming
	Client netip.AddrPort
	Listen netip.AddrPort
	Target netip.AddrPort // zero: not dialed yet
	Hop    string         // the hop of Target, as configured
	Start  time.Time
	// Connect is how long the target took to accept; 0: it has not, or the far relay of a pair connects.
	Connect time.Duration

	BytesUp   int64 // client to target, handed to the target's socket
	BytesDown int64

	// Waited is how many samples ago the flow began to wait for this one: since the
	// previous sample, or since something happened to a flow at rest. Moved is between
	// how many of them it moved data, and one more if it did while they were taken; 0: unknown.
	Waited, Moved int

	// Unchanged: everything was acknowledged at the previous sample and nothing
	// has happened since. The kernel was not queried again, and the legs' figures
	// are missing. There is no further sample until something happens.
	Unchanged bool
	// Skipped: too many flows are busy to query the kernel about a new one.
	// A later sample does; the legs' figures are missing.
	Skipped   bool
	ClientLeg LegSample
	TargetLeg LegSample
	Lanes     []Lane // of a flow of a pair that has several
}

// LegSample is one connection of a flow at this host's end.
type LegSample struct {
	Side              string // lan or wan; empty: not yet known
	CongestionControl string // empty: unknown, or as in a sample before
	Known             bool   // Info was read
	Info              tcpinfo.Info
	SendBuffer        int64 // bound of the send queue in bytes as the kernel counts; negative: unknown
	SendQueued        int64 // bytes; negative: unknown
	MemoryLimited     bool  // of a lane: the relay's memory bounds what it has to send
}

// Waiting is about the number of bytes that wait for the peer: for its acknowledgement, or for
// room in its window. 0 if it is unknown.
func (l *LegSample) Waiting() uint64 {
	if !l.Known {
		return 0
	}
	return uint64(l.Info.Unacked)*uint64(max(l.Info.SndMSS, 1)) + uint64(l.Info.NotsentBytes)
}

// Record is the account of a flow that has ended, or of a connection that was
// refused admission.
type Record struct {
	Flow    ID            `json:"flow"`           // 0: refused admission
	Name    Name          `json:"name,omitzero"`  // the same in every relay that carries the flow
	Peer    string        `json:"peer,omitempty"` // the other relay of the pair that brought the flow or took it on
	Tunnel  string        `json:"tunnel"`
	Client  Address       `json:"client"` // from the PROXY header where one was required
	Listen  Address       `json:"-"`      // the address that the client connected to
	Target  Address       `json:"target"` // empty: none was dialed
	Hop     string        `json:"hop,omitempty"`
	Start   time.Time     `json:"start"`
	Elapsed units.Seconds `json:"elapsed_seconds"` // by a clock that does not step
	Connect time.Duration `json:"-"`               // as in a Sample

	BytesUp   int64     `json:"bytes_up"` // client to target, handed to the target's socket
	BytesDown int64     `json:"bytes_down"`
	ClientLeg LegRecord `json:"client_leg"`
	TargetLeg LegRecord `json:"target_leg"`

	Reason EndReason `json:"reason"`
	Err    error     `json:"-"` // the system's, behind Reason; nil for a clean end
	ByPeer bool      `json:"-"` // Reason and Err are the word of the other relay of a pair

	// Of a flow that a pair of relays carried.
	Resumes int64         `json:"resumes,omitempty"`        // lost connections over the WAN that others replaced
	Outage  units.Seconds `json:"outage_seconds,omitempty"` // without a connection that it needed
}

// EndedBy returns the party that caused the end: client, target, both or relay; or peer.
func (r *Record) EndedBy() string {
	if r.ByPeer {
		return EndedByPeer
	}
	return r.Reason.EndedBy()
}

// GoodputBps is the mean rate of both directions together, in bits per second;
// 0 for a flow without duration.
func (r *Record) GoodputBps() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.BytesUp+r.BytesDown) * 8 / r.Elapsed.Duration().Seconds()
}

// LegRecord is the state of a leg at its end. Zero means unknown; for the
// counts, a negative value does.
type LegRecord struct {
	Side               string        `json:"side,omitempty"` // lan or wan
	CongestionControl  string        `json:"congestion_control,omitempty"`
	RTT                units.Seconds `json:"rtt_seconds,omitempty"` // smoothed
	MinRTT             units.Seconds `json:"min_rtt_seconds,omitempty"`
	BytesSent          int64         `json:"bytes_sent"` // data, retransmissions included
	BytesRetransmitted int64         `json:"bytes_retransmitted"`
	// Retransmits counts segments, without those that the peer had already (DSACK).
	Retransmits int64 `json:"retransmits"`
	// RetransmittedLevel is made for readers that show colours.
	RetransmittedLevel Level `json:"retransmitted_level,omitempty"`
}

// UnknownLeg is a leg of which nothing is known.
func UnknownLeg() LegRecord {
	return LegRecord{BytesSent: -1, BytesRetransmitted: -1, Retransmits: -1}
}
