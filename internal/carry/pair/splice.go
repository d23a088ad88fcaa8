package pair

import (
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
func (f *Flow) passOut() bool {
	if f.lane == nil || !f.lane.spliced() || f.greeting() || f.releasing || f.releaseDue || f.copyNext {
		return false
	}
	if !f.leg.open() || !f.leg.readable || !f.sf.Hungry() || !f.sf.Out.Passable() {
		return false
	}
	pipe, l := f.s.node.pipes.take(), f.lane
	if pipe == nil {
		return false
	}
	f.leg.readable = false
	f.leg.busy++
	fd := f.leg.fd
	f.mu.Unlock()
	n, errno := splice.Move(fd, pipe.W, min(pipe.Size, wire.MaxPayload))
	if errno == unix.EAGAIN && f.s.node.linger.wait(fd, unix.POLLIN) {
		n, errno = splice.Move(fd, pipe.W, min(pipe.Size, wire.MaxPayload))
	}
	empty := errno == unix.EAGAIN && socket.Unread(fd) == 0
	f.mu.Lock()
	f.release()
	if n <= 0 {
		f.s.node.pipes.give(pipe, true)
		switch {
		case empty:
			f.mute(false)
		case errno != 0 && errno != unix.EAGAIN && errno != unix.EINTR && !splice.Unsupported(errno):
			f.failLeg(errno) // a read would not find it again
		default: // the end, or an urgent byte, before which splice stops: a read tells which
			f.leg.readable, f.copyNext = true, true
		}
		return true
	}
	f.leg.readable, f.copyNext = true, n < minSplice
	f.mute(!f.copyNext)
	if f.lane != l {
		f.keepPipe(pipe, n)
	} else {
		f.passPipe(pipe, n)
	}
	return true
}

// keepPipe keeps the n bytes of a pipe for another lane: the one that they were for was
// given back or lost meanwhile.
func (f *Flow) keepPipe(pipe *splice.Pipe, n int) {
	b := make([]byte, n)
	for got := 0; got < n; { // they are there
		more, _ := retry(func() (int, error) { return unix.Read(pipe.R, b[got:]) })
		got += max(more, 0)
	}
	f.s.node.pipes.give(pipe, true)
	f.sf.Out.Keep(b)
}

// passPipe sends the n bytes of a pipe on the lane.
func (f *Flow) passPipe(pipe *splice.Pipe, n int) {
	l, offset := f.lane, f.sf.Out.Length()
	f.sf.Out.Take(n)
	f.toldSent = false
	f.blocked = true
	f.mu.Unlock()
	err := l.sendPipe(f, offset, pipe, n)
	f.s.node.pipes.give(pipe, err == nil)
	f.mu.Lock()
	f.blocked = false
	switch {
	case f.lane != l: // given to another flow meanwhile, by whoever writes to lanes in clear
		f.abort(cause(flow.EndWANLost, errMissing))
	case err != nil:
		f.loseLane(l)
	default:
		f.sf.Out.Passed()
		f.strands[0].sentAt = stampNow()
	}
	f.moved = stampNow()
}

func (f *Flow) passable(l *lane, offset uint64, n int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lane == l && f.leg.open() && f.sf.In.Passable(offset, n)
}

// deliverPipe writes the n bytes of a pipe to the flow's own socket, and waits for its
// room. It reports whether the pipe is empty.
func (f *Flow) deliverPipe(l *lane, pipe *splice.Pipe, n int) (empty bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heard(l)
	for n > 0 && f.lane == l && !f.sf.Dead() {
		if !f.leg.open() || !f.leg.writable || f.leg.busyOut {
			f.postDue()
			f.await()
			continue
		}
		n -= f.writePipe(pipe, n)
	}
	f.received()
	return n == 0
}

// writePipe moves bytes from a pipe to the flow's own socket once, without waiting.
func (f *Flow) writePipe(pipe *splice.Pipe, n int) int {
	fd := f.leg.fd
	f.leg.writable, f.leg.busyOut = false, true
	f.leg.busy++
	f.mu.Unlock()
	sent, err := movePipe(pipe.R, fd, n)
	if err == unix.EAGAIN && f.s.node.linger.wait(fd, unix.POLLOUT) {
		sent, err = movePipe(pipe.R, fd, n)
	}
	f.mu.Lock()
	f.leg.busyOut = false
	f.release()
	if sent > 0 {
		f.sf.Passed(sent)
		f.moved = stampNow()
	}
	f.leg.writable = f.leg.writable || err == nil
	if err != nil && err != unix.EAGAIN {
		f.failLeg(os.NewSyscallError("splice", err))
	}
	return sent
}
