package flow

import (
	"fmt"
	"net"
	"net/netip"
)

// PortRanges writes addresses. Neighbours with successive ports are one range, such as
// 10.0.0.1:6000-6010.
func PortRanges(addrs []netip.AddrPort) []string {
	var texts []string
	for len(addrs) > 0 {
		first, n := addrs[0], 1
		for n < len(addrs) && addrs[n].Addr() == first.Addr() && int(addrs[n].Port()) == int(first.Port())+n {
			n++
		}
		ports := fmt.Sprint(first.Port())
		if n > 1 {
			ports += fmt.Sprintf("-%d", addrs[n-1].Port())
		}
		texts = append(texts, net.JoinHostPort(first.Addr().String(), ports))
		addrs = addrs[n:]
	}
	return texts
}
