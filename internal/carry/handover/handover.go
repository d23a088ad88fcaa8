// Package handover replaces a running process by another one without a gap in
// accepting connections. The old process starts the new program and hands it
// the listening sockets. It stops accepting only after the new process has
// reported that it serves.
//
//	old process                        new process
//	Start ──────── offer, sockets ───▶ Receive
//	                                   reads its configuration
//	Ready ◀─────────── ready ───────── Ready
//	Serve ─────────────  go ─────────▶   │
//	                                   begins to accept
//	      ◀────────── serving ──────── Serving
//	stops accepting
//	Leave ───────────  yours ────────▶   │
//	                                   takes what the old process leaves
//	      ◀─────────── end ─────────── Close
//
// Until "serving" the old process can continue unchanged. It does so when the
// new one ends, stays silent too long, or cannot be started. All descriptors of
// a listening socket refer to one object in the kernel: between "go" and
// "yours" both processes accept from one queue.
package handover

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Variable is the environment variable that makes a program the successor of
// another. It holds two descriptor numbers: the channel to the other process,
// and the future standard error.
const Variable = "LONGHAUL_HANDOVER"

// protocolVersion is the version of the messages. New fields keep it; a changed
// meaning raises it.
const protocolVersion = 1

// Socket is a TCP socket that listens, or is bound and could listen.
type Socket struct {
	Configured netip.AddrPort // the configured address; its port may be 0
	Bound      netip.AddrPort // the actual address
	Inherited  bool           // a service manager shares it
	Tunnel     string         // whose transparent listener it is; empty: it is not transparent
	File       *os.File
}

// CloseAll closes the sockets' descriptors.
func CloseAll(sockets []Socket) {
	for _, s := range sockets {
		s.File.Close()
	}
}

// Offer is the content of a handover.
type Offer struct {
	Sockets []Socket
	State   []byte // JSON; the processes define its meaning
}

// Address returns the bound address of a socket. It refuses other files than
// TCP sockets that listen or could.
func Address(f *os.File) (addr netip.AddrPort, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return addr, err
	}
	control := raw.Control(func(fd uintptr) { addr, err = address(int(fd)) })
	return addr, errors.Join(err, control)
}

func address(fd int) (addr netip.AddrPort, err error) {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return addr, err
	}
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil {
		return addr, err
	}
	if kind != unix.SOCK_STREAM || protocol != unix.IPPROTO_TCP {
		return addr, errors.New("the file is not a listening TCP socket")
	}
	if _, err := unix.Getpeername(fd); !errors.Is(err, unix.ENOTCONN) {
		return addr, errors.New("the file is not a listening TCP socket but a connection")
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return addr, err
	}
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		addr = netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		addr = netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	default:
		return addr, errors.New("the socket has no IP address")
	}
	if addr.Port() == 0 {
		return addr, errors.New("the socket is bound to no port")
	}
	return addr, nil
}

// Failure is the reason why a new process did not take over.
type Failure struct {
	Problem   string
	LastWords string // the end of its standard error
}

func (f *Failure) Error() string { return f.Problem }

// Executable checks that a program can be started.
func Executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", path)
	}
	if err := unix.Access(path, unix.X_OK); err != nil {
		return fmt.Errorf("%s cannot be executed: %w", path, err)
	}
	return nil
}
