package relay

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/sys/descriptor"
	"longhaul/internal/sys/eyeballs"
	"longhaul/internal/sys/socket"
	"longhaul/internal/sys/tcpinfo"
)

const listenBacklog = 4096 // the kernel uses the smaller of this and net.core.somaxconn

// listener is one listening socket. Every worker has it in its epoll set.
type listener struct {
	id    int32
	fd    int
	key   listenKey
	bound netip.AddrPort
	route atomic.Pointer[route] // for new flows; a reload replaces it

	silent    bool // bound, but not listening: its tunnel is drained
	inherited bool // another process has the socket
	unbound   bool // the interface that the address names is absent: the socket has no address

	leave []*listener // the socket has no address until these have left, since theirs overlap: see takePlaces
	lost  bool        // silent, since a change that failed could not listen again: LookAtListeners tries

	scope  uint32                    // of bound: the index of the interface that the address names
	absent atomic.Pointer[string]    // why this host does not have the address; nil: it has it
	since  atomic.Pointer[time.Time] // of absent
	told   string                    // of absent, to the caller of LookAtListeners

	settling atomic.Bool // new SYNs are dropped, see settle

	// early is an upper bound of the queued connections that were established
	// before the listener was prepared. They inherited no options from it.
	early atomic.Int32
}

// listenKey identifies a listener across reloads by its configured address. The
// ordinal distinguishes several entries with port 0, and the tunnel transparent
// ones.
type listenKey struct {
	addr    netip.AddrPort
	ordinal int
	tunnel  string // empty: the listener is not transparent
}

// route is the configuration of a listener's tunnel at the time a flow was
// accepted.
type route struct {
	tunnel  *Tunnel
	state   *tunnelState
	listen  netip.AddrPort
	offset  uint16        // of the port in the tunnel's range
	targets []routeTarget // by index of hops
	hops    *hops.Set
}

type routeTarget struct {
	original  bool // the address that the client dialed
	host      string
	literal   netip.AddrPort // the host, if it is an address
	port      uint16
	addresses *eyeballs.Host // of the host, if it is a name
}

// newRoute maps the listening port to each target. A port that is offset above
// the tunnel's lowest maps to offset above the target's port.
func (r *Relay) newRoute(t *Tunnel, st *tunnelState, set *hops.Set, bound netip.AddrPort, offset uint16) *route {
	rt := &route{tunnel: t, state: st, listen: bound, offset: offset, hops: set}
	for _, f := range t.Forward {
		rtt := routeTarget{original: f.Original, host: f.Host, port: f.Port + offset}
		if a, err := netip.ParseAddr(f.Host); err == nil {
			rtt.literal = netip.AddrPortFrom(a.Unmap(), rtt.port)
		} else if !f.Original {
			rtt.addresses = r.addresses.of(f.Host, rtt.port)
		}
		rt.targets = append(rt.targets, rtt)
	}
	return rt
}

// openListener binds and listens. It sets IPV6_V6ONLY for every IPv6 address
// except "::". A listener on "::" accepts IPv4 connections unless v6only is
// set, because an IPv4 wildcard has the same port. If only the addresses of some that leave keep it from
// listening, the commit does that, see takePlaces.
func openListener(key listenKey, v6only bool, tr Transport, leave ...*listener) (*listener, error) {
	as := family(key.addr.Addr())
	fd, errno := newSocket(as)
	if errno != 0 {
		return nil, listenError(key.addr, errno)
	}
	l := &listener{fd: fd, key: key}
	setsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if key.tunnel != "" {
		if errno := setTransparent(fd, as); errno != 0 {
			closeFD(fd)
			return nil, transparentError(key.tunnel, errno)
		}
	}
	if as == unix.AF_INET6 {
		only := int32(1)
		if key.addr.Addr().IsUnspecified() && !v6only {
			only = 0
		}
		setsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only)
	}
	if err := l.prepare(tr); err != nil {
		closeFD(fd)
		return nil, err
	}
	if key.waits() {
		why, known := key.absence()
		if zone := key.addr.Addr().Zone(); zone != "" {
			if !known { // it cannot be bound to an interface that nobody can ask for
				closeFD(fd)
				return nil, listenError(key.addr, unix.EMFILE)
			}
			if l.unbound = scopeOf(zone) == 0; l.unbound && why == nil {
				text := noInterface(zone) // it has gone just now
				why = &text
			}
		}
		l.absent.Store(why)
		if l.unbound {
			l.bound = key.addr
			return l, nil
		}
		// So the socket is there before the address, and takes the first connection to it.
		setFreebind(fd, as)
	}
	if errno = l.bindAndListen(as); errno == unix.EADDRINUSE && l.yields(leave) {
		l.bound = key.addr
		return l, nil
	}
	if errno != 0 {
		closeFD(fd)
		return nil, listenError(key.addr, errno)
	}
	l.know()
	return l, nil
}

// yields reports whether those that leave are all that listens where the listener is to, and notes them.
func (l *listener) yields(leave []*listener) bool {
	var at []netip.AddrPort
	for _, other := range leave {
		if tcpinfo.Overlap(l.key.addr, other.bound) {
			l.leave, at = append(l.leave, other), append(at, other.bound)
		}
	}
	return len(at) > 0 && !tcpinfo.OtherListener(l.key.addr, at...)
}

// bindAndListen gives the socket its configured address.
func (l *listener) bindAndListen(as int) (errno unix.Errno) {
	sa := toSockaddr(l.key.addr, as)
	if errno = bind(l.fd, &sa); errno != 0 {
		return errno
	}
	if err := unix.Listen(l.fd, listenBacklog); err != nil && !errors.As(err, &errno) {
		errno = unix.EINVAL
	}
	return errno
}

// know reads the address that the socket has. The interface is named as configured.
func (l *listener) know() {
	l.bound = localAddr(l.fd)
	if zone := l.bound.Addr().Zone(); zone != "" {
		l.scope = scopeOf(zone)
		if named := l.key.addr.Addr().Zone(); named != "" {
			l.bound = netip.AddrPortFrom(l.bound.Addr().WithZone(named), l.bound.Port())
		}
	}
}

// prepare sets the options that accepted sockets inherit.
func (l *listener) prepare(tr Transport) error {
	if l.key.tunnel != "" {
		setsockoptInt(l.fd, unix.IPPROTO_TCP, unix.TCP_SAVE_SYN, 1) // see noticeRelayed
	}
	if err := prepareSocket(l.fd, tr); err != nil {
		return fmt.Errorf("set up the listener on %s: %w", l.key.addr, err)
	}
	return nil
}

// takeUp prepares a listener that another process has bound. Clients may
// already wait in its queue; with socket activation, one always does.
func (l *listener) takeUp(tr Transport) error {
	if err := l.prepare(tr); err != nil {
		return err
	}
	if waiting, _, err := tcpinfo.AcceptQueue(l.fd); err == nil { // an error means that it does not listen
		l.early.Store(int32(waiting))
	}
	return nil
}

// prepareSocket sets the options of every accepted connection, on its listener
// or on the connection itself.
func prepareSocket(fd int, tr Transport) error {
	setLinger(fd, true)
	socket.KeepUrgentInLine(fd)
	setsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	if tr == nil {
		return nil
	}
	return tr.Prepare(fd, false)
}

// inherit takes over a listening socket that another process has bound.
func inherit(f *os.File) (*listener, error) {
	fd, err := descriptor.Duplicate(f)
	if err != nil {
		return nil, fmt.Errorf("take over socket %s: %w", f.Name(), err)
	}
	l := &listener{fd: fd, inherited: true}
	l.know()
	l.key.addr = l.bound
	err = unix.SetNonblock(fd, true)
	// A socket that no longer listens comes from a process that was killed
	// after it had drained the tunnel. A connected socket never listened.
	l.silent = !listens(fd)
	if _, connected := unix.Getpeername(fd); err == nil && (l.bound.Port() == 0 || l.silent && connected == nil) {
		err = errors.New("it is not a listening TCP socket; check the socket unit")
	}
	if err != nil {
		closeFD(fd)
		return nil, fmt.Errorf("take over socket %s: %w", f.Name(), err)
	}
	return l, nil
}

// transparentError adds the tunnel and a remedy to an error of a transparent socket.
func transparentError(tunnel string, errno unix.Errno) error {
	remedy := ""
	switch errno {
	case unix.EPERM:
		remedy = "; run as root, or give the process CAP_NET_ADMIN (longhaul service install does)"
	case unix.ENOPROTOOPT:
		remedy = "; this kernel has no transparent sockets (CONFIG_NETFILTER_XT_TARGET_TPROXY or CONFIG_NFT_TPROXY)"
	}
	return fmt.Errorf("tunnel %s: make a transparent listener: %w%s", tunnel, errno, remedy)
}

// listenError adds the address and a remedy to an error of bind or listen.
func listenError(addr netip.AddrPort, errno unix.Errno) error {
	remedy := ""
	switch errno {
	case unix.EADDRINUSE:
		remedy = "; stop what listens there (ss -ltnp shows it) or choose another port"
		if c, held := outgoingOn(addr); held {
			return fmt.Errorf("listen on %s: %w: nothing listens there, but a connection from %s to %s has the port; "+
				"end it (ss -tnp sport = :%d shows whose it is), and keep the kernel from giving the port out: "+
				"sysctl -w net.ipv4.ip_local_reserved_ports=%[5]d, beside those that it lists; or choose another port",
				addr, errno, c.Local, c.Remote, addr.Port())
		}
	case unix.EADDRNOTAVAIL:
		remedy = "; give this machine the address first (ip addr shows what it has) or listen on another"
	case unix.EACCES:
		remedy = "; ports below net.ipv4.ip_unprivileged_port_start need CAP_NET_BIND_SERVICE or a systemd socket unit"
	case unix.EAFNOSUPPORT:
		remedy = "; IPv6 is switched off on this machine, listen on an IPv4 address"
	}
	return fmt.Errorf("listen on %s: %w%s", addr, errno, remedy)
}
