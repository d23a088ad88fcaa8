package wire

import (
	"encoding/binary"
	"io"
	"math"
	"net/netip"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/words/printable"
)

// MessageType is the type of a message of the control connection.
type MessageType byte

// The types.
const (
	MessageOpened   MessageType = 1
	MessageRefused  MessageType = 2
	MessageAck      MessageType = 3
	MessageReset    MessageType = 4
	MessageGone     MessageType = 5
	MessageWake     MessageType = 6
	MessagePing     MessageType = 7
	MessagePong     MessageType = 8
	MessageDrain    MessageType = 9
	MessageKey      MessageType = 10 // a public key of the sender that it will use
	MessageKeyTaken MessageType = 11 // the receiver has stored it
	// MessageLimited from the far relay says that it has bytes for which the flow's lanes
	// have no room. Older near relays with `lanes: auto` send it, with or without flag 1, to
	// have the flow's further lanes pause: it is ignored, and they go on with one lane.
	MessageLimited MessageType = 12
	MessageLate    MessageType = 13 // bytes beyond the offset are here, and on its lane has come nothing for long
	MessageOpen    MessageType = 14 // from the near relay: a flow's OPEN ahead of its lane, and its first bytes
	MessageHeld    MessageType = 15 // spans beyond the sender's position that it holds
	MessageEnd     MessageType = 16 // length and sum of the sender's stream, which may still be under way
	MessageSent    MessageType = 17 // everything before the offset has left the sender
	MessageTrouble MessageType = 18 // from the far relay: why its tunnel takes no flows; no text: it takes them
	MessageTrace   MessageType = 19 // asks how the flow stands at the other end and behind it
	MessageTraced  MessageType = 20 // the answer; no bytes: there is no such flow
)

// FlagEnd on ACK: the end is passed on too. On RESET: the stream had ended at the
// offset, and an END comes with its sum.
const FlagEnd = 1

// FlagLast on DRAIN: the process ends. What it has said of flows is all that it ever knew of them, and
// it dials no target any more. Older near relays take it for a DRAIN without flag.
const FlagLast = 1

// FlagSilent on LIMITED from a far relay of an older release: the flow's only lane is silent.
const FlagSilent = 2

// Span is the bytes of a stream from one offset to before another.
type Span = struct{ From, To uint64 }

// MaxSpans is the most spans of a HELD.
const MaxSpans = 32

// MaxTraced is the most bytes of a TRACED: a kilobyte for each of [flow.MaxVia] relays.
const MaxTraced = flow.MaxVia << 10

// MaxWake is the most bytes of a stream in a WAKE or an OPEN.
const MaxWake = 16 << 10

const (
	messageHead = 12
	keySize     = 32
	offsetSize  = 8
	pingSize    = 8
	withinSize  = 2
	spanSize    = 2 * offsetSize
)

// Message is one message. Which fields are meant depends on the type.
type Message struct {
	Type   MessageType
	Flags  byte
	Flow   uint64
	Offset uint64        // ACK, RESET, WAKE, LATE, END, SENT
	CRC    uint32        // END
	Reason byte          // REFUSED, RESET
	Text   string        // OPENED: the target's address, or nothing; REFUSED, RESET: the cause
	Bytes  []byte        // WAKE, KEY, KEY_TAKEN, OPEN; PING, PONG: 8 bytes to return; TRACED: JSON of a flow.Trace
	Open   *Open         // OPEN
	Spans  []Span        // HELD
	Within time.Duration // TRACE: how long the sender waits for the answer; whole milliseconds, at most 65.5 s
}

// Append appends the message: type (1), flags (1), length (2), flow (8), value.
func (m Message) Append(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, byte(m.Type), m.Flags, 0, 0)
	dst = binary.BigEndian.AppendUint64(dst, m.Flow)
	text := m.Text[:min(len(m.Text), maxText)]
	switch m.Type {
	case MessageOpened, MessageTrouble:
		dst = append(dst, text...)
	case MessageRefused:
		dst = append(append(dst, m.Reason), text...)
	case MessageAck, MessageLate, MessageSent:
		dst = binary.BigEndian.AppendUint64(dst, m.Offset)
	case MessageReset:
		dst = binary.BigEndian.AppendUint64(dst, m.Offset)
		dst = append(append(dst, m.Reason), text...)
	case MessageEnd:
		dst = binary.BigEndian.AppendUint64(dst, m.Offset)
		dst = binary.BigEndian.AppendUint32(dst, m.CRC)
	case MessageWake:
		dst = binary.BigEndian.AppendUint64(dst, m.Offset)
		dst = append(dst, m.Bytes...)
	case MessagePing, MessagePong, MessageKey, MessageKeyTaken, MessageTraced:
		dst = append(dst, m.Bytes...)
	case MessageTrace:
		dst = binary.BigEndian.AppendUint16(dst, uint16(min(max(m.Within.Milliseconds(), 0), math.MaxUint16)))
	case MessageOpen:
		dst = append(m.Open.appendBody(dst), m.Bytes...)
	case MessageHeld:
		for _, p := range m.Spans {
			dst = binary.BigEndian.AppendUint64(dst, p.From)
			dst = binary.BigEndian.AppendUint64(dst, p.To)
		}
	}
	binary.BigEndian.PutUint16(dst[start+2:], uint16(len(dst)-start-messageHead))
	return dst
}

// ReadMessage reads one message. buf is the memory of Bytes; it grows as messages need, to
// about MaxWake bytes.
func ReadMessage(r io.Reader, buf *[]byte) (m Message, err error) {
	var head [messageHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return m, err
	}
	m = Message{Type: MessageType(head[0]), Flags: head[1], Flow: binary.BigEndian.Uint64(head[4:])}
	n := int(binary.BigEndian.Uint16(head[2:]))
	low, high := m.Type.sizes()
	if n < low || n > high {
		return m, malformed("message of type %d with %d bytes", m.Type, n)
	}
	if n > len(*buf) {
		*buf = make([]byte, n)
	}
	b := (*buf)[:n]
	if _, err := io.ReadFull(r, b); err != nil {
		return m, err
	}
	return m, m.set(b)
}

func (t MessageType) sizes() (low, high int) {
	switch t {
	case MessageOpened, MessageTrouble:
		return 0, maxText
	case MessageRefused:
		return 1, 1 + maxText
	case MessageAck, MessageLate, MessageSent:
		return offsetSize, offsetSize
	case MessageReset:
		return offsetSize + 1, offsetSize + 1 + maxText
	case MessageGone, MessageDrain, MessageLimited:
		return 0, 0
	case MessageWake:
		return offsetSize, offsetSize + MaxWake
	case MessagePing, MessagePong:
		return pingSize, pingSize
	case MessageKey, MessageKeyTaken:
		return keySize, keySize
	case MessageOpen:
		return openHead - flowSize, maxOpen - flowSize + MaxWake
	case MessageHeld:
		return spanSize, MaxSpans * spanSize
	case MessageEnd:
		return offsetSize + crcSize, offsetSize + crcSize
	case MessageTrace:
		return withinSize, withinSize
	case MessageTraced:
		return 0, MaxTraced
	}
	return 1, 0 // no length is right
}

func (m *Message) set(b []byte) error {
	switch m.Type {
	case MessageAck, MessageReset, MessageWake, MessageLate, MessageEnd, MessageSent:
		if m.Offset = binary.BigEndian.Uint64(b); m.Offset > maxOffset {
			return malformed("message of type %d with offset %d", m.Type, m.Offset)
		}
		b = b[offsetSize:]
	}
	switch m.Type {
	case MessageRefused, MessageReset:
		m.Reason, b = b[0], b[1:]
	}
	switch m.Type {
	case MessageOpened, MessageRefused, MessageReset, MessageTrouble:
		m.Text = m.textOf(b)
	case MessageWake, MessagePing, MessagePong, MessageKey, MessageKeyTaken, MessageTraced:
		m.Bytes = b
	case MessageTrace:
		m.Within = time.Duration(binary.BigEndian.Uint16(b)) * time.Millisecond
	case MessageEnd:
		m.CRC = binary.BigEndian.Uint32(b)
	case MessageOpen:
		m.Open = &Open{Flow: m.Flow}
		rest, err := m.Open.parseBody(b)
		if err != nil || len(rest) > MaxWake {
			return malformed("OPEN with %d bytes behind it: %v", len(rest), err)
		}
		m.Bytes = rest
	case MessageHeld:
		if len(b)%spanSize != 0 {
			return malformed("HELD with %d bytes", len(b))
		}
		for ; len(b) > 0; b = b[spanSize:] {
			p := Span{From: binary.BigEndian.Uint64(b), To: binary.BigEndian.Uint64(b[offsetSize:])}
			if p.From > p.To || p.To > maxOffset {
				return malformed("HELD with a span from %d to %d", p.From, p.To)
			}
			m.Spans = append(m.Spans, p)
		}
	}
	return nil
}

// textOf is a text of the other end, as one may show it. A target is an address, without
// the zone, which names an interface of another host.
func (m *Message) textOf(b []byte) string {
	if m.Type != MessageOpened {
		return printable.String(string(b))
	}
	a, err := netip.ParseAddrPort(string(b))
	if err != nil {
		return ""
	}
	return netip.AddrPortFrom(a.Addr().WithZone(""), a.Port()).String()
}
