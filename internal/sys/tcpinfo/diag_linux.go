//go:build linux

package tcpinfo

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Diag queries the kernel about the TCP connections of a network namespace. It
// needs no privileges. Several goroutines may call its methods.
type Diag struct {
	mu     sync.Mutex
	fd     int
	seq    uint32
	buf    []byte
	parser connectionParser
}

const (
	sockDiagByFamily = 20 // SOCK_DIAG_BY_FAMILY

	// The kernel sends parts of a list of at most 32 KiB.
	diagBufferLen = 64 << 10

	// maxDumps bounds the attempts to get a complete list.
	maxDumps = 3
)

// Errors of a list.
var (
	errInterrupted = errors.New("connections change faster than the kernel lists them")
	errNoModule    = errors.New("the kernel has no module tcp_diag (CONFIG_INET_DIAG), or cannot load it")
	errMalformed   = errors.New("malformed answer of the kernel")
)

// OpenDiag opens a Diag for the network namespace of the calling thread; other
// threads may use it.
func OpenDiag() (*Diag, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("open sock_diag: %w", err)
	}
	return &Diag{fd: fd, buf: make([]byte, diagBufferLen), parser: connectionParser{order: nativeOrder}}, nil
}

// Close closes the socket. No other method may run at the same time or
// afterwards.
func (d *Diag) Close() error { return unix.Close(d.fd) }

// Each calls visit for every connection in one of the states, except listening
// sockets and TIME-WAIT, which have no tcp_info. The *Connection is valid only
// during the call. The list does not show a single moment. If the kernel
// interrupts it, Each starts again, so a connection may be visited twice with
// the same Cookie.
func (d *Diag) Each(states StateSet, visit func(*Connection)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, family := range []uint8{familyINET, familyINET6} {
		if err := d.dump(family, states&Connections, visit); err != nil {
			return fmt.Errorf("list TCP connections: %w", err)
		}
	}
	return nil
}

// Handshakes calls visit with the local address of every connection in
// SYN-RECEIVED.
func (d *Diag) Handshakes(visit func(local netip.AddrPort)) error {
	return d.eachBare(SynReceived, "handshakes", visit)
}

// Listeners calls visit with the local address of every listening socket.
func (d *Diag) Listeners(visit func(local netip.AddrPort)) error {
	return d.eachBare(Listen, "listeners", visit)
}

// eachBare calls visit for every socket in a state without tcp_info.
func (d *Diag) eachBare(state State, what string, visit func(local netip.AddrPort)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.parser.bare = States(state)
	defer func() { d.parser.bare = 0 }()
	for _, family := range []uint8{familyINET, familyINET6} {
		err := d.dump(family, States(state), func(c *Connection) { visit(c.Local) })
		if err != nil {
			return fmt.Errorf("list TCP %s: %w", what, err)
		}
	}
	return nil
}

// dump lists one family.
func (d *Diag) dump(family uint8, states StateSet, visit func(*Connection)) error {
	for range maxDumps {
		err := d.ask(diagRequest(family, states), unix.NLM_F_DUMP, visit)
		if err == unix.ENOENT {
			return errNoModule
		}
		if err != errInterrupted {
			return err
		}
	}
	return errInterrupted
}

// Get returns the connection with these addresses, or ErrNoConnection. It
// ignores zones.
func (d *Diag) Get(local, remote netip.AddrPort) (Connection, error) {
	local, remote = plainAddress(local), plainAddress(remote)
	d.mu.Lock()
	defer d.mu.Unlock()
	found, ok, err := d.exact(local, remote)
	if !ok && err == nil {
		// A connection bound to a device is found only with the device's index.
		for _, family := range []uint8{familyINET, familyINET6} {
			err = errors.Join(err, d.dump(family, Connections, func(c *Connection) {
				if c.Local == local && c.Remote == remote {
					found, ok = *c, true
				}
			}))
		}
	}
	switch {
	case ok:
		return found, nil
	case err != nil:
		return Connection{}, fmt.Errorf("look up the connection %v to %v: %w", local, remote, err)
	}
	return Connection{}, fmt.Errorf("%v to %v: %w", local, remote, ErrNoConnection)
}

// exact looks up the connection with these plain addresses. It does not find
// connections bound to a device.
func (d *Diag) exact(local, remote netip.AddrPort) (found Connection, ok bool, err error) {
	// Without a connection the kernel returns a listener on the port.
	err = d.ask(diagRequestFor(local, remote), 0, func(c *Connection) {
		if c.Local == local && c.Remote == remote {
			found, ok = *c, true
		}
	})
	if err == unix.ENOENT {
		err = nil
	}
	return found, ok, err
}

// PeerOwner returns the user who owns the other end of a local connection. It
// returns ErrNoConnection if the other end is in another network namespace, is
// bound to a device, or is open in no program. For the last the kernel would
// report root. It requests no list, so its cost is bounded.
func (d *Diag) PeerOwner(local, remote netip.AddrPort) (uid int, err error) {
	local, remote = plainAddress(local), plainAddress(remote)
	d.mu.Lock()
	defer d.mu.Unlock()
	peer, ok, err := d.exact(remote, local)
	if err == nil && !ok {
		// The kernel answers the same if it has no module.
		if _, own, ownErr := d.exact(local, remote); ownErr == nil && !own {
			err = errNoModule
		}
	}
	switch {
	case err != nil:
		return 0, fmt.Errorf("look up the owner of the connection %v to %v: %w", remote, local, err)
	case !ok || peer.Inode == 0:
		return 0, fmt.Errorf("%v to %v: %w", remote, local, ErrNoConnection)
	}
	return int(peer.UID), nil
}

func plainAddress(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// ask sends a request and visits the connections of the answer.
func (d *Diag) ask(body [diagRequestLen]byte, flags uint16, visit func(*Connection)) error {
	d.seq++
	var request [unix.SizeofNlMsghdr + diagRequestLen]byte
	binary.NativeEndian.PutUint32(request[0:], uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|flags)
	binary.NativeEndian.PutUint32(request[8:], d.seq)
	copy(request[unix.SizeofNlMsghdr:], body[:])
	err := retryInterrupted(func() error { return unix.Sendto(d.fd, request[:], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) })
	if err != nil {
		return err
	}
	answer := diagAnswer{seq: d.seq, dump: flags&unix.NLM_F_DUMP != 0, parser: &d.parser, visit: visit}
	for !answer.complete {
		n, err := d.receive()
		if err != nil {
			return err
		}
		// Read the rest after an error: the kernel starts no new list before
		// the old one is read.
		answer.read(d.buf[:min(n, len(d.buf))])
		if n > len(d.buf) {
			answer.fail(errMalformed)
		}
	}
	return answer.err
}

// receive reads a datagram. A returned length above the buffer's means that it
// was truncated. (A raw call: recvfrom of x/sys allocates an address for every
// datagram.)
func (d *Diag) receive() (int, error) {
	n := 0
	err := retryInterrupted(func() error {
		r, _, errno := unix.Syscall6(unix.SYS_RECVFROM, uintptr(d.fd), uintptr(unsafe.Pointer(&d.buf[0])), uintptr(len(d.buf)), unix.MSG_TRUNC, 0, 0)
		if errno != 0 {
			return errno
		}
		n = int(r)
		return nil
	})
	return n, err
}

func retryInterrupted(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

// diagAnswer is the state of reading an answer.
type diagAnswer struct {
	seq      uint32
	dump     bool // a list, ended by NLMSG_DONE
	parser   *connectionParser
	visit    func(*Connection)
	current  Connection
	complete bool
	err      error // the first error
}

// fail records an error. An answer that is not a list has no further parts.
func (a *diagAnswer) fail(err error) {
	if a.err == nil {
		a.err = err
	}
	a.complete = a.complete || !a.dump
}

// read processes the messages of one datagram.
func (a *diagAnswer) read(b []byte) {
	if len(b) < unix.SizeofNlMsghdr {
		a.fail(errMalformed)
		a.complete = true // stop: the sender is not the kernel's protocol
		return
	}
	order := a.parser.order
	for len(b) >= unix.SizeofNlMsghdr && !a.complete {
		length := int(order.Uint32(b))
		if length < unix.SizeofNlMsghdr || length > len(b) {
			a.fail(errMalformed)
			return
		}
		kind, flags, seq := order.Uint16(b[4:]), order.Uint16(b[6:]), order.Uint32(b[8:])
		body := b[unix.SizeofNlMsghdr:length]
		b = b[min((length+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(b)):]
		if seq != a.seq {
			continue // of an abandoned request
		}
		if flags&unix.NLM_F_DUMP_INTR != 0 {
			a.fail(errInterrupted)
		}
		switch kind {
		case unix.NLMSG_ERROR:
			a.complete = true
			a.fail(netlinkError(body, order))
		case unix.NLMSG_DONE:
			a.complete = true
			// The kernel may end a list with an error.
			if len(body) >= 4 && order.Uint32(body) != 0 {
				a.fail(netlinkError(body, order))
			}
		case sockDiagByFamily:
			a.complete = !a.dump
			if a.parser.parse(body, &a.current) {
				a.visit(&a.current)
			}
		}
	}
}

// netlinkError parses the error at the beginning of a message, a negative
// errno.
func netlinkError(body []byte, order binary.ByteOrder) error {
	if len(body) < 4 {
		return errMalformed
	}
	if n := int32(order.Uint32(body)); n < 0 {
		return unix.Errno(-n)
	}
	return errMalformed // an unrequested acknowledgement
}
