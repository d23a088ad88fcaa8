package tcpinfo

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Get reads the kernel's account of the connection of a TCP socket.
func Get(fd int) (Info, error) {
	// The kernel fills in at most this much and reports how much it was, so a
	// newer kernel's additions do no harm. The call does not block.
	var buf [bufLen]byte
	n := uint32(len(buf))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_TCP, unix.TCP_INFO,
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return Info{}, fmt.Errorf("read TCP_INFO: %w", errno)
	}
	return parse(buf[:min(int(n), len(buf))], nativeOrder), nil
}

// CongestionControl is the name of the congestion control of a TCP socket.
func CongestionControl(fd int) (string, error) {
	name, err := unix.GetsockoptString(fd, unix.SOL_TCP, unix.TCP_CONGESTION)
	if err != nil {
		return "", fmt.Errorf("read TCP_CONGESTION: %w", err)
	}
	return name, nil
}
