package relay

import (
	"context"
	"net/netip"
	"testing"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/carry/relay/names"
	"longhaul/test/nettest"
)

// TestLoop: a tunnel that leads to itself ends its first flow, for every form
// of its address. At 1818be3 each flow made the next one until descriptors ran
// out.
func TestLoop(t *testing.T) {
	nettest.CheckLeaks(t)
	for _, test := range []struct{ name, listen, forward string }{
		{"the address", "127.0.0.1", "127.0.0.1"},
		{"the address, IPv6", "::1", "::1"},
		{"a name", "127.0.0.1", "self.example"},
		{"any address", "0.0.0.0", "127.0.0.1"},
		{"any address of both families", "::", "127.0.0.1"},
		{"another address of this host", "0.0.0.0", "127.0.0.9"},
	} {
		t.Run(test.name, func(t *testing.T) {
			at := netip.MustParseAddr(test.listen)
			client := at
			if at.IsUnspecified() {
				client = loopback
			}
			port := netip.MustParseAddrPort(nettest.FreeAddress(t, client.String())).Port()
			g := newRig(t, func(o *rigOptions) {
				o.Tunnels[0].Listen = []netip.AddrPort{netip.AddrPortFrom(at, port)}
				o.Tunnels[0].Forward = []hops.Target{{Host: test.forward, Port: port}}
				o.Resolve = func(context.Context, string) (names.Answer, error) {
					return names.Answer{Addrs: []netip.Addr{loopback}}, nil
				}
			})
			expectResetOf(t, netip.AddrPortFrom(client, port))
			g.expectReason(report.EndLoop)
			if n := g.relay.Snapshot().Tunnels[0].FlowsTotal; n != 1 {
				t.Errorf("%d flows, want 1", n)
			}
		})
	}
}

// TestNoLoop: the same port of another host, or of another tunnel, is an
// ordinary target.
func TestNoLoop(t *testing.T) {
	nettest.CheckLeaks(t)
	target := listen(t)
	port := addrOf(target).Port()
	other := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.7"), port)
	g := newRig(t, func(o *rigOptions) {
		o.Tunnels[0].Listen = []netip.AddrPort{other}
		o.Tunnels[0].Forward = []hops.Target{targetOf(target)}
		o.Tunnels = append(o.Tunnels, Tunnel{Name: "first", Listen: []netip.AddrPort{freePort}, Forward: []hops.Target{{Host: "127.0.0.7", Port: port}}})
	})
	g.target, g.addr = target, g.relay.Snapshot().Tunnels[1].Listen[0]
	c, s := g.pair()
	write(t, c, []byte("through both"))
	expect(t, s, []byte("through both"))
}
