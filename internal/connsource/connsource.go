// Package connsource says who a connection comes from, for bounds on what one
// source may have: an IPv4 address, or an IPv6 network of 64 bits, of which one
// host may have every address.
package connsource

import (
	"net"
	"net/netip"
)

// Of returns the source of a connection, the zero Addr if it is not TCP's.
func Of(conn net.Conn) netip.Addr {
	tcp, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return OfAddr(tcp.AddrPort().Addr())
}

// OfAddr returns the source that an address belongs to. Of a network it is the
// first address, and it never has a zone.
func OfAddr(a netip.Addr) netip.Addr {
	a = a.Unmap()
	network, _ := a.Prefix(min(64, a.BitLen())) // without the zone
	return network.Addr()
}
