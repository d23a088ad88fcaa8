package relay

import (
	"net/netip"
	"testing"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/words/portrange"
)

// A far tunnel that dials what clients dialed is bounded, and dials nothing without bounds.
func TestNotDialable(t *testing.T) {
	bounded := Dialable{
		From:  []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd01::/64")},
		To:    []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16"), netip.MustParsePrefix("fd02::/64")},
		Ports: []portrange.Range{{First: 22, Last: 22}, {First: 5432, Last: 5440}},
	}
	everywhere := Dialable{To: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}
	for _, c := range []struct {
		name       string
		d          Dialable
		from, to   string
		dialed     bool
		fixedThere bool // the tunnel has a target of its own
		asClient   bool // the tunnel dials from the clients' addresses
	}{
		{name: "within", d: bounded, from: "10.1.0.1:4000", to: "10.2.0.1:22", dialed: true},
		{name: "a range of ports", d: bounded, from: "10.1.0.1:4000", to: "10.2.0.1:5440", dialed: true},
		{name: "IPv6", d: bounded, from: "[fd01::1]:4000", to: "[fd02::1]:22", dialed: true},
		{name: "mapped", d: bounded, from: "[::ffff:10.1.0.1]:4000", to: "[::ffff:10.2.0.1]:22", dialed: true},
		{name: "another port", d: bounded, from: "10.1.0.1:4000", to: "10.2.0.1:23"},
		{name: "another target", d: bounded, from: "10.1.0.1:4000", to: "10.3.0.1:22"},
		{name: "another client", d: bounded, from: "10.3.0.1:4000", to: "10.2.0.1:22"},
		{name: "no bounds", from: "10.1.0.1:4000", to: "10.2.0.1:22"},
		{name: "everywhere", d: everywhere, from: "10.1.0.1:4000", to: "10.2.0.1:22", dialed: true},
		{name: "loopback", d: everywhere, from: "10.1.0.1:4000", to: "127.0.0.1:22"},
		{name: "mapped loopback", d: everywhere, from: "10.1.0.1:4000", to: "[::ffff:127.0.0.1]:22"},
		{name: "link-local", d: everywhere, from: "10.1.0.1:4000", to: "169.254.169.254:80"},
		{name: "multicast", d: everywhere, from: "10.1.0.1:4000", to: "224.0.0.1:22"},
		{name: "a check", d: everywhere},
		{name: "from anybody", d: everywhere, from: "10.1.0.1:4000", to: "10.2.0.1:22", dialed: true, asClient: true},
		{name: "from nobody's address, by the relay", d: everywhere, from: "127.0.0.1:4000", to: "10.2.0.1:22", dialed: true},
		{name: "from a loopback address", d: everywhere, from: "127.0.0.1:4000", to: "10.2.0.1:22", asClient: true},
		{name: "from a mapped loopback address", d: everywhere, from: "[::ffff:127.0.0.1]:4000", to: "10.2.0.1:22", asClient: true},
		{name: "from the loopback address of IPv6", d: everywhere, from: "[::1]:4000", to: "[fd02::1]:22", asClient: true},
		{name: "from a link-local address", d: everywhere, from: "[fe80::1%1]:4000", to: "[fd02::1]:22", asClient: true},
		{name: "from a multicast address", d: everywhere, from: "224.0.0.1:4000", to: "10.2.0.1:22", asClient: true},
		{name: "from the broadcast address", d: everywhere, from: "255.255.255.255:4000", to: "10.2.0.1:22", asClient: true},
		{name: "from no address", d: everywhere, from: "0.0.0.0:4000", to: "10.2.0.1:22", asClient: true},
		{name: "from no port", d: everywhere, from: "10.1.0.1:0", to: "10.2.0.1:22", asClient: true},
		{name: "another tunnel", from: "10.3.0.1:4000", to: "127.0.0.1:22", dialed: true, fixedThere: true},
	} {
		o := report.Open{}
		if !c.fixedThere {
			o.Offset = 3 // of a range at the near relay: the client dialed the port that counts
		}
		if c.from != "" {
			o.Client, o.Listen = netip.MustParseAddrPort(c.from), netip.MustParseAddrPort(c.to)
		}
		rt := &route{tunnel: &Tunnel{Dialable: c.d, SourceClient: c.asClient}, targets: []routeTarget{{original: !c.fixedThere}}}
		refusal := rt.notDialable(o)
		if (refusal == nil) != c.dialed || refusal != nil && refusal.Reason != report.EndDenied {
			t.Errorf("%s: %v", c.name, refusal)
		}
	}
}
