// Package connsource identifies the source of a connection, for bounds per
// source. A source is an IPv4 address, or an IPv6 network of 64 bits, since one
// host may have every address in it.
package connsource

import (
	"net"
	"net/netip"
)

// Of returns the source of a connection; the zero Addr if it is not a TCP
// connection.
func Of(conn net.Conn) netip.Addr {
	tcp, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return OfAddr(tcp.AddrPort().Addr())
}

// OfAddr returns the source of an address: the address itself, or the first
// address of its network, without a zone.
func OfAddr(a netip.Addr) netip.Addr {
	a = a.Unmap()
	network, _ := a.Prefix(min(64, a.BitLen())) // without the zone
	return network.Addr()
}
