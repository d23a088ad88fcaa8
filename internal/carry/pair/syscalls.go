package pair

import (
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/socket"
)

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
