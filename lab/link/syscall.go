package link

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The path uses raw system calls. They never block, so they skip the
// scheduler's bookkeeping, which costs as much as the call.

func readRaw(fd int, b []byte) (int, error) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func writev(fd int, iov *[2]unix.Iovec) error {
	_, _, errno := unix.RawSyscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(iov)), uintptr(len(iov)))
	if errno != 0 {
		return errno
	}
	return nil
}
