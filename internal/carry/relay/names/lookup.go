package names

import (
	"context"
	"net"
	"net/netip"
)

// Lookup returns the addresses of a host name. IPv4 addresses have their own
// form: the resolver gives them in IPv6's, as ::ffff:192.0.2.1.
func Lookup(ctx context.Context, r *net.Resolver, host string) ([]netip.Addr, error) {
	all, err := r.LookupNetIP(ctx, "ip", host)
	for i, a := range all {
		all[i] = a.Unmap()
	}
	return all, err
}
