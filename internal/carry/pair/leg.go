package pair

import (
	"os"

	"golang.org/x/sys/unix"

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
	busyOut                    bool // one of the calls writes
	awaited                    bool // somebody waits for the end of such a call
}

func (l *leg) open() bool { return l.fd >= 0 }

// retry calls a system call that does not block until it is not interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != unix.EINTR {
			return n, err
		}
	}
}

func recv(fd int, b []byte) (int, error) {
	return retry(func() (int, error) { return result(socket.Recv(fd, b)) })
}

func send(fd int, b []byte) (int, error) {
	return retry(func() (int, error) { return result(socket.Send(fd, b, 0)) })
}

func result(n int, errno unix.Errno) (int, error) {
	if errno != 0 {
		return 0, errno
	}
	return n, nil
}

// setReset makes close, also that of a process that dies, a reset; or not.
func setReset(fd int, on bool) {
	linger := unix.Linger{}
	if on {
		linger.Onoff = 1
	}
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &linger)
}

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
