package congestion

import (
	"net/netip"
	"slices"
	"time"

	"longhaul/lab"
	"longhaul/lab/hosts"
	"longhaul/lab/link"
)

// The far site is beside site A, behind a link that lengthens its round trips. The site
// beyond is behind site B and a second bottleneck.
//
//	host-a ──LAN── relay-a ══WAN══ relay-b ──LAN── host-b
//	far-a ══access══╯                 ╚══wan2══ beyond
const (
	farHost    = "far-a"
	accessLink = "access"
	beyondHost = "beyond"
)

var (
	farAddress    = netip.MustParseAddr("10.10.11.2")
	farGateway    = netip.MustParseAddr("10.10.11.1")
	beyondAddress = netip.MustParseAddr("10.20.22.2")
	beyondGateway = netip.MustParseAddr("10.20.22.1")

	everywhere = netip.MustParsePrefix("0.0.0.0/0")
)

// siteBits is the length of the prefix of a site with one host.
const siteBits = 30

// withFarHost adds a host whose round trips are ratio times those of host-a.
func withFarHost(t lab.Topology, rtt time.Duration, ratio float64) lab.Topology {
	extra := link.Settings{MTU: t.Links[0].AB.MTU, Delay: time.Duration((ratio - 1) * float64(rtt) / 2)}
	device := func(host string, address netip.Addr) lab.Endpoint {
		return lab.Endpoint{Host: host, Device: accessLink, Addresses: []netip.Prefix{netip.PrefixFrom(address, siteBits)}}
	}
	t = withSite(t, farHost, "host-a", farAddress, farGateway, "relay-b", lab.WANA)
	t.Links = append(t.Links, lab.LinkSpec{
		Name: accessLink, A: device(farHost, farAddress), B: device("relay-a", farGateway), AB: extra, BA: extra,
	})
	return t
}

// withSecondLink adds a host beyond relay-b, behind a link with the settings of the first.
func withSecondLink(t lab.Topology) lab.Topology {
	device := func(host string, address netip.Addr) lab.Endpoint {
		return lab.Endpoint{Host: host, Device: lab.WAN2, Addresses: []netip.Prefix{netip.PrefixFrom(address, siteBits)}}
	}
	second := lab.LinkSpec{
		Name: lab.WAN2, A: device("relay-b", beyondGateway), B: device(beyondHost, beyondAddress),
		AB: t.Links[0].AB, BA: t.Links[0].BA,
	}
	second.AB.Seed, second.BA.Seed = second.AB.Seed+2, second.BA.Seed+2
	t = withSite(t, beyondHost, "host-b", beyondAddress, beyondGateway, "relay-a", lab.WANB)
	t.Links = append(t.Links, second)
	return t
}

// withSite adds a site with one host, which is like another. The router at the WAN's
// other end reaches the site via an address.
func withSite(t lab.Topology, name, like string, address, gateway netip.Addr, router string, via netip.Addr) lab.Topology {
	for i := range t.Hosts {
		switch h := &t.Hosts[i]; h.Name {
		case like:
			added := *h
			added.Name, added.Address = name, address
			added.Routes = []hosts.Route{{To: everywhere, Via: gateway}}
			t.Hosts = append(t.Hosts, added)
		case router:
			h.Routes = append(slices.Clone(h.Routes), hosts.Route{To: netip.PrefixFrom(address, siteBits).Masked(), Via: via})
		}
	}
	return t
}
