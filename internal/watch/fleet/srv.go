package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"longhaul/internal/carry/relay/names"
	"longhaul/internal/words/printable"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/sorted"
)

// Bounds of a discovery.
const (
	maxTargets    = 256
	lookupTimeout = 5 * time.Second
)

// Discover returns the targets of a service's SRV records, ordered by name. Each is a relay, whatever its
// priority and weight. Targets outside of the service's domain are an error: the answer of a DNS server
// must not choose who gets a token.
func Discover(ctx context.Context, resolver *net.Resolver, name string) ([]Relay, error) {
	if err := names.CheckService(name); err != nil {
		return nil, err
	}
	domain := names.ServiceDomain(name)
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	records, err := names.LookupService(ctx, resolver, name)
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return nil, remedy.New(fmt.Errorf("no SRV records of %s", name), "add one for each relay, such as: "+name+" SRV 0 0 9464 relay-a."+domain+".")
	case err != nil:
		if dns != nil {
			err = errors.New(dns.Err)
		}
		return nil, remedy.New(fmt.Errorf("look up SRV records of %s: %w", name, err), "check the DNS server, or name one that has them with --dns")
	}
	if len(records) > maxTargets {
		return nil, remedy.New(fmt.Errorf("%s has %d targets, and at most %d are asked", name, len(records), maxTargets), "give each site a service of its own, or list the relays in an inventory")
	}
	sorted.By(records, func(a, b names.Target) int {
		return cmp.Or(strings.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port))
	})
	var relays []Relay
	for i, s := range records {
		short, inside := strings.CutSuffix(s.Host, "."+domain)
		if !inside {
			return nil, remedy.New(fmt.Errorf("%s leads to %s, outside of %s", name, printable.String(s.Host), domain),
				"list that relay in an inventory: a token goes only to hosts of the service's own domain")
		}
		port := strconv.Itoa(int(s.Port))
		if i > 0 && records[i-1].Host == s.Host || i+1 < len(records) && records[i+1].Host == s.Host {
			short += ":" + port
		}
		relays = append(relays, Relay{Name: short, URL: "https://" + net.JoinHostPort(s.Host, port)})
	}
	if len(relays) == 0 {
		return nil, remedy.New(fmt.Errorf("%s has no target", name), "add an SRV record for each relay")
	}
	return relays, nil
}

// ResolverAt is a resolver that asks one DNS server, ADDRESS or ADDRESS:PORT.
func ResolverAt(server string) (*net.Resolver, error) {
	at, err := netip.ParseAddrPort(server)
	if err != nil {
		addr, err := netip.ParseAddr(server)
		if err != nil {
			return nil, remedy.New(fmt.Errorf("invalid DNS server %q", printable.String(server)), "write its address like 10.0.0.53, 10.0.0.53:5353 or [2001:db8::53]:53")
		}
		at = netip.AddrPortFrom(addr, 53)
	}
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		d.SetMultipathTCP(false)
		return d.DialContext(ctx, network, at.String())
	}}, nil
}
