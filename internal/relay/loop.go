package relay

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// leadsBack reports whether the flow's own tunnel listens at an address. Such a
// flow would connect to its own tunnel again and again until descriptors run
// out. The check comes before the connect, which would already begin the next
// flow. Integrity checks find loops through other tunnels or relays.
func (w *worker) leadsBack(f *flow, to netip.AddrPort) bool {
	if w.isOwn(f, to) {
		return true
	}
	any4 := to.Addr().Is4() && w.isOwn(f, netip.AddrPortFrom(netip.IPv4Unspecified(), to.Port()))
	if !any4 && !w.isOwn(f, netip.AddrPortFrom(netip.IPv6Unspecified(), to.Port())) {
		return false
	}
	return w.isLocal(to.Addr())
}

// isOwn reports whether the flow's tunnel has a listener with this configured
// address.
func (w *worker) isOwn(f *flow, at netip.AddrPort) bool {
	l := w.relay.table.Load().listeners[listenKey{addr: at}]
	if l == nil {
		return false
	}
	rt := l.route.Load()
	return rt != nil && rt.tunnel.Name == f.route.tunnel.Name
}

const (
	localTTL = 5 * time.Second // that a locality is cached
	maxLocal = 256             // cached addresses
)

// locality caches whether an address belongs to this host.
type locality struct {
	local bool
	until time.Duration
}

// isLocal reports whether an address belongs to this host: the kernel then
// chooses the same address as the source. It sends no packet.
func (w *worker) isLocal(a netip.Addr) bool {
	if a.IsLoopback() || a.IsUnspecified() {
		return true
	}
	if known, ok := w.local[a]; ok && w.now < known.until {
		return known.local
	}
	local := false
	as := family(a)
	if fd, err := unix.Socket(as, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
		sa := toSockaddr(netip.AddrPortFrom(a, 9), as)
		local = connect(fd, &sa) == 0 && localAddr(fd).Addr() == a
		closeFD(fd)
	}
	if w.local == nil || len(w.local) >= maxLocal {
		w.local = map[netip.Addr]locality{}
	}
	w.local[a] = locality{local, w.now + localTTL}
	return local
}
