package tcpinfo

import (
	"net/netip"
	"slices"
)

// Overlap reports whether two listening addresses take the same connections. A wildcard of IPv6 counts as one
// of both families.
func Overlap(a, b netip.AddrPort) bool {
	a, b = plainAddress(a), plainAddress(b)
	covers := func(a, b netip.Addr) bool { return a.IsUnspecified() && (a.Is6() || b.Is4()) }
	return a.Port() == b.Port() && (a == b || covers(a.Addr(), b.Addr()) || covers(b.Addr(), a.Addr()))
}

// OtherListener reports whether a socket listens at an address that overlaps another, beside those at some
// addresses. It knows of no socket of the other family, and of none where the kernel has no list.
func OtherListener(at netip.AddrPort, beside ...netip.AddrPort) (found bool) {
	d, err := OpenDiag()
	if err != nil {
		return false
	}
	defer d.Close()
	at = plainAddress(at)
	_ = d.Listeners(func(local netip.AddrPort) {
		same := func(a netip.AddrPort) bool { return plainAddress(a) == local }
		found = found || local.Addr().Is4() == at.Addr().Is4() && Overlap(at, local) && !slices.ContainsFunc(beside, same)
	})
	return found
}
