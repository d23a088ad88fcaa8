// Package descriptor duplicates descriptors of files and sockets that the Go runtime has.
package descriptor

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Duplicate returns a descriptor of the same file or socket, which stays open when c is
// closed. On failure it is -1.
func Duplicate(c syscall.Conn) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd = -1
	var failed error
	err = raw.Control(func(from uintptr) { fd, failed = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(err, os.NewSyscallError("fcntl", failed)); err != nil {
		return -1, err
	}
	return fd, nil
}
