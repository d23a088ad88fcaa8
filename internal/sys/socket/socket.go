// Package socket calls TCP sockets that do not block. A call that cannot wait needs none of the
// scheduler's bookkeeping that unix.Syscall does, a noticeable share of a small write, and takes no
// processor from its goroutine.
package socket

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Recv reads into b. EAGAIN means that nothing waits to be read.
func Recv(fd int, b []byte) (int, unix.Errno) { return receive(fd, b, 0) }

// RecvToMark reads into b what waits before urgent data, or the urgent byte alone, and reports which. Its
// socket keeps urgent data in line.
func RecvToMark(fd int, b []byte) (n int, urgent bool, errno unix.Errno) {
	for {
		// Counted before the look at the mark: an urgent byte that comes after it lies behind these bytes.
		waits := Unread(fd)
		switch {
		case AtUrgentMark(fd):
			n, errno = Recv(fd, b[:1])
			return n, true, errno
		case waits > 0:
			n, errno = Recv(fd, b[:min(waits, len(b))])
			return n, false, errno
		}
		if n, errno = Peek(fd, b[:1]); n == 0 || errno != 0 {
			return n, false, errno
		}
	}
}

// Peek reads bytes and leaves them in the socket. EAGAIN means that nothing waits to be read.
func Peek(fd int, b []byte) (int, unix.Errno) { return receive(fd, b, unix.MSG_PEEK) }

// receive reads again where only a signal has kept Linux from it: before urgent data, a call that
// may not wait returns EAGAIN if the thread has a signal pending. The Go runtime preempts with
// signals, and who watches a socket for edges would wait for one that has been.
func receive(fd int, b []byte, flags uintptr) (int, unix.Errno) {
	for {
		n, errno := transfer(unix.SYS_RECVFROM, fd, b, flags)
		if errno != unix.EAGAIN || !AtUrgentMark(fd) || Unread(fd) == 0 {
			return n, errno
		}
	}
}

// Send writes b; flags are those of send(2). A broken connection raises no signal.
func Send(fd int, b []byte, flags uintptr) (int, unix.Errno) {
	return transfer(unix.SYS_SENDTO, fd, b, unix.MSG_NOSIGNAL|flags)
}

func transfer(call uintptr, fd int, b []byte, flags uintptr) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(call, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), flags, 0, 0)
	return int(n), errno
}

// Unacknowledged returns the number of bytes, with the end, that were written to a socket and that
// its peer has not acknowledged; 0 if fd is no TCP socket.
func Unacknowledged(fd int) int { return ask(fd, unix.SIOCOUTQ) }

// Unread returns the number of received bytes that wait to be read; 0 if fd is no TCP socket.
func Unread(fd int) int { return ask(fd, unix.SIOCINQ) }

// AtUrgentMark reports whether the next byte to read from a socket, which may not have arrived yet,
// is urgent data.
func AtUrgentMark(fd int) bool { return ask(fd, unix.SIOCATMARK) != 0 }

func ask(fd int, request uintptr) int {
	var n int32
	if _, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(&n))); errno != 0 {
		return 0
	}
	return int(n)
}

// KeepUrgentInLine leaves urgent data at its place in the stream. Without it, reads silently skip
// the urgent byte.
func KeepUrgentInLine(fd int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1)
}
