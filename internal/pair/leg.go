package pair

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"longhaul/internal/tcpinfo"
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

// recv and send never block: the sockets do not. So they skip the scheduler's
// bookkeeping of a system call, which takes the processor from one that lasts 20 µs.

func recv(fd int, b []byte) (int, error) {
	return transfer(unix.SYS_RECVFROM, fd, b, 0)
}

func send(fd int, b []byte) (int, error) {
	return transfer(unix.SYS_SENDTO, fd, b, unix.MSG_NOSIGNAL)
}

func transfer(call uintptr, fd int, b []byte, flags uintptr) (int, error) {
	return retry(func() (int, error) {
		n, _, errno := unix.RawSyscall6(call, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), flags, 0, 0)
		if errno != 0 {
			return 0, errno
		}
		return int(n), nil
	})
}

// setReset makes close, also that of a process that dies, a reset; or not.
func setReset(fd int, on bool) {
	linger := unix.Linger{}
	if on {
		linger.Onoff = 1
	}
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &linger)
}

// unacknowledged is the number of bytes, with the end, that the socket's peer lacks.
func unacknowledged(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	if err != nil {
		return 0
	}
	return n
}

// unread is the number of bytes that the socket has for a read.
func unread(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
	if err != nil {
		return 0
	}
	return n
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

// isClosed reports whether the kernel has closed the socket, by a reset or a timeout. What its
// peer lacks it never gets then.
func (l *leg) isClosed() bool {
	info, err := tcpinfo.Get(l.fd)
	return err == nil && info.State == tcpinfo.Closed
}

func prepareLeg(fd int) {
	_ = unix.SetNonblock(fd, true)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1)
	setReset(fd, true)
}
