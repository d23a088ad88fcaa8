package names

import (
	"net"
	"net/netip"
	"slices"
	"testing"
)

func TestLookup(t *testing.T) {
	for _, host := range []string{"192.0.2.1", "2001:db8::1"} {
		got, err := Lookup(t.Context(), net.DefaultResolver, host)
		if want := []netip.Addr{netip.MustParseAddr(host)}; err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v; want %v", host, got, err, want)
		}
	}
}
