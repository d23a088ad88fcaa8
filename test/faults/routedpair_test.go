package faults

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"longhaul/lab/hosts"
	"longhaul/lab/linktest"
	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// routedPair is two sites, each behind a router with a relay. Clients and targets know
// nothing of them:
//
//	client A ══left══ near router R ══wan══ far router F ══right══ target B
//
// The pair's own connections go from R to F.
type routedPair struct {
	*routed // with the near relay
	pairOf  *pairOf
	F       *hosts.Host
}

// The routers' addresses on the WAN.
var (
	routedNear = []string{"10.9.9.1/24", "fd09:9::1/64"}
	routedFar  = []string{"10.9.9.2/24", "fd09:9::2/64"}
)

func newRoutedPair(t *testing.T) *routedPair {
	t.Helper()
	nettest.RequireSandbox(t)
	host := func(name string) *hosts.Host {
		h, err := hosts.New(name)
		nettest.Must(t, err)
		t.Cleanup(h.Close)
		return h
	}
	p := &routedPair{routed: &routed{Row: linktest.Row{A: host("a"), R: host("r"), B: host("b")}, t: t}, F: host("f")}
	nettest.Must(t, hosts.Cable(p.A, "eth0", p.R, "left", 1500))
	nettest.Must(t, hosts.Cable(p.R, "wan", p.F, "wan", 1500))
	nettest.Must(t, hosts.Cable(p.F, "right", p.B, "eth0", 1500))
	for _, end := range []struct {
		host      *hosts.Host
		device    string
		addresses []string
		to        []string // by the gateway at the same index
		gateways  []string
	}{
		{p.A, "eth0", []string{"10.9.1.2/24", "fd09:1::2/64"}, []string{"0.0.0.0/0", "::/0"}, []string{"10.9.1.1", "fd09:1::1"}},
		{p.R, "left", []string{"10.9.1.1/24", "fd09:1::1/64"}, nil, nil},
		{p.R, "wan", routedNear, []string{"10.9.2.0/24", "fd09:2::/64"}, []string{"10.9.9.2", "fd09:9::2"}},
		{p.F, "wan", routedFar, []string{"10.9.1.0/24", "fd09:1::/64"}, []string{"10.9.9.1", "fd09:9::1"}},
		{p.F, "right", []string{"10.9.2.1/24", "fd09:2::1/64"}, nil, nil},
		{p.B, "eth0", []string{"10.9.2.2/24", "fd09:2::2/64"}, []string{"0.0.0.0/0", "::/0"}, []string{"10.9.2.1", "fd09:2::1"}},
	} {
		for _, address := range end.addresses {
			nettest.Must(t, end.host.Address(end.device, netip.MustParsePrefix(address)))
		}
		for i, to := range end.to {
			nettest.Must(t, end.host.Route(hosts.Route{To: netip.MustParsePrefix(to), Via: netip.MustParseAddr(end.gateways[i])}))
		}
	}
	for _, router := range []*hosts.Host{p.R, p.F} {
		nettest.Must(t, router.Sysctl("net.ipv4.ip_forward", "1"))
		nettest.Must(t, router.Sysctl("net.ipv6.conf.all.forwarding", "1"))
		nettest.Must(t, router.Sysctl("net.ipv4.conf.all.rp_filter", "1"))
		nettest.Must(t, router.Sysctl("net.ipv4.conf.wan.rp_filter", "1"))
	}
	p.pairOf = &pairOf{t: t}
	p.pairOf.pairKeys()
	return p
}

// onFar is the far router in place of the near one, for commands and rules.
func (p *routedPair) onFar() *routed {
	return &routed{Row: linktest.Row{A: p.A, R: p.F, B: p.B}, t: p.t}
}

// start starts both relays and waits until the pair stands. near is what the near tunnel
// has beside its peer, such as ", encrypt: off"; far are further lines of the far tunnel.
func (p *routedPair) start(near, whenDown, far string) *routedPair {
	p.t.Helper()
	p.startFar(far)
	p.startNear(near, whenDown)
	p.pairOf.expectUp()
	return p
}

func (p *routedPair) startFar(more string) {
	p.t.Helper()
	p.pairOf.far = startDaemon(p.t, p.F, unsupervised, p.farConfig(more))
}

func (p *routedPair) farConfig(more string) string {
	return fmt.Sprintf(`control_socket: SOCKET
pair_keys: %s
workers: 1
%stunnels:
  - name: from-near
    listen: ":6000"
    original: {from: [10.9.1.0/24, "fd09:1::/64"], to: [10.9.2.0/24, "fd09:2::/64"], ports: %d}
%s
`, p.pairOf.farKeys, p.pairOf.moreFar, routedPort, more)
}

func (p *routedPair) startNear(more, whenDown string) {
	p.t.Helper()
	p.relay = startDaemon(p.t, p.R, unsupervised, p.nearConfig(more, whenDown))
	p.pairOf.near = p.relay
}

func (p *routedPair) nearConfig(more, whenDown string) string {
	p.before = fmt.Sprintf("pair_keys: %s\n%s", p.pairOf.nearKeys, p.pairOf.moreNear)
	return p.config(fmt.Sprintf("    forward: 10.9.9.2:6000\n    pair: {peer: far%s}\n%s", more, whenDown))
}

// cut drops everything that crosses the WAN.
func (p *routedPair) cut() {
	p.t.Helper()
	rules := filepath.Join(p.t.TempDir(), "outage")
	nettest.Must(p.t, os.WriteFile(rules, []byte(
		"table inet outage { chain arriving { type filter hook prerouting priority -400; policy accept; iifname \"wan\" drop; }; }\n"), 0o600))
	for _, router := range []*routed{p.routed, p.onFar()} {
		router.run("nft", "nftables", "-f", rules)
	}
}

// mend undoes cut.
func (p *routedPair) mend() {
	p.t.Helper()
	for _, router := range []*routed{p.routed, p.onFar()} {
		router.run("nft", "nftables", "delete", "table", "inet", "outage")
	}
}

// dialFrom connects from a host to an address and port.
func dialFrom(h *hosts.Host, to string) dialFunc {
	return func(ctx context.Context) (c net.Conn, err error) {
		err = h.Do(func() error { c, err = tcpscript.DialTo(to)(ctx); return err })
		return c, err
	}
}
