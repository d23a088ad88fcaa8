package pair

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/socket"
	"longhaul/internal/sys/splice"
)

// Flows that do not resume, on lanes in clear, pass their bytes from socket to socket
// inside the kernel. The head of a frame goes in front of what a pipe holds.

// passOut moves bytes of the flow's own socket to its lane unseen, if it may, and
// reports whether it did something.
func (lg *leg) passOut() bool {
	f := lg.f
	if f.lanes.main() == nil || !f.lanes.main().spliced() || f.lanes.greeting() || f.near.releasing || f.near.releaseDue || lg.copyNext {
		return false
	}
	if !lg.open() || !lg.readable || !f.sf.Hungry() || !f.sf.Out.Passable() {
		return false
	}
	pipe, l := f.s.node.pipes.take(), f.lanes.main()
	if pipe == nil {
		return false
	}
	lg.readable = false
	lg.busy++
	fd := lg.fd
	f.mu.Unlock()
	n, errno := splice.Move(fd, pipe.W, min(pipe.Size, wire.MaxPayload))
	if errno == unix.EAGAIN && f.s.node.linger.wait(fd, unix.POLLIN) {
		n, errno = splice.Move(fd, pipe.W, min(pipe.Size, wire.MaxPayload))
	}
	empty := errno == unix.EAGAIN && socket.Unread(fd) == 0
	f.mu.Lock()
	lg.release()
	if n <= 0 {
		f.s.node.pipes.give(pipe, true)
		switch {
		case empty:
			lg.mute(false)
		case errno != 0 && errno != unix.EAGAIN && errno != unix.EINTR && !splice.Unsupported(errno):
			lg.fail(errno) // a read would not find it again
		default: // the end, or an urgent byte, before which splice stops: a read tells which
			lg.readable, lg.copyNext = true, true
		}
		return true
	}
	lg.readable, lg.copyNext = true, n < minSplice
	lg.mute(!lg.copyNext)
	if f.lanes.main() != l {
		lg.keepPipe(pipe, n)
	} else {
		lg.passPipe(pipe, n)
	}
	return true
}

// keepPipe keeps the n bytes of a pipe for another lane: the one that they were for was
// given back or lost meanwhile.
func (lg *leg) keepPipe(pipe *splice.Pipe, n int) {
	f := lg.f
	b := make([]byte, n)
	for got := 0; got < n; { // they are there
		more, _ := retry(func() (int, error) { return unix.Read(pipe.R, b[got:]) })
		got += max(more, 0)
	}
	f.s.node.pipes.give(pipe, true)
	f.sf.Out.Keep(b)
}

// passPipe sends the n bytes of a pipe on the lane.
func (lg *leg) passPipe(pipe *splice.Pipe, n int) {
	f := lg.f
	l, offset := f.lanes.main(), f.sf.Out.Length()
	f.sf.Out.Take(n)
	f.watch.toldSent = false
	st := f.lanes.strands[0]
	st.busy = true
	f.mu.Unlock()
	err := l.sendPipe(f, offset, pipe, n)
	f.s.node.pipes.give(pipe, err == nil)
	f.mu.Lock()
	st.busy = false
	switch {
	case f.lanes.main() != l: // given to another flow meanwhile, by whoever writes to lanes in clear
		f.abort(cause(flow.EndWANLost, errMissing))
	case err != nil:
		f.lanes.lose(l)
	default:
		f.sf.Out.Passed()
		f.lanes.strands[0].sentAt = stampNow()
	}
	f.moved = stampNow()
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

// writeFrom writes a head, and behind it the n bytes of a pipe.
func (c *bulkConn) writeFrom(head []byte, pipe *splice.Pipe, n int) error {
	if err := c.flush(); err != nil {
		return err
	}
	var err error
	waited := c.raw.Write(func(fd uintptr) bool {
		for err = nil; len(head)+n > 0; {
			var sent int
			if len(head) > 0 {
				sent, err = retry(func() (int, error) {
					return unix.SendmsgN(int(fd), head, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_MORE)
				})
				head = head[max(sent, 0):]
			} else {
				sent, err = movePipe(pipe.R, int(fd), n)
				n -= sent
			}
			if err == unix.EAGAIN && c.linger.wait(int(fd), unix.POLLOUT) {
				continue
			}
			if err != nil {
				return err != unix.EAGAIN
			}
		}
		return true
	})
	return errors.Join(waited, os.NewSyscallError("splice", err))
}

// movePipe is splice.Move with an error in place of a number.
func movePipe(from, to, n int) (int, error) {
	moved, errno := splice.Move(from, to, n)
	if errno != 0 && errno != unix.EINTR {
		return 0, errno
	}
	return max(moved, 0), nil
}

// spliced reports whether bytes of the lane may pass unseen.
func (l *lane) spliced() bool { return l.s.noResume && l.bulk.clear }

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

func (f *Flow) passable(l *lane, offset uint64, n int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lanes.main() == l && f.leg.open() && f.sf.In.Passable(offset, n)
}

// fillPipe waits for bytes and moves up to n of them to a pipe; nil: none is to be had.
func (c *bulkConn) fillPipe(pool *pipes, n int) (pipe *splice.Pipe, got int, err error) {
	waited := c.raw.Read(func(fd uintptr) bool {
		if pipe = pool.take(); pipe == nil {
			return true
		}
		var errno unix.Errno
		got, errno = splice.Move(int(fd), pipe.W, min(n, pipe.Size))
		if errno == unix.EAGAIN {
			c.batch.wait(int(fd), 1, n)
		}
		for errno == unix.EINTR || errno == unix.EAGAIN && c.linger.wait(int(fd), unix.POLLIN) {
			got, errno = splice.Move(int(fd), pipe.W, min(n, pipe.Size))
		}
		if errno == 0 && got > 0 {
			return true
		}
		pool.give(pipe, true)
		pipe, got = nil, 0
		switch {
		case errno == unix.EAGAIN:
			return false
		case errno != 0 && !splice.Unsupported(errno):
			err = os.NewSyscallError("splice", errno)
		case errno == 0:
			err = io.ErrUnexpectedEOF
		}
		return true
	})
	return pipe, got, errors.Join(waited, err)
}

// deliverPipe writes the n bytes of a pipe to the flow's own socket, and waits for its
// room. It reports whether the pipe is empty.
func (f *Flow) deliverPipe(l *lane, pipe *splice.Pipe, n int) (empty bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heard(l)
	for n > 0 && f.lanes.main() == l && !f.sf.Dead() {
		if !f.leg.open() || !f.leg.writable || f.leg.busyOut {
			f.postDue()
			f.leg.await()
			continue
		}
		n -= f.leg.writePipe(pipe, n)
	}
	f.received()
	return n == 0
}

// writePipe moves bytes from a pipe to the flow's own socket once, without waiting.
func (lg *leg) writePipe(pipe *splice.Pipe, n int) int {
	f := lg.f
	fd := lg.fd
	lg.writable, lg.busyOut = false, true
	lg.busy++
	f.mu.Unlock()
	sent, err := movePipe(pipe.R, fd, n)
	if err == unix.EAGAIN && f.s.node.linger.wait(fd, unix.POLLOUT) {
		sent, err = movePipe(pipe.R, fd, n)
	}
	f.mu.Lock()
	lg.busyOut = false
	lg.release()
	if sent > 0 {
		f.sf.Passed(sent)
		f.moved = stampNow()
	}
	lg.writable = lg.writable || err == nil
	if err != nil && err != unix.EAGAIN {
		lg.fail(os.NewSyscallError("splice", err))
	}
	return sent
}
