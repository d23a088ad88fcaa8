package relay

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fib asks the kernel how it would route a connection. The kernel answers within the call
// that asks, and takes no lock for that, so that an event loop does not wait. Only one
// goroutine at a time may use a fib.
type fib struct {
	fd       int // of a netlink socket; -1: none is open
	sequence uint32
	request  []byte
	answer   [256]byte // room for the head of an answer
}

// query is a connection that is about to be dialed.
type query struct {
	to     netip.AddrPort
	from   netip.AddrPort // invalid: the kernel chooses
	mark   uint32
	device uint32 // to which the socket is bound; 0: none
	tos    uint8
}

// isOwn reports whether the kernel would deliver a connection to this host itself: to an
// address of its devices, in a prefix of a local route, to an anycast address of its
// networks, or to a broadcast or multicast address. The answer is the kernel's, by its
// routing rules. An IPv4 route is looked up without from: the kernel looks up none for an
// address that it does not have.
func (b *fib) isOwn(q query) (bool, error) {
	kind, errno := b.routeType(q)
	switch errno {
	case 0:
		return kind != unix.RTN_UNICAST, nil
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES:
		return false, nil // connect says so
	}
	return false, fmt.Errorf("look up the route to %s: %w", q.to.Addr(), errno)
}

// routeType is the type of the route, such as RTN_LOCAL.
func (b *fib) routeType(q query) (uint8, unix.Errno) {
	if errno := b.open(); errno != 0 {
		return 0, errno
	}
	b.sequence++
	b.compose(q)
	if _, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(b.fd), uintptr(unsafe.Pointer(&b.request[0])), uintptr(len(b.request))); errno != 0 {
		b.close()
		return 0, errno
	}
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(b.fd), uintptr(unsafe.Pointer(&b.answer[0])), uintptr(len(b.answer)))
	if errno != 0 {
		b.close()
		return 0, errno
	}
	return b.parse(b.answer[:n])
}

// open opens the socket unless it is open.
func (b *fib) open() unix.Errno {
	if b.fd >= 0 {
		return 0
	}
	fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if errno == 0 {
		b.fd = int(fd)
	}
	return errno
}

func (b *fib) close() {
	if b.fd >= 0 {
		closeFD(b.fd)
		b.fd = -1
	}
}

// Offsets in a netlink message.
const (
	netlinkType     = 4
	netlinkSequence = 8
	netlinkBody     = unix.SizeofNlMsghdr
	routeTOS        = netlinkBody + 3
	routeKind       = netlinkBody + 7
)

// compose makes the request.
func (b *fib) compose(q query) {
	to := q.to.Addr().Unmap()
	m := append(b.request[:0], make([]byte, netlinkBody+unix.SizeofRtMsg)...)
	binary.NativeEndian.PutUint16(m[netlinkType:], unix.RTM_GETROUTE)
	binary.NativeEndian.PutUint16(m[netlinkType+2:], unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(m[netlinkSequence:], b.sequence)
	m[netlinkBody] = uint8(family(to))
	m[netlinkBody+1] = uint8(to.BitLen())
	m[routeTOS] = q.tos &^ 3 // without the bits of ECN
	m = appendAddress(m, unix.RTA_DST, to)
	m = appendUint8(m, unix.RTA_IP_PROTO, unix.IPPROTO_TCP)
	m = appendPort(m, unix.RTA_DPORT, q.to.Port())
	if q.from.IsValid() {
		if from := q.from.Addr().Unmap(); from.Is6() {
			m[netlinkBody+2] = 128
			m = appendAddress(m, unix.RTA_SRC, from)
		}
		m = appendPort(m, unix.RTA_SPORT, q.from.Port())
	}
	if q.mark != 0 {
		m = appendUint32(m, unix.RTA_MARK, q.mark)
	}
	if q.device != 0 {
		m = appendUint32(m, unix.RTA_OIF, q.device)
	}
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	b.request = m
}

func appendAttribute(m []byte, kind uint16, length int) []byte {
	m = binary.NativeEndian.AppendUint16(m, uint16(unix.SizeofRtAttr+length))
	return binary.NativeEndian.AppendUint16(m, kind)
}

func appendAddress(m []byte, kind uint16, a netip.Addr) []byte {
	m = appendAttribute(m, kind, a.BitLen()/8)
	if a.Is4() {
		four := a.As4()
		return append(m, four[:]...)
	}
	sixteen := a.As16()
	return append(m, sixteen[:]...)
}

func appendUint8(m []byte, kind uint16, v uint8) []byte {
	return append(appendAttribute(m, kind, 1), v, 0, 0, 0)
}

func appendPort(m []byte, kind, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(appendAttribute(m, kind, 2), port), 0, 0)
}

func appendUint32(m []byte, kind uint16, v uint32) []byte {
	return binary.NativeEndian.AppendUint32(appendAttribute(m, kind, 4), v)
}

// parse reads an answer. One that belongs to no question of ours ends the socket.
func (b *fib) parse(m []byte) (uint8, unix.Errno) {
	const atLeast = netlinkBody + unix.SizeofRtMsg
	if len(m) >= netlinkBody+4 && binary.NativeEndian.Uint32(m[netlinkSequence:]) == b.sequence {
		switch kind := binary.NativeEndian.Uint16(m[netlinkType:]); {
		case kind == unix.RTM_NEWROUTE && len(m) >= atLeast:
			return m[routeKind], 0
		case kind == unix.NLMSG_ERROR:
			if code := int32(binary.NativeEndian.Uint32(m[netlinkBody:])); code < 0 {
				return 0, unix.Errno(-code)
			}
		}
	}
	b.close()
	return 0, unix.EBADMSG
}

// queryOf is the connection that a prepared socket is about to dial.
func queryOf(fd, as int, to, from netip.AddrPort) query {
	q := query{to: to, from: from, mark: uint32(getsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK)),
		device: uint32(getsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX))}
	if as == unix.AF_INET {
		q.tos = uint8(getsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS))
	} else {
		q.tos = uint8(getsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS))
	}
	return q
}
