package relay

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"longhaul/internal/words/portrange"
)

// The calls below never block: all descriptors are non-blocking. So they skip
// the scheduler's bookkeeping, see package socket.

// setNoDelay sends small segments at once, including bytes that wait because of
// MSG_MORE.
func setNoDelay(fd int) { setsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) }

func accept(fd int, from *unix.RawSockaddrAny) (int, unix.Errno) {
	size := uint32(unix.SizeofSockaddrAny)
	conn, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), uintptr(unsafe.Pointer(from)),
		uintptr(unsafe.Pointer(&size)), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	return int(conn), errno
}

func closeFD(fd int) {
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
}

func shutdownWrite(fd int) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_SHUTDOWN, uintptr(fd), unix.SHUT_WR, 0)
	return errno
}

func setsockoptInt(fd, level, name int, value int32) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(&value)), unsafe.Sizeof(value), 0)
	return errno
}

// getsockoptInt is the value of an option; 0 if the socket has none.
func getsockoptInt(fd, level, name int) (value int32) {
	size := uint32(unsafe.Sizeof(value))
	_, _, _ = unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(&value)), uintptr(unsafe.Pointer(&size)), 0)
	return value
}

// setLinger arms or disarms the zero linger. While it is armed, close resets
// the connection, and so does the kernel when the process dies.
func setLinger(fd int, armed bool) unix.Errno {
	var l unix.Linger
	if armed {
		l.Onoff = 1
	}
	_, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_LINGER,
		uintptr(unsafe.Pointer(&l)), unsafe.Sizeof(l), 0)
	return errno
}

// savedSYN copies the headers of the SYN that began an accepted connection, which its
// listener has kept (TCP_SAVE_SYN), into b. It returns their length, 0 if none were kept.
func savedSYN(fd int, b []byte) int {
	n := uint32(len(b))
	if _, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_SAVED_SYN,
		uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(unsafe.Pointer(&n)), 0); errno != 0 {
		return 0
	}
	return int(n)
}

func socketError(fd int) unix.Errno {
	v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return 0
	}
	return unix.Errno(v)
}

func newSocket(family int) (int, unix.Errno) {
	fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, uintptr(family),
		unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	return int(fd), errno
}

func family(a netip.Addr) int {
	if a.Is4() || a.Is4In6() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// rawSockaddr is the kernel's form of an address, with its length.
type rawSockaddr struct {
	any  unix.RawSockaddrAny
	size uint32
}

func toSockaddr(ap netip.AddrPort, as int) rawSockaddr {
	var s rawSockaddr
	if as == unix.AF_INET {
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(&s.any))
		in.Family = unix.AF_INET
		in.Port = networkOrder(ap.Port())
		in.Addr = ap.Addr().Unmap().As4()
		s.size = unix.SizeofSockaddrInet4
		return s
	}
	in := (*unix.RawSockaddrInet6)(unsafe.Pointer(&s.any))
	in.Family = unix.AF_INET6
	in.Port = networkOrder(ap.Port())
	in.Addr = ap.Addr().As16()
	in.Scope_id = scopeOf(ap.Addr().Zone())
	s.size = unix.SizeofSockaddrInet6
	return s
}

func fromSockaddr(any *unix.RawSockaddrAny) netip.AddrPort {
	switch any.Addr.Family {
	case unix.AF_INET:
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(any))
		return netip.AddrPortFrom(netip.AddrFrom4(in.Addr), networkOrder(in.Port))
	case unix.AF_INET6:
		in := (*unix.RawSockaddrInet6)(unsafe.Pointer(any))
		a := netip.AddrFrom16(in.Addr)
		if a.Is4In6() {
			a = a.Unmap()
		} else if in.Scope_id != 0 {
			a = a.WithZone(strconv.Itoa(int(in.Scope_id)))
		}
		return netip.AddrPortFrom(a, networkOrder(in.Port))
	}
	return netip.AddrPort{}
}

// networkOrder converts a port between native byte order and big endian.
func networkOrder(port uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return binary.NativeEndian.Uint16(b[:])
}

// scopeOf returns the index of an interface, or 0 if there is none or the kernel could not be asked.
func scopeOf(zone string) uint32 {
	index, _ := lookUpScope(zone)
	return index
}

// lookUpScope returns the index of an interface, or 0 if this host has no such interface. known is false
// if the kernel could not be asked.
func lookUpScope(zone string) (index uint32, known bool) {
	if zone == "" {
		return 0, true
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n), true
	}
	// Package net would list all interfaces.
	request, err := unix.NewIfreq(zone)
	if err != nil {
		return 0, true // no interface has such a name
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request); err != nil {
		return 0, err == unix.ENODEV
	}
	return request.Uint32(), true
}

func connect(fd int, to *rawSockaddr) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&to.any)), uintptr(to.size))
	return errno
}

func bind(fd int, to *rawSockaddr) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_BIND, uintptr(fd), uintptr(unsafe.Pointer(&to.any)), uintptr(to.size))
	return errno
}

// portRange is the first and the last port of a range.
type portRange [2]uint16

func (r portRange) has(port uint16) bool { return r[0] <= port && port <= r[1] }

// localPortRange is the kernel's range of ephemeral ports; every port if it
// cannot be read.
func localPortRange() portRange {
	r := portrange.Local()
	return portRange{r.First, r.Last}
}

// setTransparent lets a socket use addresses that this host does not have.
func setTransparent(fd, as int) unix.Errno {
	if as == unix.AF_INET6 {
		return setsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT, 1)
	}
	return setsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TRANSPARENT, 1)
}

// setFreebind allows to bind an address that this host does not have yet. Kernels before 4.15
// cannot for IPv6; a bind then fails until the host has the address.
func setFreebind(fd, as int) {
	const ipv6Freebind = 78 // IPV6_FREEBIND
	if as == unix.AF_INET6 {
		setsockoptInt(fd, unix.IPPROTO_IPV6, ipv6Freebind, 1)
		return
	}
	setsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1)
}

// bindAsClient has a socket dial from an address and port that a client uses.
func bindAsClient(fd, as int, client netip.AddrPort) unix.Errno {
	if family(client.Addr()) != as {
		return unix.EAFNOSUPPORT
	}
	if errno := setTransparent(fd, as); errno != 0 {
		return errno
	}
	// The client may have flows to several targets from one port.
	setsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	sa := toSockaddr(client, as)
	return bind(fd, &sa)
}

// isSource reports whether a connection may have this source. Of other addresses the kernel
// makes those that it chooses.
func isSource(client netip.AddrPort) bool {
	a := client.Addr().Unmap()
	return client.Port() != 0 && a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && a != broadcast4
}

var broadcast4 = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// sameEnd reports whether two ends have the same address and port. The device of a
// link-local one is that of the socket, with or without its name.
func sameEnd(a, b netip.AddrPort) bool {
	return a.Port() == b.Port() && a.Addr().Unmap().WithZone("") == b.Addr().Unmap().WithZone("")
}

// localAddr is the local address of a socket.
func localAddr(fd int) netip.AddrPort { return socketAddr(fd, unix.SYS_GETSOCKNAME) }

// peerAddr returns the address of a socket's peer.
func peerAddr(fd int) netip.AddrPort { return socketAddr(fd, unix.SYS_GETPEERNAME) }

func socketAddr(fd int, call uintptr) netip.AddrPort {
	var any unix.RawSockaddrAny
	size := uint32(unix.SizeofSockaddrAny)
	_, _, errno := unix.RawSyscall(call, uintptr(fd),
		uintptr(unsafe.Pointer(&any)), uintptr(unsafe.Pointer(&size)))
	if errno != 0 {
		return netip.AddrPort{}
	}
	return fromSockaddr(&any)
}

// outOfResources reports whether the system lacks a descriptor, buffer or
// memory for one more socket.
func outOfResources(errno unix.Errno) bool {
	switch errno {
	case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
		return true
	}
	return false
}

func epollAdd(epfd, fd int, ev *unix.EpollEvent) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epfd), unix.EPOLL_CTL_ADD, uintptr(fd),
		uintptr(unsafe.Pointer(ev)), 0, 0)
	return errno
}

func epollDel(epfd, fd int) {
	_, _, _ = unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epfd), unix.EPOLL_CTL_DEL, uintptr(fd), 0, 0, 0)
}
