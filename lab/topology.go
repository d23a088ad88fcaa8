// Package lab builds sites and WANs on one machine, with the kernel's own TCP
// at every end. Its experiments have folders of their own below.
package lab

import (
	"fmt"
	"net/netip"
	"slices"

	"longhaul/lab/hosts"
	"longhaul/lab/link"
)

// Topology describes a lab.
type Topology struct {
	Hosts  []HostSpec
	Cables []Cable
	Links  []LinkSpec
}

// HostSpec describes a host.
type HostSpec struct {
	Name    string
	Address netip.Addr // the address of the host's name
	Sysctls []Sysctl
	Routes  []hosts.Route
	TCP     hosts.Metrics // of every route of the host, including connected ones
}

// Sysctl is a kernel setting of one host.
type Sysctl struct{ Name, Value string }

// Endpoint is a device of a host.
type Endpoint struct {
	Host      string
	Device    string
	Addresses []netip.Prefix
}

// Cable is an Ethernet between two hosts, without delay or loss.
type Cable struct {
	A, B Endpoint
	MTU  int
}

// LinkSpec is an emulated link between two hosts.
type LinkSpec struct {
	Name   string
	A, B   Endpoint
	AB, BA link.Settings
}

// The addresses of the two sites. The first four are those of the mitre report.
var (
	HostA  = netip.MustParseAddr("10.10.10.10")
	RelayA = netip.MustParseAddr("10.10.10.20")
	HostB  = netip.MustParseAddr("10.20.20.10")
	RelayB = netip.MustParseAddr("10.20.20.20")

	HostA6  = netip.MustParseAddr("fd00:10::10")
	RelayA6 = netip.MustParseAddr("fd00:10::20")
	HostB6  = netip.MustParseAddr("fd00:20::10")
	RelayB6 = netip.MustParseAddr("fd00:20::20")

	// Of the second relay at site B, if any.
	RelayB2   = netip.MustParseAddr("10.20.21.20")
	HostBOnB2 = netip.MustParseAddr("10.20.21.10") // host-b, as relay-b2 reaches it
	WANA2     = netip.MustParseAddr("10.30.31.1")
	WANB2     = netip.MustParseAddr("10.30.31.2")

	WANA  = netip.MustParseAddr("10.30.30.1")
	WANB  = netip.MustParseAddr("10.30.30.2")
	wanA6 = netip.MustParseAddr("fd00:30::1")
	wanB6 = netip.MustParseAddr("fd00:30::2")

	siteA  = netip.MustParsePrefix("10.10.10.0/24")
	siteB  = netip.MustParsePrefix("10.20.20.0/24")
	siteA6 = netip.MustParsePrefix("fd00:10::/64")
	siteB6 = netip.MustParsePrefix("fd00:20::/64")

	// SiteB has the prefixes of site B.
	SiteB = []netip.Prefix{siteB, siteB6}
)

// WAN is the name of the link between the two sites. WAN2 is the name of the second one, if any:
// to the second relay at site B, between the same relays, or from a hub to site B.
const (
	WAN  = "wan"
	WAN2 = "wan2"
)

// Hub is the host between the sites of ViaHub.
const Hub = "hub"

// ClassicWindowBytes is the window of the mitre report's end hosts: 256 KiB. At 63 ms
// that allows little more than the report's 3.6 MB/s (28.8 Mb/s).
const ClassicWindowBytes = 256 << 10

// TwoSites returns the topology of the mitre report: at each site an end host and a
// relay, which is also the site's router, and a WAN between the relays.
//
//	host-a ──LAN── relay-a ══WAN══ relay-b ──LAN── host-b
func TwoSites(c Conditions) Topology {
	ab, ba := c.Directions()
	lanMTU := c.LANMTU
	if lanMTU == 0 {
		lanMTU = 1500
	}
	t := Topology{
		Hosts: []HostSpec{
			{Name: "host-a", Address: HostA, Sysctls: stockLinux, Routes: []hosts.Route{
				{To: netip.MustParsePrefix("0.0.0.0/0"), Via: RelayA},
				{To: netip.MustParsePrefix("::/0"), Via: RelayA6},
			}},
			{Name: "relay-a", Address: RelayA, Sysctls: router, Routes: []hosts.Route{
				{To: siteB, Via: WANB},
				{To: siteB6, Via: wanB6},
			}},
			{Name: "relay-b", Address: RelayB, Sysctls: router, Routes: []hosts.Route{
				{To: siteA, Via: WANA},
				{To: siteA6, Via: wanA6},
			}},
			{Name: "host-b", Address: HostB, Sysctls: stockLinux, Routes: []hosts.Route{
				{To: netip.MustParsePrefix("0.0.0.0/0"), Via: RelayB},
				{To: netip.MustParsePrefix("::/0"), Via: RelayB6},
			}},
		},
		Cables: []Cable{
			{MTU: lanMTU, A: endpoint("host-a", "lan", 24, HostA, HostA6), B: endpoint("relay-a", "lan", 24, RelayA, RelayA6)},
			{MTU: lanMTU, A: endpoint("host-b", "lan", 24, HostB, HostB6), B: endpoint("relay-b", "lan", 24, RelayB, RelayB6)},
		},
		Links: []LinkSpec{{
			Name: WAN,
			A:    endpoint("relay-a", "wan", 30, WANA, wanA6),
			B:    endpoint("relay-b", "wan", 30, WANB, wanB6),
			AB:   ab,
			BA:   ba,
		}},
	}
	if min(c.MTUAB, c.MTUBA) < minIPv6MTU {
		t.withoutIPv6OverWAN()
	}
	for i := range t.Hosts {
		h := &t.Hosts[i]
		h.TCP.CongestionControl = StockCongestionControl
		h.Sysctls = slices.Concat(h.Sysctls, c.HostECN.sysctls())
		if c.ClassicEndHost && (h.Name == "host-a" || h.Name == "host-b") {
			h.makeClassic()
		}
	}
	return t
}

// TwoFarRelays returns a topology with a second relay at site B, on its own WAN with
// the same conditions. host-b has an address on each of the two LANs.
//
//	                      ╔═wan══ relay-b ──LAN──┐
//	host-a ──LAN── relay-a                       host-b
//	                      ╚═wan2═ relay-b2 ─LAN──┘
func TwoFarRelays(c Conditions) Topology {
	t := TwoSites(c)
	c.Seed += 2
	ab, ba := c.Directions()
	one := func(host, device string, bits int, a netip.Addr) Endpoint {
		return Endpoint{Host: host, Device: device, Addresses: []netip.Prefix{netip.PrefixFrom(a, bits)}}
	}
	second := HostSpec{Name: "relay-b2", Address: RelayB2, Sysctls: slices.Concat(router, c.HostECN.sysctls()), Routes: []hosts.Route{{To: siteA, Via: WANA2}}}
	second.TCP.CongestionControl = StockCongestionControl
	t.Hosts = append(t.Hosts, second)
	t.Cables = append(t.Cables, Cable{
		MTU: t.Cables[1].MTU,
		A:   one("host-b", "lan2", 24, HostBOnB2),
		B:   one("relay-b2", "lan", 24, RelayB2),
	})
	t.Links = append(t.Links, LinkSpec{
		Name: WAN2,
		A:    one("relay-a", "wan2", 30, WANA2),
		B:    one("relay-b2", "wan", 30, WANB2),
		AB:   ab,
		BA:   ba,
	})
	return t
}

// TwoWANs is TwoSites with a second WAN between the relays, which has addresses of its own
// at both ends and no IPv6.
//
//	                      ╔═wan══╗
//	host-a ──LAN── relay-a        relay-b ──LAN── host-b
//	                      ╚═wan2═╝
func TwoWANs(first, second Conditions) Topology {
	t := TwoSites(first)
	second.Seed += 2
	one := t.Links[0]
	one.Name = WAN2
	one.A = Endpoint{Host: one.A.Host, Device: WAN2, Addresses: []netip.Prefix{netip.PrefixFrom(WANA2, 30)}}
	one.B = Endpoint{Host: one.B.Host, Device: WAN2, Addresses: []netip.Prefix{netip.PrefixFrom(WANB2, 30)}}
	one.AB, one.BA = second.Directions()
	t.Links = append(t.Links, one)
	return t
}

// ViaHub is TwoSites with a third relay's host between the two sites, each on a WAN of its own to
// it: WAN is that of site A, WAN2 that of site B. It has no IPv6 over the WANs.
//
//	host-a ──LAN── relay-a ═wan═ hub ═wan2═ relay-b ──LAN── host-b
func ViaHub(first, second Conditions) Topology {
	t := TwoWANs(first, second)
	t.withoutIPv6OverWAN()
	t.Links[0].B.Host, t.Links[1].A.Host = Hub, Hub
	hub := HostSpec{Name: Hub, Address: WANB, Sysctls: slices.Concat(router, first.HostECN.sysctls()),
		Routes: []hosts.Route{{To: siteA, Via: WANA}, {To: siteB, Via: WANB2}}}
	hub.TCP.CongestionControl = StockCongestionControl
	for i := range t.Hosts {
		if h := &t.Hosts[i]; h.Name == "relay-b" {
			h.Routes = []hosts.Route{{To: siteA, Via: WANA2}}
		}
	}
	t.Hosts = append(t.Hosts, hub)
	return t
}

// HashedWAN is the name of a link of HashedSites, counted from 0.
func HashedWAN(n int) string {
	if n == 0 {
		return WAN
	}
	return fmt.Sprintf("%s%d", WAN, n+1)
}

// HashedSites is TwoSites with a group of links between the relays, each with the same
// conditions. A hash of addresses and ports keeps each connection on one link. The
// addresses of both ends of the WAN belong to the group. It has no IPv6 over the WAN.
//
//	                      ╔═wan══╗
//	host-a ──LAN── relay-a ═wan2═ relay-b ──LAN── host-b
//	                      ╚═...══╝
func HashedSites(c Conditions, links int) Topology {
	t := TwoSites(c)
	t.withoutIPv6OverWAN()
	of := func(n, end int) netip.Addr { return netip.AddrFrom4([4]byte{10, 30, 40, byte(4*n + end)}) }
	var toA, toB []netip.Addr
	wan := t.Links[0]
	t.Links = nil
	for n := range links {
		c.Seed += 2
		one := wan
		one.Name = HashedWAN(n)
		one.A = Endpoint{Host: wan.A.Host, Device: one.Name, Addresses: []netip.Prefix{netip.PrefixFrom(of(n, 1), 30)}}
		one.B = Endpoint{Host: wan.B.Host, Device: one.Name, Addresses: []netip.Prefix{netip.PrefixFrom(of(n, 2), 30)}}
		one.AB, one.BA = c.Directions()
		toA, toB = append(toA, of(n, 1)), append(toB, of(n, 2))
		t.Links = append(t.Links, one)
	}
	for i, end := range []*Endpoint{&t.Links[0].A, &t.Links[0].B} {
		end.Addresses = append(end.Addresses, netip.PrefixFrom([]netip.Addr{WANA, WANB}[i], 32))
	}
	for i := range t.Hosts {
		h := &t.Hosts[i]
		group := func(from netip.Addr, routers []netip.Addr, to ...netip.Prefix) {
			h.Sysctls = append(slices.Clone(h.Sysctls), Sysctl{"net.ipv4.fib_multipath_hash_policy", "1"})
			h.Routes = nil
			for _, p := range to {
				h.Routes = append(h.Routes, hosts.Route{To: p, Group: routers, From: from})
			}
		}
		switch h.Name {
		case wan.A.Host:
			group(WANA, toB, siteB, netip.PrefixFrom(WANB, 32))
		case wan.B.Host:
			group(WANB, toA, siteA, netip.PrefixFrom(WANA, 32))
		}
	}
	return t
}

// RoutedClient and RoutedTarget are the hosts of OneRouter, by IPv4 and IPv6.
var (
	RoutedClient = [2]netip.Prefix{netip.MustParsePrefix("10.40.1.2/24"), netip.MustParsePrefix("fd00:40:1::2/64")}
	RoutedTarget = [2]netip.Prefix{netip.MustParsePrefix("10.40.2.2/24"), netip.MustParsePrefix("fd00:40:2::2/64")}

	// RouterOfClient and RouterOfTarget are the addresses of the router between them.
	RouterOfClient = [2]netip.Prefix{netip.MustParsePrefix("10.40.1.1/24"), netip.MustParsePrefix("fd00:40:1::1/64")}
	RouterOfTarget = [2]netip.Prefix{netip.MustParsePrefix("10.40.2.1/24"), netip.MustParsePrefix("fd00:40:2::1/64")}
)

// The router's devices in OneRouter.
const (
	ToClient = "clients"
	ToTarget = "targets"
)

// OneRouter returns a topology of a client and a target that a router joins. settings are
// the kernel's of all three.
//
//	client ──clients── router ──targets── target
func OneRouter(settings ...Sysctl) Topology {
	end := func(name string, own, router [2]netip.Prefix) HostSpec {
		return HostSpec{Name: name, Address: own[0].Addr(), Sysctls: settings, Routes: []hosts.Route{
			{To: netip.MustParsePrefix("0.0.0.0/0"), Via: router[0].Addr()},
			{To: netip.MustParsePrefix("::/0"), Via: router[1].Addr()},
		}}
	}
	cable := func(name string, own [2]netip.Prefix, device string, router [2]netip.Prefix) Cable {
		return Cable{MTU: 1500, A: Endpoint{Host: name, Device: "lan", Addresses: own[:]}, B: Endpoint{Host: "router", Device: device, Addresses: router[:]}}
	}
	return Topology{
		Hosts: []HostSpec{
			end("client", RoutedClient, RouterOfClient),
			{Name: "router", Address: RouterOfClient[0].Addr(), Sysctls: slices.Concat(router, settings)},
			end("target", RoutedTarget, RouterOfTarget),
		},
		Cables: []Cable{
			cable("client", RoutedClient, ToClient, RouterOfClient),
			cable("target", RoutedTarget, ToTarget, RouterOfTarget),
		},
	}
}

// OneFarRouter is OneRouter with an emulated link, [WAN], between router and target.
func OneFarRouter(each link.Settings) Topology {
	t := OneRouter()
	far := t.Cables[1]
	t.Cables = t.Cables[:1]
	t.Links = []LinkSpec{{Name: WAN, A: far.B, B: far.A, AB: each, BA: each}}
	return t
}

// minIPv6MTU is the smallest MTU of a link for IPv6 (RFC 8200, 5).
const minIPv6MTU = 1280

// withoutIPv6OverWAN removes IPv6 from the WAN and keeps it on the two LANs.
func (t *Topology) withoutIPv6OverWAN() {
	is6 := func(p netip.Prefix) bool { return p.Addr().Is6() }
	for i := range t.Links {
		for _, end := range []*Endpoint{&t.Links[i].A, &t.Links[i].B} {
			end.Addresses = slices.DeleteFunc(end.Addresses, is6)
		}
	}
	for i := range t.Hosts {
		t.Hosts[i].Routes = slices.DeleteFunc(t.Hosts[i].Routes, func(r hosts.Route) bool { return r.Via == wanA6 || r.Via == wanB6 })
	}
}

// StockCongestionControl is the congestion control of nearly every Linux host. Routes
// set it: a network namespace inherits the machine's default, and does not accept
// every algorithm as its default.
const StockCongestionControl = "cubic"

// stockLinux are the kernel's own defaults of settings that distributions and
// administrators change. They make a lab the same on every machine.
var stockLinux = []Sysctl{
	{"net.ipv4.tcp_rmem", "4096 131072 6291456"},
	{"net.ipv4.tcp_wmem", "4096 16384 4194304"},
	{"net.ipv4.tcp_slow_start_after_idle", "1"},
	{"net.ipv4.tcp_no_metrics_save", "1"}, // a run must not learn from an earlier run
	{"net.ipv4.tcp_mtu_probing", "0"},
}

var router = append([]Sysctl{
	{"net.ipv4.ip_forward", "1"},
	{"net.ipv6.conf.all.forwarding", "1"},
}, stockLinux...)

// makeClassic sets a host's TCP like the mitre report's AIX hosts: NewReno, and a
// constant window of at most 256 KiB.
//
// Window scaling (RFC 7323) sets the bound: with a route's window below 2^18 the
// kernel offers a shift of 2. It can then advertise at most 65535 << 2. The route's
// window alone is no bound: the kernel raises it while it learns the overhead of the
// received packets.
func (h *HostSpec) makeClassic() {
	h.Sysctls = append(append([]Sysctl{}, h.Sysctls...),
		Sysctl{"net.ipv4.tcp_moderate_rcvbuf", "0"},
		Sysctl{"net.ipv4.tcp_rmem", fmt.Sprintf("4096 %d %[1]d", 4*ClassicWindowBytes)},
	)
	h.TCP = hosts.Metrics{CongestionControl: "reno", WindowBytes: ClassicWindowBytes - 1}
}

// endpoint returns a device with an IPv4 address of the given prefix length and an
// IPv6 address of a /64.
func endpoint(host, device string, bits int, v4, v6 netip.Addr) Endpoint {
	return Endpoint{Host: host, Device: device, Addresses: []netip.Prefix{
		netip.PrefixFrom(v4, bits), netip.PrefixFrom(v6, 64),
	}}
}
