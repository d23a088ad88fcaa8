package pair

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/sys/socket"
	"longhaul/internal/sys/tcpinfo"
)

// failure is why the socket is broken; nil: it is not. An event alone is no proof: it
// may have been of an earlier socket with the same number.
func (lg *leg) failure() error {
	look := []unix.PollFd{{Fd: lg.num}}
	_, _ = retry(func() (int, error) { return unix.Poll(look, 0) })
	if look[0].Revents&(unix.POLLERR|unix.POLLHUP) == 0 {
		return nil
	}
	errno, err := unix.GetsockoptInt(lg.fd(), unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil || errno == 0 {
		return unix.ECONNRESET
	}
	return unix.Errno(errno)
}

// shut ends the stream to the socket's peer. A peer that has ended its own stream, has every byte and
// has reset the connection since lacks nothing: then shut succeeds. dialed says that this end made the
// connection.
func (lg *leg) shut(ended, dialed bool) error {
	err := unix.Shutdown(lg.fd(), unix.SHUT_WR)
	if err != unix.ENOTCONN {
		return os.NewSyscallError("shutdown", err)
	}
	if ended && lg.delivered(dialed) {
		return nil
	}
	return unix.ECONNRESET
}

// delivered reports whether the peer of a socket that the kernel has closed has acknowledged all bytes.
func (lg *leg) delivered(dialed bool) bool {
	info, err := tcpinfo.Get(lg.fd())
	if err != nil || !info.Has(tcpinfo.FieldBytesSent) || !info.Has(tcpinfo.FieldBytesAcked) {
		return false
	}
	acked := info.BytesAcked
	if dialed {
		acked-- // of the SYN
	}
	return acked+info.BytesRetrans >= info.BytesSent && info.NotsentBytes == 0
}

// isClosed reports whether the kernel has closed the socket, by a reset or a timeout. What its
// peer lacks it never gets then.
func (lg *leg) isClosed() bool {
	info, err := tcpinfo.Get(lg.fd())
	return err == nil && info.State == tcpinfo.Closed
}

func prepareLeg(fd int) {
	_ = unix.SetNonblock(fd, true)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	socket.KeepUrgentInLine(fd)
	setReset(fd, true)
}

// take gives the flow its socket. The caller holds f.mu or is alone.
func (lg *leg) take(fd int) error {
	prepareLeg(fd)
	lg.num, lg.readable, lg.writable = int32(fd), true, true
	return lg.flow().s.node.poller.add(fd, lg)
}

// event takes what the poller saw.
func (lg *leg) event(fd int, events uint32) {
	f := lg.flow()
	f.mu.Lock()
	defer f.mu.Unlock()
	if lg.fd() != fd {
		return
	}
	ready := lg.readable && lg.writable
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		lg.readable = true
	}
	if events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		lg.writable = true
	}
	lg.failed = lg.failed || events&(unix.EPOLLERR|unix.EPOLLHUP) != 0
	if ready && events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) == 0 {
		lg.mute(true) // bytes come faster than they are read
		return
	}
	f.wake()
}

// mute has the poller report no bytes that arrive, while nobody waits for them.
func (lg *leg) mute(on bool) {
	if lg.muted == on {
		return
	}
	lg.muted = on
	lg.flow().s.node.poller.change(lg.fd(), !on)
}

// release ends a call that uses the descriptor without the flow's lock. It wakes nobody who
// does not wait for that: each wakeup costs more than the lock.
func (lg *leg) release() {
	lg.busy--
	if lg.awaited {
		lg.awaited = false
		lg.flow().cond.broadcast()
	}
}

// await waits for the end of such calls, or for any other news.
func (lg *leg) await() {
	f := lg.flow()
	lg.awaited = lg.awaited || lg.busy > 0
	f.cond.wait(&f.mu)
}

// fail takes a failure of the flow's own socket. If that joins two parts of a flow, the other part has
// said why.
func (lg *leg) fail(err error) {
	f := lg.flow()
	lg.broken = true
	c := legCause(f.s.near, err)
	if reason, why := lg.options.Joint.Cause(); reason != "" {
		c = cause(reason, why)
	}
	f.sf.LocalReset(c)
}

// checkFailed looks at a socket that has an error and that nobody reads.
func (lg *leg) checkFailed() bool {
	f := lg.flow()
	if !lg.open() || !lg.failed || f.sf.Dead() {
		return false
	}
	if lg.hungry() {
		return false // reading finds it, in its place
	}
	lg.failed = false
	if f.sf.In.Ended() {
		return false // both directions are shut down: the ordinary end
	}
	err := lg.failure()
	if err != nil {
		lg.fail(err)
	}
	return err != nil
}

// close closes the socket once it has nothing left to do, and reports whether it
// did something.
func (lg *leg) close() bool {
	f := lg.flow()
	if !lg.open() || !f.sf.Clean() && !f.sf.Dead() {
		return false
	}
	if f.sf.Clean() {
		f.lanes.leave()
	}
	if lg.busy > 0 {
		lg.await()
		return true
	}
	clean := f.sf.Clean() && !lg.broken
	if lg.mustDrain(clean) {
		lg.noteCut(stampNow())
		lg.sleep()
		return true
	}
	if setReset(lg.fd(), !clean); !clean {
		c, _ := f.sf.Cause()
		lg.options.Joint.Cut(reasonOf(c))
	}
	f.s.node.poller.remove(lg.fd())
	if f.owner != nil {
		f.owner.Closing(lg.fd())
	}
	unix.Close(lg.fd())
	lg.num = -1
	return true
}

// mustDrain reports whether the socket's peer is to get more before the close.
func (lg *leg) mustDrain(clean bool) bool {
	f := lg.flow()
	_, byPeer := f.sf.Cause()
	if lg.broken || !clean && !byPeer || socket.Unacknowledged(lg.fd()) == 0 || lg.isClosed() {
		return false
	}
	return (clean || lg.cutSince().IsZero() || lg.cutSince().since() < lg.options.ResetDrain) && !f.s.node.closing.Load()
}

// sleep waits a moment for an acknowledgement of the socket's peer, which is no event.
func (lg *leg) sleep() {
	f := lg.flow()
	wait := min(max(lg.cutSince().since()/8, time.Millisecond), 200*time.Millisecond)
	f.mu.Unlock()
	time.Sleep(wait)
	f.mu.Lock()
}

// write writes to the flow's own socket once, without waiting.
func (lg *leg) write(b []byte) {
	f := lg.flow()
	fd := lg.fd()
	lg.writable, lg.busyOut = false, true
	lg.busy++
	f.mu.Unlock()
	n, err := send(fd, b)
	f.mu.Lock()
	lg.busyOut = false
	lg.release()
	if n > 0 {
		f.sf.Wrote(b[:n])
		lg.writable = lg.writable || n == len(b)
		f.moved = stampNow()
	}
	if err != nil && err != unix.EAGAIN {
		lg.fail(os.NewSyscallError("write", err))
	}
}

// passEnd passes the end on to the flow's own socket if it is due, and reports whether it
// did something.
func (lg *leg) passEnd() bool {
	f := lg.flow()
	if !lg.open() || lg.busyOut {
		return false
	}
	pass, err := f.sf.In.EndDue()
	if err != nil {
		f.abort(cause(flow.EndDamaged, errEnd))
		return true
	}
	if !pass {
		return false
	}
	if f.sf.Out.Ended() {
		setReset(lg.fd(), false) // in LAST_ACK the kernel cannot reset; its rest is whole
	}
	if err := lg.shut(f.sf.Out.Ended(), !f.s.near); err != nil {
		lg.fail(err)
	} else {
		f.sf.EndPassed()
		f.moved = stampNow()
	}
	f.wake()
	return true
}

var errEnd = errors.New("length or sum of the stream differs")

// legCause is the cause of a failure of a flow's own socket.
func legCause(near bool, err error) stream.Cause {
	timeout := errors.Is(err, unix.ETIMEDOUT) || errors.Is(err, unix.EHOSTUNREACH)
	switch {
	case near && timeout:
		return cause(flow.EndClientTimeout, err)
	case near:
		return cause(flow.EndClientReset, err)
	case timeout:
		return cause(flow.EndTargetTimeout, err)
	}
	return cause(flow.EndTargetReset, err)
}

// read reads the flow's own socket once, if it may have something.
func (lg *leg) read() bool {
	f := lg.flow()
	if !lg.open() || !lg.readable || !lg.hungry() || f.need.crowdedOut() {
		return false
	}
	if f.sf.Out.Starved() {
		f.spread.setWindow()
	}
	b := f.sf.Out.Space()
	if b == nil {
		return false
	}
	lg.readable = false
	lg.busy++
	f.mu.Unlock()
	n, err := recv(lg.fd(), b)
	f.mu.Lock()
	lg.release()
	switch {
	case n > 0:
		lg.readable, lg.copyNext = true, n < minSplice
		f.sf.Out.Commit(n)
		f.moved = stampNow()
		f.lanes.feed()
	case err == unix.EAGAIN:
		f.sf.Out.Trim()
		lg.mute(false)
	case err == nil && lg.cut != nil && lg.cut.reset != nil:
		lg.fail(lg.cut.reset)
	case err == nil:
		// The kernel reports a reset to one call only. If a write on another thread has got
		// it, this read returns 0 as at an end.
		for lg.busyOut {
			lg.await()
		}
		if !lg.open() || !f.sf.Hungry() {
			return true
		}
		lg.readable = true
		f.sf.Out.End()
		f.moved = stampNow()
		f.lanes.feed()
	default:
		lg.fail(err)
	}
	return true
}

// hungry reports whether bytes of the flow's own socket are to be read.
func (lg *leg) hungry() bool { return lg.flow().sf.Hungry() && !lg.flow().near.held() }

// targetFound takes the news that the far relay has a target, for which a held flow waits: it is read
// from now on, and goes to no other hop. The caller holds f.mu.
func (nr *nearPart) targetFound() {
	if !nr.held() {
		return
	}
	f := nr.flow()
	early := f.opening.client.Early
	f.opening.client = nil
	f.s.setHeld(f, false)
	f.phase.take(eventOpened)
	if !f.sf.Dead() {
		f.sf.Out.Keep(early)
	}
	f.lanes.feed()
	f.wake()
}

// part gives the socket up, open. Its close stays a reset: a client that no hop serves sees no end.
func (lg *leg) part() {
	lg.flow().s.node.poller.remove(lg.fd())
	lg.num = -1
}

// canRead reports that the flow's own socket may have bytes for which there is room.
func (lg *leg) canRead() bool {
	f := lg.flow()
	return lg.open() && lg.readable && lg.hungry() && !f.sf.Out.Full() && f.s.node.budget.room() && !f.need.crowdedOut()
}

// parkable reports that only events wake the flow.
func (lg *leg) parkable() bool {
	return !lg.canRead() && lg.busy == 0
}

// deliverSpill writes bytes whose turn has come to the flow's own socket, once, and
// reports whether there were any and room for them.
func (lg *leg) deliverSpill() bool {
	f := lg.flow()
	if !lg.open() || !lg.writable || lg.busyOut {
		return false
	}
	b, e := f.sf.Turn()
	if e == nil {
		return false
	}
	lg.write(b)
	f.sf.Turned(e)
	return true
}
