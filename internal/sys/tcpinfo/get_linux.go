package tcpinfo

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// buffers recycles the buffers of Get: relays query many sockets each second.
var buffers = sync.Pool{New: func() any { return new([bufLen]byte) }}

// Get returns the TCP_INFO of a TCP socket.
func Get(fd int) (Info, error) {
	buf := buffers.Get().(*[bufLen]byte)
	defer buffers.Put(buf)
	raw, err := get(fd, buf)
	if err != nil {
		return Info{}, err
	}
	return parse(raw, nativeOrder), nil
}

// AcceptQueue returns the number of connections in a listening socket's accept
// queue, and its bound.
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

// get queries the kernel, which fills in at most the buffer and returns the
// length, so additions of newer kernels are harmless. It does not block.
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
func CongestionControl(fd int) (string, error) { return LikelyCongestionControl(fd, "") }

// LikelyCongestionControl is CongestionControl, but allocates nothing if the
// name equals likely.
func LikelyCongestionControl(fd int, likely string) (string, error) {
	var buf [maxName]byte
	n := uint32(len(buf))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_TCP, unix.TCP_CONGESTION,
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return "", fmt.Errorf("read TCP_CONGESTION: %w", errno)
	}
	name := buf[:min(int(n), len(buf))]
	if end := bytes.IndexByte(name, 0); end >= 0 {
		name = name[:end]
	}
	if string(name) == likely {
		return likely, nil
	}
	return string(name), nil
}

// maxName is the kernel's TCP_CA_NAME_MAX.
const maxName = 16
