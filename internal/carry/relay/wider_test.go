package relay

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/relay/hops"
	"longhaul/test/nettest"
)

// TestListenWider holds that a change gives a tunnel a listening address that overlaps the one that it leaves,
// that no client is refused meanwhile, and that the port is shared with nobody before and after.
func TestListenWider(t *testing.T) {
	nettest.CheckLeaks(t)
	g := fixed(t)
	port := g.addr.Port()
	everywhere := netip.AddrPortFrom(netip.IPv4Unspecified(), port)
	tunnel := func(at netip.AddrPort) []Tunnel {
		return []Tunnel{{Name: "t", Listen: []netip.AddrPort{at}, Forward: []hops.Target{targetOf(g.target)}}}
	}
	served := func(at netip.AddrPort) {
		t.Helper()
		c := dial(t, at)
		s := g.accept()
		write(t, c, []byte("x"))
		expect(t, s, []byte("x"))
		c.Close()
		s.Close()
	}
	alone := func() {
		t.Helper()
		for _, l := range g.relay.table.Load().listeners {
			if on, err := unix.GetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT); err != nil || on != 0 {
				t.Errorf("the port of %s is shared: %v", l.key.addr, err)
			}
		}
	}
	c, err := g.relay.Prepare(tunnel(everywhere))
	nettest.Must(t, err)
	served(g.addr)
	alone()
	c.Abort()
	served(g.addr)
	for _, at := range []netip.AddrPort{everywhere, netip.AddrPortFrom(netip.IPv6Unspecified(), port), g.addr, everywhere, g.addr} {
		nettest.Must(t, setTunnels(g.relay, tunnel(at)))
		served(g.addr)
		alone()
	}
	other := nettest.ListenTCP(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.9"), port).String())
	defer other.Close()
	if err := setTunnels(g.relay, tunnel(everywhere)); err == nil {
		t.Error("a tunnel listens where another program does")
	}
	served(g.addr)
	alone()
}
