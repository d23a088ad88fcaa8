//go:build linux

package ends

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// lane is where one script at a time runs: listening sockets for its targets,
// and addresses that refuse.
type lane struct {
	listeners [families]int
	accepts   [families]netip.AddrPort // of the listeners
	refusing  [families]int
	refuses   [families]netip.AddrPort
}

var (
	loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	mapped4   = netip.AddrFrom16(loopback4.As16())
	wildcard6 = netip.IPv6Unspecified()
	loopback6 = netip.IPv6Loopback()
)

// bindTo and dialTo are where a family's targets listen, and where its clients
// find them.
var (
	bindTo = [families]netip.Addr{loopback4, loopback6, wildcard6}
	dialTo = [families]netip.Addr{loopback4, loopback6, mapped4}
)

func newLane() (*lane, error) {
	l := &lane{}
	for f := range families {
		l.listeners[f], l.refusing[f] = -1, -1
	}
	for f := range families {
		var err error
		if l.listeners[f], l.accepts[f], err = bound(bindTo[f], true); err == nil {
			l.refusing[f], l.refuses[f], err = bound(bindTo[f], false)
		}
		if err != nil {
			l.close()
			return nil, fmt.Errorf("no place for a target on %v: %w", bindTo[f], err)
		}
	}
	return l, nil
}

func (l *lane) close() {
	for f := range families {
		for _, fd := range []int{l.listeners[f], l.refusing[f]} {
			if fd >= 0 {
				unix.Close(fd)
			}
		}
	}
}

// bound makes a socket at a free port.
func bound(at netip.Addr, listens bool) (fd int, addr netip.AddrPort, err error) {
	family := unix.AF_INET6
	if at.Is4() {
		family = unix.AF_INET
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if err != nil {
		return -1, addr, err
	}
	if family == unix.AF_INET6 {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, flag(!at.IsUnspecified()))
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(at, 0), family))
	}
	if err == nil && listens {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN, 16)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_NO_COOKIE, 1)
		err = unix.Listen(fd, 16)
	}
	var name unix.Sockaddr
	if err == nil {
		name, err = unix.Getsockname(fd)
	}
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		return fd, netip.AddrPortFrom(at, uint16(name.Port)), nil
	case *unix.SockaddrInet6:
		return fd, netip.AddrPortFrom(at, uint16(name.Port)), nil
	}
	unix.Close(fd)
	return -1, addr, errors.Join(err, errors.New("it has no address"))
}

// target is where a family's clients find the lane's target itself.
func (l *lane) target(f Family, refused bool) netip.AddrPort {
	at := l.accepts[f]
	if refused {
		at = l.refuses[f]
	}
	return netip.AddrPortFrom(dialTo[f], at.Port())
}

// empty closes connections that a script has left behind.
func (l *lane) empty() {
	for _, fd := range l.listeners {
		for {
			conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			if err != nil {
				break
			}
			unix.Close(conn)
		}
	}
}

// direct is the way without a relay.
func (l *lane) direct(s *Script) route {
	r := route{dial: l.target(s.Family, s.Refused), listener: l.listeners[s.Family], quiet: func() bool { return true }}
	if s.Refused {
		r.listener = -1
	}
	return r
}
