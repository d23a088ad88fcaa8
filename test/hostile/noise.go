package hostile

import (
	"encoding/binary"
	"math/rand/v2"
	"time"

	"longhaul/internal/carry/pair/wire"
)

// noiseFlows is how many numbers of flows noise names.
const noiseFlows = 16

// malformedEach is how seldom noise is malformed: such bytes end the connection.
const malformedEach = 5000

// Noise makes frames and messages at random: every type, offsets that fit and such that
// cannot, and now and then bytes that mean nothing. The same seed gives the same ones.
type Noise struct{ r *rand.Rand }

// NewNoise begins noise with a seed.
func NewNoise(seed uint64) *Noise { return &Noise{rand.New(rand.NewPCG(seed, 0))} }

// Message appends a message of the control connection. It announces no keys: two of them
// would end what the pair has in common.
func (n *Noise) Message(dst []byte) []byte {
	if n.r.IntN(malformedEach) == 0 {
		return append(dst, n.bytes(1+n.r.IntN(64))...)
	}
	m := wire.Message{Type: wire.MessageType(1 + n.r.IntN(int(wire.MessageTraced))), Flags: byte(n.r.IntN(8)), Flow: n.flow(),
		Offset: n.offset(), Reason: byte(n.r.Uint32())}
	switch m.Type {
	case wire.MessageKey:
		m.Type = wire.MessageGone
	case wire.MessageTrace:
		m.Within = time.Duration(n.r.IntN(3000)) * time.Millisecond
	case wire.MessageTraced:
		m.Bytes = n.bytes(n.r.IntN(512))
	case wire.MessageOpened, wire.MessageRefused, wire.MessageReset, wire.MessageTrouble:
		m.Text = string(n.bytes(n.r.IntN(64)))
	case wire.MessageWake:
		m.Bytes = n.bytes(n.r.IntN(wire.MaxWake))
	case wire.MessagePing, wire.MessagePong:
		m.Bytes = n.bytes(8)
	case wire.MessageKeyTaken:
		m.Bytes = n.bytes(32)
	case wire.MessageOpen:
		o := n.open()
		m.Open, m.Bytes = &o, n.bytes(n.r.IntN(512))
	case wire.MessageHeld:
		for range 1 + n.r.IntN(wire.MaxSpans) {
			from := n.offset()
			m.Spans = append(m.Spans, wire.Span{From: from, To: min(from+uint64(n.r.IntN(1<<16)), largestOffset)})
		}
	}
	return m.Append(dst)
}

// Frame appends a frame of a lane.
func (n *Noise) Frame(dst []byte) []byte {
	if n.r.IntN(malformedEach) == 0 {
		return append(dst, n.bytes(1+n.r.IntN(64))...)
	}
	switch wire.FrameType(1 + n.r.IntN(int(wire.FramePad))) {
	case wire.FrameOpen:
		return n.open().Append(dst)
	case wire.FrameAttach:
		if n.r.IntN(2) == 0 {
			return wire.AppendJoin(dst, n.flow(), n.offset())
		}
		return wire.AppendAttach(dst, n.flow(), n.offset())
	case wire.FrameEnd:
		return wire.AppendEnd(dst, n.offset(), n.r.Uint32())
	case wire.FrameRelease:
		return wire.AppendRelease(dst, byte(n.r.IntN(2)), n.offset())
	case wire.FramePad:
		return n.follow(dst, wire.FramePad, 0, n.r.IntN(4<<10))
	}
	if n.r.IntN(8) == 0 {
		return n.follow(dst, wire.FrameData, wire.FlagCompressed, wire.MinRecord+n.r.IntN(1<<10))
	}
	return n.follow(dst, wire.FrameData, 0, 1+n.r.IntN(8<<10))
}

// follow appends a frame with bytes behind it.
func (n *Noise) follow(dst []byte, t wire.FrameType, flags byte, length int) []byte {
	var head [wire.HeadSize]byte
	wire.Frame{Type: t, Flags: flags, Length: length, Offset: n.offset()}.Put(head[:])
	return append(append(dst, head[:]...), n.bytes(length)...)
}

func (n *Noise) open() wire.Open {
	return wire.Open{Flow: n.flow(), Deadline: time.Duration(n.r.IntN(2000)) * time.Millisecond, Client: client, Listen: client}
}

func (n *Noise) flow() uint64 { return 1 + n.r.Uint64N(noiseFlows) }

// largestOffset is the largest that the formats take.
const largestOffset = 1 << 62

// offset is at the beginning, nearby, within a store's reach, or anywhere.
func (n *Noise) offset() uint64 {
	switch n.r.IntN(8) {
	case 0, 1, 2:
		return 0
	case 3, 4:
		return n.r.Uint64N(16 << 10)
	case 5, 6:
		return n.r.Uint64N(64 << 20)
	}
	return n.r.Uint64N(largestOffset + 1)
}

func (n *Noise) bytes(length int) []byte {
	b := make([]byte, (length+7)&^7)
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], n.r.Uint64())
	}
	return b[:length]
}
