// Package splice moves the bytes of sockets through pipes, inside the kernel.
package splice

import "golang.org/x/sys/unix"

// Wanted is the capacity that Open asks for, in bytes.
const Wanted = 512 << 10

const minimum = 64 << 10 // bytes; a smaller pipe is worse than copying

// Pipe carries spliced bytes from one socket to another.
type Pipe struct {
	R, W int // descriptors
	Size int // bytes
}

// Open makes a pipe as large as the user's limits allow. It returns nil if no useful
// pipe is available: descriptors have run out, or the user exceeds
// fs.pipe-user-pages-soft and would get two pages.
func Open() *Pipe {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		return nil
	}
	p := &Pipe{R: fds[0], W: fds[1]}
	size, err := unix.FcntlInt(uintptr(p.W), unix.F_SETPIPE_SZ, Wanted)
	if err != nil {
		size, err = unix.FcntlInt(uintptr(p.W), unix.F_GETPIPE_SZ, 0)
	}
	if err != nil || size < minimum {
		p.Close()
		return nil
	}
	p.Size = size
	return p
}

// Close closes the pipe with what is in it.
func (p *Pipe) Close() {
	_ = unix.Close(p.R)
	_ = unix.Close(p.W)
}

// Move moves up to n bytes between a socket and a pipe. It does not block, so it skips
// the scheduler's bookkeeping of unix.Syscall.
func Move(from, to, n int) (int, unix.Errno) {
	moved, _, errno := unix.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0,
		uintptr(n), unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
	return int(moved), errno
}

// Unsupported reports whether an error of Move concerns splice only, not the
// connection.
func Unsupported(errno unix.Errno) bool {
	switch errno {
	case unix.ENOMEM, unix.ENOBUFS, unix.EINVAL, unix.EOPNOTSUPP:
		return true
	}
	return false
}
