// Package handover has a running process replaced by another one without a
// moment in which nobody accepts connections: it starts the program that is to
// follow, hands it the listening sockets, and steps back only once the new
// process has said that it serves.
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
//
// Until "serving" the old process can go on as if nothing had been asked, and
// does so when the new one ends, says nothing in time, or cannot be started.
// A listening socket is one object in the kernel whoever has a descriptor of
// it: between "go" and "yours" both processes accept from one queue.
package handover

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Variable is the environment variable that tells a program that it is to
// follow another: the numbers of two descriptors, one to talk to the other
// process and one of what is to become standard error.
const Variable = "LONGHAUL_HANDOVER"

// protocolVersion is that of the messages. Fields may be added to them; another
// number says that they mean something else.
const protocolVersion = 1

// Socket is a listening socket, or one that is bound and could listen.
type Socket struct {
	Configured netip.AddrPort // as the old process was told to listen; its port may be 0
	Bound      netip.AddrPort // where it listens
	Inherited  bool           // a service manager has it as well
	File       *os.File
}

// CloseAll closes the sockets' descriptors.
func CloseAll(sockets []Socket) {
	for _, s := range sockets {
		s.File.Close()
	}
}

// Offer is what the old process hands over.
type Offer struct {
	Sockets []Socket
	State   []byte // JSON whose meaning the two processes agree on
}

// Address returns where a socket is bound, and refuses what is not a TCP socket
// that listens or could.
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
		return addr, errors.New("it is not a listening TCP socket")
	}
	if _, err := unix.Getpeername(fd); !errors.Is(err, unix.ENOTCONN) {
		return addr, errors.New("it is not a listening TCP socket but a connection")
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
		return addr, errors.New("it has no IP address")
	}
	if addr.Port() == 0 {
		return addr, errors.New("it is bound to no port")
	}
	return addr, nil
}

// Failure is why a new process did not take over.
type Failure struct {
	Problem   string
	LastWords string // what it wrote to standard error, the last of it
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
