// Package ipprefix reads IP prefixes, and checks that they mean what they say.
package ipprefix

import (
	"fmt"
	"net/netip"

	"longhaul/internal/words/remedy"
)

// Parse reads a prefix such as 10.0.0.0/8, or an address that stands for itself alone. The error
// is a [*remedy.Error].
func Parse(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		if a.Zone() != "" {
			return netip.Prefix{}, remedy.New(fmt.Errorf("%q names an interface", s), fmt.Sprintf("write %s", a.WithZone("")))
		}
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, remedy.New(fmt.Errorf("%q is not an address or prefix", s), "write it as 10.10.0.0/16, 2001:db8::/32 or 10.10.10.7")
	}
	return p, Check(p)
}

// Check refuses a valid prefix with bits after its length, and IPv4 in IPv6 form. The error is a
// [*remedy.Error].
func Check(p netip.Prefix) error {
	if p.Addr().Is4In6() {
		fix := "write it in IPv4 form"
		if p.Bits() >= 96 {
			fix = fmt.Sprintf("write %s", netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96).Masked())
		}
		return remedy.New(fmt.Errorf("%q is in IPv4-mapped form, which never matches", p), fix)
	}
	if p != p.Masked() {
		return remedy.New(fmt.Errorf("%q has bits set after its first %d", p, p.Bits()),
			fmt.Sprintf("write %s for the network, or %s for the one host", p.Masked(), p.Addr()))
	}
	return nil
}
