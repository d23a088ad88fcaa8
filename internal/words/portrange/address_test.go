package portrange

import (
	"net/netip"
	"slices"
	"testing"
)

func TestAddresses(t *testing.T) {
	for _, c := range []struct{ in, want []string }{
		{nil, nil},
		{[]string{"10.0.0.1:6000"}, []string{"10.0.0.1:6000"}},
		{[]string{"[::]:6000", "[::]:6001", "[::]:6002"}, []string{"[::]:6000-6002"}},
		{[]string{"10.0.0.1:6000", "10.0.0.1:6001", "10.0.0.1:6003", "10.0.0.2:6002"},
			[]string{"10.0.0.1:6000-6001", "10.0.0.1:6003", "10.0.0.2:6002"}},
		{[]string{"127.0.0.1:65534", "127.0.0.1:65535"}, []string{"127.0.0.1:65534-65535"}},
	} {
		var in []netip.AddrPort
		for _, text := range c.in {
			in = append(in, netip.MustParseAddrPort(text))
		}
		if got := Addresses(in); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.in, got, c.want)
		}
	}
}
