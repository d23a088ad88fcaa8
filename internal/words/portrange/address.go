package portrange

import (
	"net"
	"net/netip"
)

// Addresses writes addresses. Neighbours with successive ports are one range, such as
// 10.0.0.1:6000-6010.
func Addresses(addrs []netip.AddrPort) []string {
	var texts []string
	for len(addrs) > 0 {
		first, n := addrs[0], 1
		for n < len(addrs) && addrs[n].Addr() == first.Addr() && int(addrs[n].Port()) == int(first.Port())+n {
			n++
		}
		ports := Range{first.Port(), addrs[n-1].Port()}
		texts = append(texts, net.JoinHostPort(first.Addr().String(), ports.String()))
		addrs = addrs[n:]
	}
	return texts
}
