package relay

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// leadsBack says whether a flow's own tunnel listens at an address. A flow that
// connected there would be its own successor, and that one the next's, until
// descriptors end. It is asked before the connect: afterwards the successor is
// there. A loop through other tunnels or relays is found by the check.
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

// isOwn says whether the flow's tunnel has a listener that is configured so.
func (w *worker) isOwn(f *flow, at netip.AddrPort) bool {
	l := w.relay.table.Load().listeners[listenKey{addr: at}]
	if l == nil {
		return false
	}
	rt := l.route.Load()
	return rt != nil && rt.tunnel.Name == f.route.tunnel.Name
}

const (
	localKept = int64(5e9) // ns for which it is remembered whether an address is this host's
	localMost = 256        // addresses
)

// locality is whether an address is this host's, as found not long ago.
type locality struct {
	local bool
	until int64
}

// isLocal says whether an address is one of this host's: the kernel then takes
// the same one to reach it from. No packet is sent.
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
	if w.local == nil || len(w.local) >= localMost {
		w.local = map[netip.Addr]locality{}
	}
	w.local[a] = locality{local, w.now + localKept}
	return local
}
