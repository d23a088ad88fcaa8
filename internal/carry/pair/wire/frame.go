package wire

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net/netip"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/proxyproto"
)

// HeadSize is the length of a frame's head in bytes.
const HeadSize = 16

// SumSize is the length of a sum in bytes.
const SumSize = 4

// MaxPayload is the most that follows a frame's head, in bytes.
const MaxPayload = 512 << 10

// The bounds of a compressed record, which follows the head of DATA.
const (
	MinRecord = 10
	MaxRecord = 256<<10 + 64
)

// FrameType is the type of a lane's frame.
type FrameType byte

// The types.
const (
	FrameOpen    FrameType = 1
	FrameAttach  FrameType = 2
	FrameData    FrameType = 3
	FrameEnd     FrameType = 4
	FrameRelease FrameType = 5
	FramePad     FrameType = 6 // bytes to skip: they open the congestion window of an idle lane
)

// FlagFinal on RELEASE: the flow is over. The far relay answers the same, and
// nothing of the flow comes behind it.
const FlagFinal = 1

// FlagJoin on ATTACH: the lane is one more of the flow's. The others stay.
const FlagJoin = 1

// FlagBegin on ATTACH: the flow's OPEN comes on the control connection, perhaps later. The far
// relay does not answer.
const FlagBegin = 2

// FlagCompressed on DATA: a record of package compress follows. The offset is that of the
// bytes as they were.
const FlagCompressed = 1

// Frame is the head of a frame.
type Frame struct {
	Type   FrameType
	Flags  byte
	Length int    // of what follows
	Offset uint64 // in the sender's stream; of ATTACH and RELEASE: the sender's position as a receiver
}

const (
	openHead  = 12 // flow, deadline
	maxOpen   = openHead + 16 + 216
	flowSize  = 8
	crcSize   = 4
	maxOffset = 1 << 62
)

// Compressed reports whether a compressed record follows.
func (f Frame) Compressed() bool { return f.Type == FrameData && f.Flags&FlagCompressed != 0 }

// Put writes the head to the first HeadSize bytes of b.
func (f Frame) Put(b []byte) {
	_ = b[HeadSize-1]
	b[0], b[1], b[2], b[3] = byte(f.Type), f.Flags, 0, 0
	binary.BigEndian.PutUint32(b[4:], uint32(f.Length))
	binary.BigEndian.PutUint64(b[8:], f.Offset)
}

// ParseFrame reads the head of a frame from the first HeadSize bytes of b.
func ParseFrame(b []byte) (Frame, error) {
	f := Frame{Type: FrameType(b[0]), Flags: b[1], Length: int(binary.BigEndian.Uint32(b[4:])), Offset: binary.BigEndian.Uint64(b[8:])}
	low, high := 0, 0
	switch f.Type {
	case FrameOpen:
		low, high = openHead, maxOpen
	case FrameAttach:
		low, high = flowSize, flowSize
	case FrameData:
		low, high = 1, MaxPayload
		if f.Compressed() {
			low, high = MinRecord, MaxRecord
		}
	case FrameEnd:
		low, high = crcSize, crcSize
	case FrameRelease:
	case FramePad:
		high = MaxPayload
	default:
		return f, malformed("frame of type %d", f.Type)
	}
	if f.Length < low || f.Length > high || f.Offset > maxOffset {
		return f, malformed("frame of type %d with length %d, offset %d", f.Type, f.Length, f.Offset)
	}
	return f, nil
}

// Open is what follows the head of OPEN.
type Open struct {
	Flow     uint64
	Deadline time.Duration // for the target; whole milliseconds
	Client   netip.AddrPort
	Listen   netip.AddrPort // that the client dialed
	Name     flow.Name      // zero: the near relay is of an older release
	Via      flow.Via       // the relays that the flow has passed
	Offset   uint16         // of the port in the far tunnel's range; only with FeatureOffset
}

// The extensions of OPEN's PROXY header beside its UniqueID, which has the 16 bytes of the name. Older
// releases skip them.
const (
	openVia    = 0xe1
	openOffset = 0xe2
)

// Append appends an OPEN with its head.
func (o Open) Append(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, HeadSize)...)
	dst = o.appendBody(binary.BigEndian.AppendUint64(dst, o.Flow))
	Frame{Type: FrameOpen, Length: len(dst) - start - HeadSize}.Put(dst[start:])
	return dst
}

// appendBody appends what follows the flow's number.
func (o Open) appendBody(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(min(max(o.Deadline.Milliseconds(), 1), 1<<31)))
	header := proxyproto.AppendHeader(nil, 2, proxyproto.Header{Source: o.Client, Destination: o.Listen})
	if !o.Name.IsZero() {
		header = proxyproto.AppendExtension(header, proxyproto.UniqueID, o.Name[:])
	}
	if o.Via != "" {
		header = proxyproto.AppendExtension(header, openVia, []byte(o.Via))
	}
	if o.Offset != 0 {
		header = proxyproto.AppendExtension(header, openOffset, binary.BigEndian.AppendUint16(nil, o.Offset))
	}
	return append(dst, header...)
}

// ParseOpen parses what follows the head of OPEN.
func ParseOpen(b []byte) (o Open, err error) {
	if len(b) < openHead {
		return o, malformed("OPEN of %d bytes", len(b))
	}
	rest, err := o.parseBody(b[flowSize:])
	if err == nil && len(rest) > 0 {
		err = malformed("%d bytes behind OPEN", len(rest))
	}
	o.Flow = binary.BigEndian.Uint64(b)
	return o, err
}

// parseBody parses what follows the flow's number, and returns what comes behind it.
func (o *Open) parseBody(b []byte) (rest []byte, err error) {
	if len(b) < openHead-flowSize {
		return nil, malformed("OPEN without a deadline")
	}
	o.Deadline = time.Duration(binary.BigEndian.Uint32(b)) * time.Millisecond
	b = b[openHead-flowSize:]
	header, n, err := proxyproto.Parse(b)
	if err != nil || n == 0 {
		return nil, malformed("OPEN with %d bytes of addresses: %v", len(b), err)
	}
	o.Client, o.Listen = header.Source, header.Destination
	return b[n:], o.parseExtensions(b[:n])
}

func (o *Open) parseExtensions(header []byte) error {
	switch name := proxyproto.Extension(header, proxyproto.UniqueID); len(name) {
	case 0:
	case len(o.Name):
		o.Name = flow.Name(name)
	default:
		return malformed("OPEN with a name of %d bytes", len(name))
	}
	via := flow.Via(proxyproto.Extension(header, openVia))
	if len(via)%len(flow.RelayID{}) != 0 || via.Len() > flow.MaxVia {
		return malformed("OPEN that has passed relays of %d bytes", len(via))
	}
	o.Via = via
	switch offset := proxyproto.Extension(header, openOffset); len(offset) {
	case 0:
	case 2:
		o.Offset = binary.BigEndian.Uint16(offset)
	default:
		return malformed("OPEN with an offset of %d bytes", len(offset))
	}
	return nil
}

// AppendAttach appends an ATTACH with its head; received is the sender's position
// as a receiver.
func AppendAttach(dst []byte, flow, received uint64) []byte {
	return appendAttach(dst, 0, flow, received)
}

// AppendJoin appends an ATTACH of one more lane.
func AppendJoin(dst []byte, flow, received uint64) []byte {
	return appendAttach(dst, FlagJoin, flow, received)
}

// AppendBegin appends an ATTACH of a flow's first lane, whose OPEN is on the control connection.
func AppendBegin(dst []byte, flow uint64) []byte { return appendAttach(dst, FlagBegin, flow, 0) }

func appendAttach(dst []byte, flags byte, flow, received uint64) []byte {
	dst = appendHead(dst, Frame{Type: FrameAttach, Flags: flags, Length: flowSize, Offset: received})
	return binary.BigEndian.AppendUint64(dst, flow)
}

// ParseAttach returns the flow of an ATTACH.
func ParseAttach(b []byte) uint64 { return binary.BigEndian.Uint64(b) }

// AppendEnd appends an END with its head; length and crc are of the whole stream.
func AppendEnd(dst []byte, length uint64, crc uint32) []byte {
	dst = appendHead(dst, Frame{Type: FrameEnd, Length: crcSize, Offset: length})
	return binary.BigEndian.AppendUint32(dst, crc)
}

// ParseEnd returns the CRC-32C of an END.
func ParseEnd(b []byte) uint32 { return binary.BigEndian.Uint32(b) }

// ErrSum is the error of a part of a frame that was altered on the way.
var ErrSum = errors.New("bytes were altered on the way: the sum of a frame's head differs")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// PutSum writes the CRC-32C of the first n bytes of b behind these, and returns the length of
// both.
func PutSum(b []byte, n int) int {
	binary.BigEndian.PutUint32(b[n:], crc32.Checksum(b[:n], castagnoli))
	return n + SumSize
}

// CheckSum returns ErrSum if the end of b is not the sum of what comes before it.
func CheckSum(b []byte) error {
	n := len(b) - SumSize
	if crc32.Checksum(b[:n], castagnoli) != binary.BigEndian.Uint32(b[n:]) {
		return ErrSum
	}
	return nil
}

// WithSums returns a frame for a lane with FeatureSums: behind its head is the head's sum, and
// behind what follows, if the frame has it and no stream's bytes do, a sum of that.
func WithSums(frame []byte) []byte {
	b := make([]byte, len(frame)+2*SumSize)
	n := PutSum(b, copy(b, frame[:HeadSize]))
	if len(frame) > HeadSize {
		copy(b[n:], frame[HeadSize:])
		n += PutSum(b[n:], len(frame)-HeadSize)
	}
	return b[:n]
}

// AppendRelease appends a RELEASE; received is the sender's position as a receiver.
func AppendRelease(dst []byte, flags byte, received uint64) []byte {
	return appendHead(dst, Frame{Type: FrameRelease, Flags: flags, Offset: received})
}

func appendHead(dst []byte, f Frame) []byte {
	var head [HeadSize]byte
	f.Put(head[:])
	return append(dst, head[:]...)
}
