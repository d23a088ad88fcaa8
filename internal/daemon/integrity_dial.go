package daemon

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"time"

	"longhaul/internal/integrity"
	"longhaul/internal/proxyproto"
	"longhaul/internal/relay"
	"longhaul/internal/relay/hops"
	"longhaul/internal/units"
)

// dial connects to a hop as a flow of the tunnel would: with the same socket
// options, to the first of its addresses that accepts. It returns the address
// that it tried last.
func (t *tunnelIntegrity) dial(ctx context.Context, hop hops.Target) (integrity.Conn, netip.AddrPort, error) {
	var addrs []netip.Addr
	if a, err := netip.ParseAddr(hop.Host); err == nil {
		addrs = []netip.Addr{a.Unmap()}
	} else if addrs, err = units.LookupAddresses(ctx, net.DefaultResolver, hop.Host); err != nil {
		return nil, netip.AddrPort{}, err
	}
	var to netip.AddrPort
	var err error
	for i, a := range addrs {
		share := ctx
		cancel := func() {}
		if deadline, ok := ctx.Deadline(); ok {
			share, cancel = context.WithTimeout(ctx, time.Until(deadline)/time.Duration(len(addrs)-i))
		}
		to = netip.AddrPortFrom(a, hop.Port)
		var conn integrity.Conn
		conn, err = t.dialAddress(share, to)
		cancel()
		if err == nil {
			return conn, to, nil
		}
	}
	return nil, to, err
}

func (t *tunnelIntegrity) dialAddress(ctx context.Context, to netip.AddrPort) (integrity.Conn, error) {
	dialer := net.Dialer{KeepAlive: -1}
	dialer.SetMultipathTCP(false)
	if t.transport != nil {
		dialer.Control = func(_, _ string, c syscall.RawConn) error {
			// What cannot be had is told by the tunnel's flows.
			return c.Control(func(fd uintptr) { _ = t.transport.Prepare(int(fd), true) })
		}
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
	if preamble := integrityPreamble(t.proxyOut); len(preamble) > 0 {
		if _, err := conn.Write(preamble); err != nil {
			conn.Close()
			return nil, err
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
