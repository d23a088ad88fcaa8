package relay

import (
	"net/netip"

	"longhaul/internal/sys/tcpinfo"
)

// outgoingOn returns a connection that has the port of an address on which nothing listens. The
// kernel gave the port to it, or its program chose it.
func outgoingOn(addr netip.AddrPort) (found tcpinfo.Connection, held bool) {
	diag, err := tcpinfo.OpenDiag()
	if err != nil {
		return found, false
	}
	defer diag.Close()
	clashes := func(local netip.AddrPort) bool {
		a, b := addr.Addr().Unmap().WithZone(""), local.Addr()
		return local.Port() == addr.Port() && (a == b || a.IsUnspecified() || b.IsUnspecified())
	}
	listens := false
	if err := diag.Listeners(func(local netip.AddrPort) { listens = listens || clashes(local) }); err != nil || listens {
		return found, false
	}
	err = diag.Each(tcpinfo.Connections, func(c *tcpinfo.Connection) {
		if !held && clashes(c.Local) {
			found, held = *c, true
		}
	})
	return found, held && err == nil
}
