package relay

import (
	"net/netip"
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
	return w.isLocal(to)
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

// isLocal reports whether an address belongs to this host. It sends no packet.
func (w *worker) isLocal(to netip.AddrPort) bool {
	if a := to.Addr(); a.IsLoopback() || a.IsUnspecified() {
		return true
	}
	local, err := w.fib.isOwn(query{to: to})
	return err == nil && local
}
