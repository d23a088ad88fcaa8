package kernel

import "golang.org/x/sys/unix"

// HasIPv6 reports whether the kernel can make IPv6 sockets.
func HasIPv6() bool {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}
