package pair

import (
	"errors"
	"sync/atomic"

	"longhaul/internal/carry/pair/compress"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

// Bytes of a flow may cross the WAN in compressed records. The stream's offsets, its
// checksum and what is kept to be sent again are those of the bytes as they were.

// errRecordUnasked is the error of a record on a lane whose near end wanted none.
var errRecordUnasked = errors.New("a compressed record, which nobody asked for")

// compressed is how many bytes of a session went in compressed records, both ways.
type compressed struct{ plain, packed atomic.Int64 }

func (c *compressed) add(plain, packed int) {
	c.plain.Add(int64(plain))
	c.packed.Add(int64(packed))
}

// compressed returns the record that is sent on the lane in place of an item's bytes; nil:
// they are sent as they are. giveBuffer takes it back.
func (l *lane) compressed(f holder, item *stream.Item) []byte {
	if item == nil || item.End || !l.s.knows(wire.FeatureCompress) {
		return nil
	}
	policy := f.packing(true)
	buf := takeBuffer(len(item.Bytes) > smallBuffer/2)
	var record []byte
	if l.s.node.options.CompressAlways {
		record = compress.Append(buf[:0], item.Bytes)
	} else {
		record = policy.Append(buf[:0], item.Bytes)
	}
	if record == nil {
		giveBuffer(buf)
		return nil
	}
	l.s.compressed.add(len(item.Bytes), len(record))
	return record
}

// full takes the news that a write of a flow had to wait for room. If the other end's
// reading is what holds the lane up, fewer bytes would not make it faster.
func (l *lane) full(f holder) {
	if policy := f.packing(false); policy != nil && !l.recorded.since(l.bulk) {
		policy.Full()
	}
}

// readRecord delivers the bytes of a compressed record.
func (l *lane) readRecord(frame wire.Frame) error {
	if !l.s.compress {
		return errRecordUnasked
	}
	f := l.bound()
	buf := takeBuffer(true)
	defer giveBuffer(buf)
	plain, err := l.plain(buf, frame.Length)
	if err != nil {
		return err
	}
	if f == nil {
		return nil
	}
	l.s.compressed.add(len(plain), frame.Length)
	l.noteReached(f, frame.Offset+uint64(len(plain)))
	for offset := frame.Offset; len(plain) > 0; {
		spill, skip := f.early(l, offset, len(plain))
		n := len(plain)
		switch {
		case spill != nil:
			n = copy(spill.Space(), plain)
			f.spilled(spill, n)
		case !skip:
			err = f.deliver(l, offset, plain)
		}
		if err != nil {
			return err
		}
		plain, offset = plain[n:], offset+uint64(n)
	}
	return nil
}

// plain reads a record of so many bytes, and returns what it stands for, in buf.
func (l *lane) plain(buf []byte, length int) ([]byte, error) {
	record := takeBuffer(length > smallBuffer)
	defer giveBuffer(record) // before the bytes wait for the flow's own socket
	for n := 0; n < length; {
		m, err := l.readHere(record[n:length], length-n)
		if err != nil {
			return nil, err
		}
		n += m
	}
	return compress.Plain(buf, record[:length])
}

// A frame may have every record, and a record fits a buffer.
const (
	_ = uint(wire.MaxRecord - compress.MaxRecord)
	_ = uint(compress.MinRecord - wire.MinRecord)
	_ = uint(largeBuffer - wire.MaxRecord)
)
