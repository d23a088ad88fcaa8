package tcpinfo

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Get reads the kernel's account of the connection of a TCP socket.
func Get(fd int) (Info, error) {
	var buf [bufLen]byte
	raw, err := get(fd, &buf)
	if err != nil {
		return Info{}, err
	}
	return parse(raw, nativeOrder), nil
}

// AcceptQueue reads how many connections wait at a listening socket to be
// accepted, and how many may.
func AcceptQueue(fd int) (waiting, limit uint32, err error) {
	var buf [bufLen]byte
	raw, err := get(fd, &buf)
	if err != nil {
		return 0, 0, err
	}
	waiting, limit, ok := parseQueue(raw, nativeOrder)
	if !ok {
		return 0, 0, errors.New("the socket does not listen")
	}
	return waiting, limit, nil
}

// get asks the kernel, which fills in at most this much and reports how much
// it was, so that a newer kernel's additions do no harm. It does not block.
func get(fd int, buf *[bufLen]byte) ([]byte, error) {
	n := uint32(len(buf))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_TCP, unix.TCP_INFO,
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return nil, fmt.Errorf("read TCP_INFO: %w", errno)
	}
	return buf[:min(int(n), len(buf))], nil
}

// CongestionControl is the name of the congestion control of a TCP socket.
func CongestionControl(fd int) (string, error) {
	name, err := unix.GetsockoptString(fd, unix.SOL_TCP, unix.TCP_CONGESTION)
	if err != nil {
		return "", fmt.Errorf("read TCP_CONGESTION: %w", err)
	}
	return name, nil
}
