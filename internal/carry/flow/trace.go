package flow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"longhaul/internal/words/printable"
	"longhaul/internal/words/units"
)

// TraceWithin is how long a relay waits for the other one's part of a trace.
const TraceWithin = 2 * time.Second

// Tracer is a Carried whose other relay can be asked for its part of a trace.
type Tracer interface {
	// Trace asks the other relay, which asks those behind it, and waits for the answer until ctx ends, or for
	// TraceWithin. The error is a sentence that names the other relay.
	Trace(ctx context.Context) (Trace, error)
}

// SessionDownError says that the other relay cannot be asked: there is no session with it.
type SessionDownError struct {
	Peer string
}

func (e *SessionDownError) Error() string {
	return "the session with " + e.Peer + " is down: its part is missing"
}

// Trace is a flow at one moment as the relays that carry it see it. Relays pass it to each other as JSON,
// and ignore members that they do not know.
type Trace struct {
	Name   Name         `json:"name,omitzero"` // not between relays
	Here   int          `json:"here"`          // the index of the relay that was asked; not between relays
	Relays []TraceRelay `json:"relays"`        // the client's first
	// Missing says in a sentence each why no relay beyond the first or the last one has answered.
	Missing []string `json:"missing,omitempty"`
}

// TraceRelay is a flow at one relay.
type TraceRelay struct {
	Relay     string        `json:"relay,omitempty"` // as its neighbour names it; empty: the one that was asked
	Tunnel    string        `json:"tunnel"`
	State     string        `json:"state"` // see Sample
	Client    Address       `json:"client"`
	Listen    Address       `json:"listen"`
	Target    Address       `json:"target"`
	Age       units.Seconds `json:"age_seconds"`
	BytesUp   int64         `json:"bytes_up"`
	BytesDown int64         `json:"bytes_down"`
	UpBps     float64       `json:"up_bps"` // over the latest second
	DownBps   float64       `json:"down_bps"`
	HeldUp    int64         `json:"held_up_bytes"` // read, and not yet written to the target's leg; of a pair also what the other relay has not acknowledged
	HeldDown  int64         `json:"held_down_bytes"`
	Legs      [2]TraceLeg   `json:"legs"`           // to the client and to the target, or to relays before and behind this one
	Pair      *Figures      `json:"pair,omitempty"` // of a flow that a pair carries
}

// TraceLeg is a connection of a flow as this relay, its sender, sees it. Unknown counts are negative.
type TraceLeg struct {
	Lane               bool          `json:"lane,omitempty"` // it leads to another relay of a pair; of several the main one
	Peer               string        `json:"peer,omitempty"` // the relay that a lane leads to, as this one names it
	Side               string        `json:"side,omitempty"` // lan or wan
	Local              Address       `json:"local"`
	Remote             Address       `json:"remote"`
	CongestionControl  string        `json:"congestion_control,omitempty"`
	RTT                units.Seconds `json:"rtt_seconds,omitempty"`
	MinRTT             units.Seconds `json:"min_rtt_seconds,omitempty"`
	BytesSent          int64         `json:"bytes_sent"` // data, retransmissions included; of a pair over all lanes that the flow had
	BytesRetransmitted int64         `json:"bytes_retransmitted"`
	CongestionWindow   int64         `json:"congestion_window_bytes"`
	PeerWindow         int64         `json:"peer_window_bytes"`
	Unacknowledged     int64         `json:"unacknowledged_bytes"` // sent once at least
	NotSent            int64         `json:"not_sent_bytes"`       // waits in the kernel
	Cause              string        `json:"cause,omitempty"`      // the monitor's word for what limits it; empty: none stands out
}

// UnknownTraceLeg is a leg of which nothing is known.
func UnknownTraceLeg() TraceLeg {
	return TraceLeg{BytesSent: -1, BytesRetransmitted: -1, CongestionWindow: -1, PeerWindow: -1, Unacknowledged: -1, NotSent: -1}
}

// AppendTrace appends the JSON of a trace for another relay, in at most so many bytes, or nothing of one
// without relays. It leaves out those that are furthest from the relay that it is of.
func (t Trace) AppendTrace(dst []byte, most int) []byte {
	t.Name = Name{}
	for len(t.Relays) > 0 {
		b, err := json.Marshal(t)
		if err == nil && len(b) <= most {
			return append(dst, b...)
		}
		if err != nil || len(t.Relays) == 1 {
			break
		}
		if far := len(t.Relays) - 1; t.Here < far {
			t.Relays = t.Relays[:far]
		} else {
			t.Relays, t.Here = t.Relays[1:], t.Here-1
		}
		t.Missing = []string{"there are more relays than one answer has room for"}
	}
	return dst
}

// ParseTrace parses another relay's JSON. Texts are harmless to a terminal.
func ParseTrace(b []byte) (t Trace, err error) {
	if err := json.Unmarshal(b, &t); err != nil {
		return Trace{}, err
	}
	if n := len(t.Relays); n == 0 || n > MaxVia || t.Here < 0 || t.Here >= n || len(t.Missing) > 2 {
		return Trace{}, errors.New("a trace without relays, or with too many")
	}
	t.Name = Name{}
	for i := range t.Missing {
		t.Missing[i] = shown(t.Missing[i])
	}
	for i := range t.Relays {
		t.Relays[i].harmless()
	}
	return t, nil
}

// shown is a text of another relay, as one may show it.
func shown(s string) string { return printable.String(s[:min(len(s), maxTraceText)]) }

// maxTraceText bounds the texts of another relay, in bytes.
const maxTraceText = 255

func (r *TraceRelay) harmless() {
	for _, s := range []*string{&r.Relay, &r.Tunnel, &r.State} {
		*s = shown(*s)
	}
	for _, a := range []*Address{&r.Client, &r.Listen, &r.Target} {
		a.withoutZone()
	}
	for i := range r.Legs {
		l := &r.Legs[i]
		for _, s := range []*string{&l.Peer, &l.Side, &l.CongestionControl, &l.Cause} {
			*s = shown(*s)
		}
		l.Local.withoutZone()
		l.Remote.withoutZone()
	}
}

// withoutZone drops the zone, which names an interface of another host.
func (a *Address) withoutZone() {
	a.AddrPort = netip.AddrPortFrom(a.Addr().WithZone(""), a.Port())
}

// minNameDigits is how many digits of a name name a flow that runs here.
const minNameDigits = 8

// NamePrefix is the first hexadecimal digits of a name, or all of them.
type NamePrefix string

// ParseNamePrefix parses a name, or its first digits. Hyphens do not count.
func ParseNamePrefix(s string) (NamePrefix, error) {
	digits := make([]byte, 0, 2*len(Name{}))
	for _, c := range []byte(s) {
		switch {
		case c == '-':
			continue
		case c >= 'A' && c <= 'F':
			c += 'a' - 'A'
		case !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f'):
			return "", fmt.Errorf("%q is no name of a flow: a name has hexadecimal digits only", printable.String(s))
		}
		digits = append(digits, c)
	}
	if n := len(digits); n < minNameDigits || n > 2*len(Name{}) {
		return "", fmt.Errorf("%q names no flow: a name has 32 hexadecimal digits, of which the first %d to 32 are needed", printable.String(s), minNameDigits)
	}
	return NamePrefix(digits), nil
}

// Matches reports whether a name begins so.
func (p NamePrefix) Matches(n Name) bool {
	if n.IsZero() || len(p) > 2*len(n) {
		return false
	}
	const digits = "0123456789abcdef"
	for i := range len(p) {
		if b := n[i/2] >> (4 * (1 - i%2)) & 0xf; p[i] != digits[b] {
			return false
		}
	}
	return true
}
