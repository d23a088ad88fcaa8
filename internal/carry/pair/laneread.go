package pair

import (
	"errors"
	"io"
	"log/slog"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

// run reads the lane until it ends.
func (l *lane) run() {
	defer close(l.ended)
	err := l.greet()
	if err != nil {
		l.home.laneFailed(err)
	} else {
		err = l.read()
	}
	if errors.Is(err, wire.ErrSum) {
		l.altered()
	}
	l.close()
	l.home.laneEnded(l, err)
}

// altered takes the news that nobody knows any more where the lane's next frame begins.
func (l *lane) altered() {
	l.s.tell(slog.LevelWarn, "bytes of a connection in clear were altered on the way: it is closed", nil)
	f := l.bound()
	if f == nil || !f.cannotDoWithout(l) {
		return
	}
	f.Reset(flow.EndDamaged, wire.ErrSum)
	if !l.home.connected() {
		return
	}
	// The other end takes the lane's end for an outage. The cause goes ahead of it.
	_ = l.bulk.SetReadDeadline(time.Now().Add(drainWithin))
	_, _ = io.Copy(io.Discard, l.conn)
}

// greet reads the HELLO of a lane that was used before it came.
func (l *lane) greet() error {
	if l.instance == 0 {
		l.answered.Store(true)
		return nil
	}
	_ = l.bulk.SetReadDeadline(time.Now().Add(handshakeTimeout + l.s.strained()))
	hello, err := readHello(l.conn, l.s.features())
	if err != nil {
		return certified(l.s.host().certified, err)
	}
	if hello.Instance != l.instance {
		return errOtherProcess
	}
	l.answered.Store(true)
	l.home.laneGreeted()
	return l.bulk.SetReadDeadline(time.Time{})
}

func (l *lane) read() error {
	var head [maxHead]byte
	var small [512]byte
	for {
		if err := l.readPart(head[:], wire.HeadSize); err != nil {
			return err
		}
		frame, err := wire.ParseFrame(head[:])
		if err != nil {
			return err
		}
		if frame.Compressed() {
			if err := l.readRecord(frame); err != nil {
				return err
			}
			continue
		}
		if frame.Type == wire.FrameData || frame.Type == wire.FramePad {
			if err := l.readBytes(frame); err != nil {
				return err
			}
			continue
		}
		if err := l.readPart(small[:], frame.Length); err != nil {
			return err
		}
		if err := l.handle(frame, small[:frame.Length]); err != nil {
			return err
		}
	}
}

// readBytes delivers the bytes of a frame as they come, in as large pieces as are here.
func (l *lane) readBytes(frame wire.Frame) error {
	buf := takeBuffer(frame.Length > smallBuffer)
	defer giveBuffer(buf)
	f := l.bound()
	for left, offset := frame.Length, frame.Offset; left > 0; {
		if frame.Type == wire.FrameData {
			n, err := l.passIn(f, offset, left)
			if err != nil {
				return err
			}
			if n > 0 {
				left, offset = left-n, offset+uint64(n)
				continue
			}
		}
		var spill *stream.Early
		skip := false
		if f != nil && frame.Type == wire.FrameData {
			spill, skip = f.early(l, offset, left)
		}
		want := buf[:min(left, len(buf))]
		if spill != nil {
			want = spill.Space()
			want = want[:min(left, len(want))]
		}
		n, err := l.readHere(want, left)
		if frame.Type == wire.FrameData {
			l.noteReached(f, offset+uint64(n))
		}
		switch {
		case spill != nil:
			f.spilled(spill, n)
		case f != nil && frame.Type == wire.FrameData && err == nil && !skip:
			err = f.deliver(l, offset, want[:n])
		}
		if err != nil {
			return err
		}
		left, offset = left-n, offset+uint64(n)
	}
	if frame.Type == wire.FramePad {
		l.home.padded(l)
	}
	return nil
}

func (l *lane) handle(frame wire.Frame, b []byte) error {
	if l.s.sealed() && (frame.Type == wire.FrameOpen || frame.Type == wire.FrameEnd) {
		return errUnsealed
	}
	f := l.bound()
	switch frame.Type {
	case wire.FrameOpen:
		return l.home.open(l, frame, b)
	case wire.FrameAttach:
		return l.home.attach(l, wire.ParseAttach(b), frame)
	case wire.FrameEnd:
		if f == nil {
			return nil
		}
		l.mu.Lock()
		l.sawEnd = l.sawEnd || l.flow == f
		l.mu.Unlock()
		return f.deliverEnd(l, frame.Offset, wire.ParseEnd(b))
	case wire.FrameRelease:
		return l.home.released(l, f, frame)
	}
	return nil
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

// passIn moves at most n bytes of a DATA frame to the flow's own socket unseen. It
// returns 0 if they are to be read.
func (l *lane) passIn(f holder, offset uint64, n int) (int, error) {
	if f == nil || n < minSplice || !l.spliced() || l.bulk.in != nil || !f.passable(l, offset, n) {
		return 0, nil
	}
	pipe, got, err := l.bulk.fillPipe(&l.s.node.pipes, n)
	if err != nil || got == 0 {
		return 0, err
	}
	l.noteReached(f, offset+uint64(got))
	empty := f.deliverPipe(l, pipe, got)
	l.s.node.pipes.give(pipe, empty)
	return got, nil
}

// noteReached notes up to where a lane of a sealed session has brought a flow's bytes.
func (l *lane) noteReached(f holder, offset uint64) {
	if f == nil || !l.s.sealed() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flow == f && offset > l.reached {
		l.reached, l.reachedAt = offset, stampNow()
	}
}
