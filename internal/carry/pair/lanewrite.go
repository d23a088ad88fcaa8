package pair

import (
	"time"

	"longhaul/internal/carry/pair/compress"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/splice"
)

// send writes a frame of a flow, then an item; each may be nil. Its error closes the lane.
func (l *lane) send(f holder, greet []byte, item *stream.Item) error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if l.bound() != f {
		return errUnbound
	}
	l.bulk.waited = false
	record := l.compressed(f, item)
	defer giveBuffer(record)
	err := l.write(l.framed(greet), item, record)
	if l.bulk.waited {
		l.full(f)
	}
	return err
}

// awaitRoom waits until the kernel takes more of a flow. Its error closes the lane.
func (l *lane) awaitRoom(f holder) error {
	waited, err := l.bulk.awaitRoom()
	if err != nil {
		l.close()
	}
	if waited {
		l.wmu.Lock()
		defer l.wmu.Unlock()
		l.full(f)
	}
	return err
}

// release answers or begins a RELEASE behind which nothing of the flow is sent.
func (l *lane) release(f holder, flags byte, received uint64) error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	l.unbind(f)
	return l.write(l.framed(wire.AppendRelease(nil, flags, received)), nil, nil)
}

// write sends bytes of frames, then an item, in place of whose bytes goes their record if there is
// one.
func (l *lane) write(frames []byte, item *stream.Item, record []byte) error {
	err := l.writeItem(frames, item, record)
	if err == nil {
		err = l.bulk.flush()
	}
	if err != nil {
		l.close()
	}
	return err
}

// flush sends what waits to be sent with a flow's first bytes.
func (l *lane) flush() {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	_ = l.write(nil, nil, nil)
}

// pad sends n bytes that the other end skips. An end that takes none of them for
// writeTimeout loses the lane.
func (l *lane) pad(n int) {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	defer l.bulk.SetWriteDeadline(time.Time{})
	var head [maxHead]byte
	size := l.putHead(head[:], wire.Frame{Type: wire.FramePad, Length: n})
	_ = l.bulk.SetWriteDeadline(time.Now().Add(writeTimeout))
	err := l.write(head[:size], nil, nil)
	for ; n > 0 && err == nil; n -= padPiece {
		_ = l.bulk.SetWriteDeadline(time.Now().Add(writeTimeout))
		err = l.write(zeros[:min(n, padPiece)], nil, nil)
	}
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

// sendPipe writes a DATA frame whose bytes a pipe holds. Its error closes the lane.
func (l *lane) sendPipe(f holder, offset uint64, pipe *splice.Pipe, n int) error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if l.bound() != f {
		return errUnbound
	}
	var head [maxHead]byte
	size := l.putHead(head[:], wire.Frame{Type: wire.FrameData, Length: n, Offset: offset})
	err := l.bulk.writeFrom(head[:size], pipe, n)
	if err != nil {
		l.close()
	}
	return err
}
