//go:build linux

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// lane is where one script at a time runs: listening sockets for its targets,
// and addresses that refuse.
type lane struct {
	at        place
	listeners [families]int
	accepts   [families]netip.AddrPort // of the listeners
	refusing  [families]int
	refuses   [families]netip.AddrPort
}

// place is where a family's targets listen, and where its clients find them.
type place struct{ bind, dial [families]netip.Addr }

// placeOf is a host with these addresses.
func placeOf(v4, v6 netip.Addr) place {
	return place{
		bind: [families]netip.Addr{v4, v6, netip.IPv6Unspecified()},
		dial: [families]netip.Addr{v4, v6, netip.AddrFrom16(v4.As16())},
	}
}

var (
	onLoopback = placeOf(netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback())
	bindTo     = onLoopback.bind
	dialTo     = onLoopback.dial
)

func newLane(at place) (*lane, error) {
	l := &lane{at: at}
	for f := range families {
		l.listeners[f], l.refusing[f] = -1, -1
	}
	for f := range families {
		var err error
		if l.listeners[f], l.accepts[f], err = bound(at.bind[f], true); err == nil {
			l.refusing[f], l.refuses[f], err = bound(at.bind[f], false)
		}
		if err != nil {
			l.close()
			return nil, fmt.Errorf("no place for a target on %v: %w", at.bind[f], err)
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
	if port := addrPort(name).Port(); port > 0 {
		return fd, netip.AddrPortFrom(at, port), nil
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
	return netip.AddrPortFrom(l.at.dial[f], at.Port())
}

// ports are those of all families, each once.
func (l *lane) ports() (all []uint16) {
	for f := range families {
		for _, refused := range []bool{false, true} {
			all = append(all, l.target(f, refused).Port())
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
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
