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

// leg is a flow's own socket, the client's or the target's.
type leg struct {
	fd    int   // -1: none
	reset error // that the socket does not tell any more: what it shows as an end is this
	busy  int16 // calls that use the descriptor without the flow's lock
	// What the poller saw since the last attempt.
	readable, writable, failed bool
	muted                      bool // the poller reports no bytes that arrive
	broken                     bool // it has failed, or there will be none
	busyOut                    bool // one of the calls writes
	awaited                    bool // somebody waits for the end of such a call
}

func (l *leg) open() bool { return l.fd >= 0 }

// failure is why the socket is broken; nil: it is not. An event alone is no proof: it
// may have been of an earlier socket with the same number.
func (l *leg) failure() error {
	look := []unix.PollFd{{Fd: int32(l.fd)}}
	_, _ = retry(func() (int, error) { return unix.Poll(look, 0) })
	if look[0].Revents&(unix.POLLERR|unix.POLLHUP) == 0 {
		return nil
	}
	errno, err := unix.GetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil || errno == 0 {
		return unix.ECONNRESET
	}
	return unix.Errno(errno)
}

// shut ends the stream to the socket's peer. A peer that has ended its own stream, has every byte and
// has reset the connection since lacks nothing: then shut succeeds. dialed says that this end made the
// connection.
func (l *leg) shut(ended, dialed bool) error {
	err := unix.Shutdown(l.fd, unix.SHUT_WR)
	if err != unix.ENOTCONN {
		return os.NewSyscallError("shutdown", err)
	}
	if ended && l.delivered(dialed) {
		return nil
	}
	return unix.ECONNRESET
}

// delivered reports whether the peer of a socket that the kernel has closed has acknowledged all bytes.
func (l *leg) delivered(dialed bool) bool {
	info, err := tcpinfo.Get(l.fd)
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
func (l *leg) isClosed() bool {
	info, err := tcpinfo.Get(l.fd)
	return err == nil && info.State == tcpinfo.Closed
}

func prepareLeg(fd int) {
	_ = unix.SetNonblock(fd, true)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	socket.KeepUrgentInLine(fd)
	setReset(fd, true)
}

// takeLeg gives the flow its socket. The caller holds f.mu or is alone.
func (f *Flow) takeLeg(fd int) error {
	prepareLeg(fd)
	f.leg = leg{fd: fd, readable: true, writable: true}
	return f.s.node.poller.add(fd, f)
}

// event takes what the poller saw.
func (f *Flow) event(fd int, events uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leg.fd != fd {
		return
	}
	was := f.leg
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		f.leg.readable = true
	}
	if events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		f.leg.writable = true
	}
	f.leg.failed = f.leg.failed || events&(unix.EPOLLERR|unix.EPOLLHUP) != 0
	if was.readable && was.writable && events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) == 0 {
		f.mute(true) // bytes come faster than they are read
		return
	}
	f.wake()
}

// mute has the poller report no bytes that arrive, while nobody waits for them.
func (f *Flow) mute(on bool) {
	if f.leg.muted == on {
		return
	}
	f.leg.muted = on
	f.s.node.poller.change(f.leg.fd, !on)
}

// release ends a call that uses the descriptor without the flow's lock. It wakes nobody who
// does not wait for that: each wakeup costs more than the lock.
func (f *Flow) release() {
	f.leg.busy--
	if f.leg.awaited {
		f.leg.awaited = false
		f.cond.broadcast()
	}
}

// await waits for the end of such calls, or for any other news.
func (f *Flow) await() {
	f.leg.awaited = f.leg.awaited || f.leg.busy > 0
	f.cond.wait(&f.mu)
}

// failLeg takes a failure of the flow's own socket.
func (f *Flow) failLeg(err error) {
	f.leg.broken = true
	f.sf.LocalReset(legCause(f.s.near, err))
}

// checkFailed looks at a socket that has an error and that nobody reads.
func (f *Flow) checkFailed() bool {
	if !f.leg.open() || !f.leg.failed || f.sf.Dead() {
		return false
	}
	if f.sf.Hungry() {
		return false // reading finds it, in its place
	}
	f.leg.failed = false
	if f.sf.In.Ended() {
		return false // both directions are shut down: the ordinary end
	}
	err := f.leg.failure()
	if err != nil {
		f.failLeg(err)
	}
	return err != nil
}

// closeLeg closes the socket once it has nothing left to do, and reports whether it
// did something.
func (f *Flow) closeLeg() bool {
	if !f.leg.open() || !f.sf.Clean() && !f.sf.Dead() {
		return false
	}
	if f.sf.Clean() {
		f.leaveLane()
	}
	if f.leg.busy > 0 {
		f.await()
		return true
	}
	clean := f.sf.Clean() && !f.leg.broken
	if f.mustDrain(clean) {
		if f.cutSince.IsZero() {
			f.cutSince = stampNow()
		}
		f.sleep()
		return true
	}
	setReset(f.leg.fd, !clean)
	f.s.node.poller.remove(f.leg.fd)
	if f.legs.Closing != nil {
		f.legs.Closing(f.leg.fd)
	}
	unix.Close(f.leg.fd)
	f.leg.fd = -1
	return true
}

// mustDrain reports whether the socket's peer is to get more before the close.
func (f *Flow) mustDrain(clean bool) bool {
	_, byPeer := f.sf.Cause()
	if f.leg.broken || !clean && !byPeer || socket.Unacknowledged(f.leg.fd) == 0 || f.leg.isClosed() {
		return false
	}
	within := f.legs.ResetDrain
	if clean {
		within = f.legs.HalfClose
	}
	return (f.cutSince.IsZero() || f.cutSince.since() < within) && !f.s.node.closing.Load()
}

// sleep waits a moment for an acknowledgement of the socket's peer, which is no event.
func (f *Flow) sleep() {
	wait := min(max(f.cutSince.since()/8, time.Millisecond), 200*time.Millisecond)
	f.mu.Unlock()
	time.Sleep(wait)
	f.mu.Lock()
}

// writeLeg writes to the flow's own socket once, without waiting.
func (f *Flow) writeLeg(b []byte) {
	fd := f.leg.fd
	f.leg.writable, f.leg.busyOut = false, true
	f.leg.busy++
	f.mu.Unlock()
	n, err := send(fd, b)
	f.mu.Lock()
	f.leg.busyOut = false
	f.release()
	if n > 0 {
		f.sf.Wrote(b[:n])
		f.leg.writable = f.leg.writable || n == len(b)
		f.moved = stampNow()
	}
	if err != nil && err != unix.EAGAIN {
		f.failLeg(os.NewSyscallError("write", err))
	}
}

// passEnd passes the end on to the flow's own socket if it is due, and reports whether it
// did something.
func (f *Flow) passEnd() bool {
	if !f.leg.open() || f.leg.busyOut {
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
		setReset(f.leg.fd, false) // in LAST_ACK the kernel cannot reset; its rest is whole
	}
	if err := f.leg.shut(f.sf.Out.Ended(), !f.s.near); err != nil {
		f.failLeg(err)
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

// readLeg reads the flow's own socket once, if it may have something.
func (f *Flow) readLeg() bool {
	if !f.leg.open() || !f.leg.readable || !f.sf.Hungry() || f.crowdedOut() {
		return false
	}
	if f.sf.Out.Starved() && f.sf.Out.Limit() < limitMax {
		f.setWindow()
	}
	b := f.sf.Out.Space()
	if b == nil {
		return false
	}
	f.leg.readable = false
	f.leg.busy++
	f.mu.Unlock()
	n, err := recv(f.leg.fd, b)
	f.mu.Lock()
	f.release()
	switch {
	case n > 0:
		f.leg.readable, f.copyNext = true, n < minSplice
		f.sf.Out.Commit(n)
		f.moved = stampNow()
		f.feed()
	case err == unix.EAGAIN:
		f.sf.Out.Trim()
		f.mute(false)
	case err == nil && f.leg.reset != nil:
		f.failLeg(f.leg.reset)
	case err == nil:
		// The kernel reports a reset to one call only. If a write on another thread has got
		// it, this read returns 0 as at an end.
		for f.leg.busyOut {
			f.await()
		}
		if !f.leg.open() || !f.sf.Hungry() {
			return true
		}
		f.leg.readable = true
		f.sf.Out.End()
		f.moved = stampNow()
		f.feed()
	default:
		f.failLeg(err)
	}
	return true
}
