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
func (lg *leg) passOut() bool {
	f := lg.flow()
	if f.lanes.main() == nil || !f.lanes.main().spliced() || f.lanes.greeting() || f.near.releasing || f.near.releaseDue || lg.copyNext {
		return false
	}
	if !lg.open() || !lg.readable || !lg.hungry() || !f.sf.Out.Passable() {
		return false
	}
	pipe, l := f.s.node.pipes.take(), f.lanes.main()
	if pipe == nil {
		return false
	}
	lg.readable = false
	lg.busy++
	fd := lg.fd()
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
	f := lg.flow()
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
	f := lg.flow()
	l, offset := f.lanes.main(), f.sf.Out.Length()
	f.sf.Out.Take(n)
	f.watch.toldSent = false
	st := f.lanes.all[0]
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
		f.lanes.all[0].sentAt = stampNow()
	}
	f.moved = stampNow()
}

func (f *Flow) passable(l *lane, offset uint64, n int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lanes.main() == l && f.leg.open() && f.sf.In.Passable(offset, n)
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
	f := lg.flow()
	fd := lg.fd()
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
