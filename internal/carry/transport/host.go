package transport

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"longhaul/internal/words/remedy"
)

// host describes the kernel's features and this process's privileges, in its
// network namespace. It is probed once, on a socket that is never connected,
// instead of per flow.
type host struct {
	defaultCC string

	tcpWmem, tcpRmem [3]int // minimum, initial and maximum buffer of autotuning, in bytes
	wmemMax, rmemMax int    // caps of plain SO_SNDBUF and SO_RCVBUF, in bytes

	// canForce: buffers may exceed the caps (CAP_NET_ADMIN in the initial
	// user namespace).
	canForce bool
	// canUnlock: autotuning of a fixed buffer can be restored (SO_BUF_LOCK,
	// Linux 5.14).
	canUnlock bool
	// canCapRTO: the kernel has TCP_RTO_MAX_MS (Linux 6.15).
	canCapRTO bool

	retries2           int  // tcp_retries2
	slowStartAfterIdle bool // tcp_slow_start_after_idle
	mtuProbing         bool // tcp_mtu_probing
}

// rtoMaxOption is TCP_RTO_MAX_MS, which x/sys lacks.
const rtoMaxOption = 44

// probeHost probes the calling thread's network namespace.
func probeHost() (host, error) {
	fd, err := scratchSocket()
	if err != nil {
		return host{}, err
	}
	defer unix.Close(fd)

	var h host
	if h.defaultCC, err = unix.GetsockoptString(fd, unix.SOL_TCP, unix.TCP_CONGESTION); err != nil {
		return host{}, fmt.Errorf("read the default congestion control: %w", err)
	}
	if h.tcpWmem, err = sysctlTriple("tcp_wmem"); err != nil {
		return host{}, err
	}
	if h.tcpRmem, err = sysctlTriple("tcp_rmem"); err != nil {
		return host{}, err
	}
	if h.retries2, err = sysctlInt("tcp_retries2"); err != nil {
		return host{}, err
	}
	idle, err := sysctlInt("tcp_slow_start_after_idle")
	if err != nil {
		return host{}, err
	}
	h.slowStartAfterIdle = idle != 0
	probing, err := sysctlInt("tcp_mtu_probing")
	if err != nil {
		return host{}, err
	}
	h.mtuProbing = probing != 0

	// The caps are not readable in every namespace, but an excessive size gives
	// the allowed one. The kernel doubles the given size.
	if h.wmemMax, err = maxSize(fd, unix.SO_SNDBUF); err != nil {
		return host{}, err
	}
	if h.rmemMax, err = maxSize(fd, unix.SO_RCVBUF); err != nil {
		return host{}, err
	}
	h.canForce = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, h.wmemMax) == nil
	h.canUnlock = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK, 0) == nil
	_, err = unix.GetsockoptInt(fd, unix.SOL_TCP, rtoMaxOption)
	h.canCapRTO = err == nil
	return h, nil
}

// scratchSocket is a TCP socket, IPv4 or IPv6, for probing options.
func scratchSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	}
	if err != nil {
		return -1, fmt.Errorf("open a socket to probe the kernel with: %w", err)
	}
	return fd, nil
}

func maxSize(fd, option int) (int, error) {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, maxSockBuf); err != nil {
		return 0, fmt.Errorf("probe the largest socket buffer: %w", err)
	}
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option)
	if err != nil {
		return 0, fmt.Errorf("probe the largest socket buffer: %w", err)
	}
	return n / 2, nil
}

// maxWindow is the largest window in bytes that a connection can announce if
// nothing is set before its handshake. The kernel chooses the shift (RFC 7323)
// to cover the largest buffer that the sysctls allow.
func (h host) maxWindow() int {
	space := max(h.tcpRmem[2], h.rmemMax, 1)
	shift := min(max(bits.Len(uint(space))-1-15, 0), 14)
	return 65535 << shift
}

func readSysctl(name string) (string, error) {
	b, err := os.ReadFile("/proc/sys/net/ipv4/" + name)
	if err != nil {
		return "", remedy.Proc(fmt.Errorf("read the sysctl net.ipv4.%s: %w", name, err))
	}
	return strings.TrimSpace(string(b)), nil
}

func sysctlInt(name string) (int, error) {
	s, err := readSysctl(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("the sysctl net.ipv4.%s is %q and not a number", name, s)
	}
	return n, nil
}

func sysctlTriple(name string) (triple [3]int, err error) {
	s, err := readSysctl(name)
	if err != nil {
		return triple, err
	}
	fields := strings.Fields(s)
	if len(fields) != len(triple) {
		return triple, fmt.Errorf("the sysctl net.ipv4.%s is %q and not three numbers", name, s)
	}
	for i, f := range fields {
		if triple[i], err = strconv.Atoi(f); err != nil {
			return triple, fmt.Errorf("the sysctl net.ipv4.%s is %q and not three numbers", name, s)
		}
	}
	return triple, nil
}
