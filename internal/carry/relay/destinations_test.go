package relay

import (
	"net/netip"
	"testing"
)

// named is a transport that is only told from others.
type named struct {
	Transport
	name string
}

func TestTransportByDestination(t *testing.T) {
	tunnel := Tunnel{Transport: named{name: "own"}}
	for _, prefix := range []string{"fd00:20::/64", "10.20.30.7/32", "10.20.30.0/24", "10.20.0.0/16"} {
		tunnel.Destinations = append(tunnel.Destinations, Destination{netip.MustParsePrefix(prefix), named{name: prefix}})
	}
	for target, want := range map[string]string{
		"10.20.30.7": "10.20.30.7/32", "10.20.30.8": "10.20.30.0/24", "10.20.31.8": "10.20.0.0/16", "::ffff:10.20.31.8": "10.20.0.0/16",
		"10.21.0.1": "own", "fd00:20::9": "fd00:20::/64", "fd00:21::9": "own",
	} {
		tr, prefix := tunnel.transportTo(netip.MustParseAddr(target))
		if got := tr.(named).name; got != want || prefix.IsValid() != (want != "own") {
			t.Errorf("%s has the transport %s of %s, want %s", target, got, prefix, want)
		}
	}
}
