package linktest

import (
	"net/netip"
	"testing"

	"longhaul/lab/hosts"
	"longhaul/test/nettest"
)

// Row is three hosts in a row. The middle one forwards, with the devices left and
// right. The others have eth0.
//
//	A 10.9.1.2, fd09:1::2 --- 10.9.1.1, fd09:1::1 R 10.9.2.1, fd09:2::1 --- B 10.9.2.2, fd09:2::2
type Row struct{ A, R, B *hosts.Host }

// NewRow makes a row, with Ethernets of the given MTU between its hosts.
func NewRow(t testing.TB, mtu int) Row {
	t.Helper()
	nettest.RequireSandbox(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	host := func(name string) *hosts.Host {
		h, err := hosts.New(name)
		must(err)
		t.Cleanup(h.Close)
		return h
	}
	row := Row{host("a"), host("r"), host("b")}
	must(hosts.Cable(row.A, "eth0", row.R, "left", mtu))
	must(hosts.Cable(row.R, "right", row.B, "eth0", mtu))
	for _, end := range []struct {
		host      *hosts.Host
		device    string
		addresses []string
		gateways  []string
	}{
		{row.A, "eth0", []string{"10.9.1.2/24", "fd09:1::2/64"}, []string{"10.9.1.1", "fd09:1::1"}},
		{row.R, "left", []string{"10.9.1.1/24", "fd09:1::1/64"}, nil},
		{row.R, "right", []string{"10.9.2.1/24", "fd09:2::1/64"}, nil},
		{row.B, "eth0", []string{"10.9.2.2/24", "fd09:2::2/64"}, []string{"10.9.2.1", "fd09:2::1"}},
	} {
		for _, address := range end.addresses {
			must(end.host.Address(end.device, netip.MustParsePrefix(address)))
		}
		for _, gateway := range end.gateways {
			via := netip.MustParseAddr(gateway)
			everywhere := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
			if via.Is6() {
				everywhere = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
			}
			must(end.host.Route(hosts.Route{To: everywhere, Via: via}))
		}
	}
	must(row.R.Sysctl("net.ipv4.ip_forward", "1"))
	must(row.R.Sysctl("net.ipv6.conf.all.forwarding", "1"))
	return row
}
