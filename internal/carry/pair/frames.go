package pair

import (
	"io"

	"longhaul/internal/carry/pair/compress"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

// padPiece is what pad writes at a time, in bytes: while the other end reads nothing, no more
// waits in memory.
const padPiece = 8 << 10

var zeros [padPiece]byte

// A frame may have every record, and a record fits a buffer.
const (
	_ = uint(wire.MaxRecord - compress.MaxRecord)
	_ = uint(compress.MinRecord - wire.MinRecord)
	_ = uint(largeBuffer - wire.MaxRecord)
)

// frames are what goes over a lane's connection, both ways.
type frames struct {
	bulk *bulkConn
	conn io.ReadWriter // TLS, or bulk in clear
	sums bool          // of frames
}

// framed is a frame as the lane has it.
func (f *frames) framed(frame []byte) []byte {
	if !f.sums || len(frame) == 0 {
		return frame
	}
	return wire.WithSums(frame)
}

// putHead writes a frame's head to b as the lane has it, and returns its length there.
func (f *frames) putHead(b []byte, frame wire.Frame) int {
	frame.Put(b)
	if !f.sums {
		return wire.HeadSize
	}
	return wire.PutSum(b, wire.HeadSize)
}

func (f *frames) writeItem(frames []byte, item *stream.Item, record []byte) error {
	if len(frames) > 0 {
		if _, err := f.conn.Write(frames); err != nil {
			return err
		}
	}
	switch {
	case item == nil:
		return nil
	case item.End:
		_, err := f.conn.Write(f.framed(wire.AppendEnd(nil, item.Offset, item.CRC)))
		return err
	}
	// The head goes with the bytes of the first record: one of its own would cost as much
	// as a full one.
	first := takeBuffer(false)
	defer giveBuffer(first)
	frame, b := wire.Frame{Type: wire.FrameData, Offset: item.Offset}, item.Bytes
	if record != nil {
		frame.Flags, b = wire.FlagCompressed, record
	}
	frame.Length = len(b)
	head := f.putHead(first, frame)
	f.bulk.expected = head + len(b)
	most := recordAt(item.Offset)
	n := copy(first[head:most], b)
	_, err := f.conn.Write(first[:head+n])
	for b = b[n:]; err == nil && len(b) > 0; b = b[n:] {
		if n = len(b); most < maxRecord {
			n = min(n, most)
		}
		_, err = f.conn.Write(b[:n])
	}
	return err
}

// readPart reads a head, or what follows that of a frame without bytes of a stream, and its sum.
func (f *frames) readPart(b []byte, n int) error {
	if !f.sums || n == 0 {
		_, err := io.ReadFull(f.conn, b[:n])
		return err
	}
	if _, err := io.ReadFull(f.conn, b[:n+wire.SumSize]); err != nil {
		return err
	}
	return wire.CheckSum(b[:n+wire.SumSize])
}

// readHere waits for bytes and reads those that are here, of a frame of which so many are
// left.
func (f *frames) readHere(want []byte, left int) (n int, err error) {
	f.bulk.due = left
	n, err = f.conn.Read(want)
	for err == nil && n < len(want) && f.bulk.ready() {
		var more int
		f.bulk.due = left - n
		more, err = f.conn.Read(want[n:])
		n += more
	}
	f.bulk.due = 0
	return n, err
}

// plain reads a record of so many bytes, and returns what it stands for, in buf.
func (f *frames) plain(buf []byte, length int) ([]byte, error) {
	record := takeBuffer(length > smallBuffer)
	defer giveBuffer(record) // before the bytes wait for the flow's own socket
	for n := 0; n < length; {
		m, err := f.readHere(record[n:length], length-n)
		if err != nil {
			return nil, err
		}
		n += m
	}
	return compress.Plain(buf, record[:length])
}

// maxHead is the most bytes of a frame's head with its sum.
const maxHead = wire.HeadSize + wire.SumSize

const (
	// maxRecord is the most bytes of a TLS record (RFC 8446, section 5.1).
	maxRecord = 16 << 10
	// smallRecord is that of the records in which the first bytes of a flow go, up to smallUntil:
	// crypto/tls keeps a buffer of the largest record that a connection has brought. A crowd of small
	// flows takes a quarter of the memory.
	smallRecord = 4 << 10
	smallUntil  = 64 << 10
)

// recordAt is the size of TLS records at an offset of a stream.
func recordAt(offset uint64) int {
	if offset < smallUntil {
		return smallRecord
	}
	return maxRecord
}
