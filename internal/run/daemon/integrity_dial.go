package daemon

import (
	"context"
	"net"
	"net/netip"
	"syscall"

	"longhaul/internal/carry/integrity"
	"longhaul/internal/carry/proxyproto"
	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/carry/relay/names"
	"longhaul/internal/sys/eyeballs"
	"longhaul/internal/sys/halfopen"
)

// dial connects to a hop as a flow of the tunnel would: with the same socket
// options, and racing for its addresses. It returns the address that answered,
// or that it tried last.
func (t *tunnelIntegrity) dial(ctx context.Context, hop hops.Target) (integrity.Conn, netip.AddrPort, error) {
	var addrs []netip.Addr
	if a, err := netip.ParseAddr(hop.Host); err == nil {
		addrs = []netip.Addr{a.Unmap()}
	} else if addrs, err = names.Lookup(ctx, net.DefaultResolver, hop.Host); err != nil {
		return nil, netip.AddrPort{}, err
	}
	all := make([]netip.AddrPort, len(addrs))
	for i, a := range addrs {
		all[i] = netip.AddrPortFrom(a, hop.Port)
	}
	var none *eyeballs.Host // a check asks every time
	conn, to, err := eyeballs.Dial(ctx, none, none.Order(nil, all, 0), t.dialAddress, func(c *net.TCPConn) { c.Close() })
	if err != nil {
		return nil, to, err
	}
	complete(conn)
	if preamble := integrityPreamble(t.proxyOut); len(preamble) > 0 {
		if _, err := conn.Write(preamble); err != nil {
			conn.Close()
			return nil, to, err
		}
	}
	return conn, to, nil
}

// dialOne connects to an address.
func (t *tunnelIntegrity) dialOne(ctx context.Context, to netip.AddrPort) (integrity.Conn, error) {
	conn, err := t.dialAddress(ctx, to)
	if err != nil {
		return nil, err
	}
	complete(conn)
	return conn, nil
}

// complete completes the handshake of a connection that dialAddress has made.
func complete(conn *net.TCPConn) {
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { halfopen.Complete(int(fd)) })
	}
}

// dialAddress connects to an address, and leaves the handshake's ACK out: the connection may lose
// a race.
func (t *tunnelIntegrity) dialAddress(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	dialer := net.Dialer{KeepAlive: -1}
	dialer.SetMultipathTCP(false)
	dialer.Control = func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			if t.transport != nil {
				_ = t.transport.Prepare(int(fd), true) // the tunnel's flows tell what cannot be had
			}
			_ = halfopen.Hold(int(fd)) // until the race is decided
		})
	}
	dialed, err := dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	conn := dialed.(*net.TCPConn)
	if t.transport != nil {
		if raw, err := conn.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { t.transport.Established(int(fd), true) })
		}
	}
	return conn, nil
}

// integrityPreamble returns the PROXY header that a hop expects first. It says
// that the relay itself connects, for no client.
func integrityPreamble(version relay.ProxyVersion) []byte {
	if version == relay.ProxyNone {
		return nil
	}
	return proxyproto.AppendHeader(nil, int(version), proxyproto.Header{})
}
