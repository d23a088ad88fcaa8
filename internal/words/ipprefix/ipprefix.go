// Package ipprefix reads IP prefixes.
package ipprefix

import (
	"fmt"
	"net/netip"

	"longhaul/internal/words/remedy"
)

// Parse reads a prefix of addresses, or an address that stands for itself
// alone. It refuses one with bits beyond its length, and IPv4 in IPv6 form.
func Parse(s string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(s); err == nil && address.Zone() == "" {
		address = address.Unmap()
		return netip.PrefixFrom(address, address.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		return prefix, remedy.New(fmt.Errorf("invalid prefix %q", s), "write it like 203.0.113.0/24 or 2001:db8::/32")
	}
	if prefix.Addr().Is4In6() {
		return prefix, remedy.New(fmt.Errorf("%s is an IPv4 prefix in IPv6 form", prefix), "write it as IPv4")
	}
	if prefix != prefix.Masked() {
		return prefix, remedy.New(fmt.Errorf("%s has bits beyond its length", prefix), fmt.Sprintf("did you mean %s?", prefix.Masked()))
	}
	return prefix, nil
}
