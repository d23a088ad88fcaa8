package config

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"longhaul/internal/carry/relay/names"
	"longhaul/internal/words/portrange"
	"longhaul/internal/words/sorted"
)

// maxRange bounds a port range: every port costs a listening socket.
const maxRange = 4096

// mistake is a problem and its fix, without a position.
type mistake struct{ problem, fix string }

// splitAddress splits "host:port", "host:low-high", "[v6]:port" or ":port".
func splitAddress(s string) (host string, ports portrange.Range, bad *mistake) {
	if at := strings.LastIndexByte(s, '@'); at >= 0 {
		// Not quoted: the text before the sign may be a password.
		return "", portrange.Range{}, &mistake{"an address has no user or password", fmt.Sprintf("write %q; the endpoints log in through the relay by themselves", s[at+1:])}
	}
	colon := strings.LastIndexByte(s, ':')
	if colon < 0 {
		if _, err := strconv.ParseUint(s, 10, 16); err == nil {
			return "", portrange.Range{}, &mistake{fmt.Sprintf("%q has a port but no address", s), fmt.Sprintf("write \":%s\" for every address of this host, or HOST:%s", s, s)}
		}
		return "", portrange.Range{}, &mistake{fmt.Sprintf("%q has no port", s), fmt.Sprintf("write \"%s:PORT\"", s)}
	}
	host = s[:colon]
	switch {
	case strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]"):
		host = host[1 : len(host)-1]
		if a, err := netip.ParseAddr(host); err != nil || !a.Is6() {
			return "", portrange.Range{}, &mistake{fmt.Sprintf("%q is not an IPv6 address", host), "brackets are for IPv6 addresses, such as [2001:db8::1]:6000"}
		}
	case strings.ContainsAny(host, "[]"):
		return "", portrange.Range{}, &mistake{fmt.Sprintf("the brackets of %q do not match", s), "write an IPv6 address as [2001:db8::1]:6000"}
	case strings.Contains(host, ":"):
		return "", portrange.Range{}, &mistake{fmt.Sprintf("%q has several colons", s), "put an IPv6 address in brackets, such as [2001:db8::1]:6000"}
	}
	ports, bad = parsePorts(s[colon+1:])
	return host, ports, bad
}

// parsePorts parses the ports of an address: one, or a range of at most maxRange.
func parsePorts(s string) (portrange.Range, *mistake) {
	p, bad := parsePortRange(s)
	if bad == nil && p.Len() > maxRange {
		bad = &mistake{fmt.Sprintf("port range %q has %d ports, and at most %d are allowed", s, p.Len(), maxRange), "make it shorter, or split it into several tunnels"}
	}
	return p, bad
}

func parsePortRange(s string) (portrange.Range, *mistake) {
	lowText, highText, isRange := strings.Cut(s, "-")
	low, bad := parsePort(lowText)
	if bad != nil {
		return portrange.Range{}, bad
	}
	if !isRange {
		return portrange.Range{First: low, Last: low}, nil
	}
	high, bad := parsePort(highText)
	switch {
	case bad != nil:
		return portrange.Range{}, bad
	case high < low:
		return portrange.Range{}, &mistake{fmt.Sprintf("port range %q runs backwards", s), fmt.Sprintf("write %d-%d", high, low)}
	}
	return portrange.Range{First: low, Last: high}, nil
}

func parsePort(s string) (uint16, *mistake) {
	v, err := strconv.ParseUint(s, 10, 64)
	switch {
	case s == "":
		return 0, &mistake{"the port is missing", "write it after the last colon, such as :6000"}
	case err != nil && strings.Trim(s, "0123456789") != "":
		return 0, &mistake{fmt.Sprintf("%q is not a port number", s), "use a number from 1 to 65535"}
	case err != nil || v < 1 || v > 65535:
		return 0, &mistake{fmt.Sprintf("port %s is out of range", s), "use a number from 1 to 65535"}
	}
	return uint16(v), nil
}

// checkHost refuses a host that is neither a name nor a literal address. It
// returns a literal address as such.
func checkHost(host string) (addr netip.Addr, bad *mistake) {
	if a, err := netip.ParseAddr(host); err == nil {
		a = a.Unmap()
		switch {
		case a.IsMulticast():
			return a, &mistake{fmt.Sprintf("%s is a multicast address", a), "TCP needs an address of one host"}
		case a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == "":
			return a, &mistake{fmt.Sprintf("%s is a link-local address without its interface", a), fmt.Sprintf("write [%s%%eth0]", a)}
		}
		return a, nil
	}
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	last := labels[len(labels)-1]
	if last != "" && strings.Trim(last, "0123456789") == "" {
		return addr, &mistake{fmt.Sprintf("%q is not an IPv4 address", host), "an IPv4 address has four numbers from 0 to 255, such as 10.10.10.20"}
	}
	for _, label := range labels {
		ok := label != "" && len(label) <= 63 && label[0] != '-'
		for _, c := range label {
			ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_')
		}
		if !ok || len(host) > 253 {
			return addr, &mistake{fmt.Sprintf("%q is neither a host name nor an address", host), "use a name of letters, digits, dots and hyphens, or a literal address"}
		}
	}
	return addr, nil
}

// parseForward parses "host:port" or "host:low-high".
func parseForward(s string) (Forward, *mistake) {
	host, ports, bad := splitAddress(s)
	if bad != nil {
		if name := strings.TrimPrefix(s, "srv:"); names.CheckService(name) == nil {
			bad = &mistake{fmt.Sprintf("%q has no port", s), fmt.Sprintf("write {srv: %s} for the hosts and ports of its SRV records", name)}
		}
		return Forward{}, bad
	}
	if host == "" {
		return Forward{}, &mistake{fmt.Sprintf("%q has no host to forward to", s), fmt.Sprintf("write HOST%s", s)}
	}
	addr, bad := checkHost(host)
	if bad != nil {
		return Forward{}, bad
	}
	if addr.IsValid() {
		if addr.IsUnspecified() {
			return Forward{}, &mistake{fmt.Sprintf("cannot forward to %s", addr),
				"write the address of one host, such as 127.0.0.1"}
		}
		host = addr.String()
	}
	return Forward{Host: host, Ports: ports, Weight: 1, Priority: 1}, nil
}

// Resolver resolves a host name to addresses.
type Resolver func(ctx context.Context, host string) ([]netip.Addr, error)

// SystemResolver queries the system for A and AAAA records.
func SystemResolver(ctx context.Context, host string) ([]netip.Addr, error) {
	return names.Lookup(ctx, net.DefaultResolver, host)
}

// PlaceholderResolver makes a resolver that asks nobody: it gives every name an
// address of its own in 127.1.0.0/16, so that no two names clash. It serves
// where the names of another host are read.
func PlaceholderResolver() Resolver {
	known := map[string]netip.Addr{}
	next := netip.MustParseAddr("127.1.0.0")
	return func(_ context.Context, host string) ([]netip.Addr, error) {
		if !known[host].IsValid() {
			next = next.Next()
			known[host] = next
		}
		return []netip.Addr{known[host]}, nil
	}
}

// parseListen parses a listening address. A name gives one Listen for each of
// its addresses.
func (l Loader) parseListen(ctx context.Context, s string) ([]Listen, *mistake) {
	host, ports, bad := splitAddress(s)
	if bad != nil {
		return nil, bad
	}
	if host == "" {
		if l.NoIPv6 {
			return []Listen{{netip.IPv4Unspecified(), ports}}, nil
		}
		return []Listen{{netip.IPv6Unspecified(), ports}}, nil
	}
	addr, bad := checkHost(host)
	if bad != nil {
		return nil, bad
	}
	if addr.IsValid() {
		return []Listen{{addr, ports}}, nil
	}
	addrs, err := l.Resolve(ctx, host)
	if err != nil || len(addrs) == 0 {
		// The resolver's own text differs between systems and name servers.
		return nil, &mistake{fmt.Sprintf("%q has no address", host), "listen on a literal address, or add the name to DNS or /etc/hosts"}
	}
	var listens []Listen
	for _, a := range addrs {
		listens = append(listens, Listen{a.Unmap(), ports})
	}
	sorted.By(listens, func(a, b Listen) int { return a.Addr.Compare(b.Addr) })
	return slices.Compact(listens), nil
}

// String is the address as it would be written in a file.
func (l Listen) String() string {
	return net.JoinHostPort(l.Addr.String(), l.Ports.String())
}

// ListensOn reports whether the tunnel listens on an address as a file or the status
// writes it. The address has all ports of the tunnel; without a host it is a wildcard.
func (t Tunnel) ListensOn(address string) bool {
	return slices.ContainsFunc(t.Listen, func(l Listen) bool {
		return l.String() == address || l.Addr.IsUnspecified() && ":"+l.Ports.String() == address
	})
}

// String is the forward as it would be written in a file, without a final dot of the host.
func (f Forward) String() string {
	return net.JoinHostPort(strings.TrimSuffix(f.Host, "."), f.Ports.String())
}

// overlaps reports whether one host cannot listen on both. The wildcard [::]
// also accepts IPv4 connections, unless 0.0.0.0 has the same port.
func (l Listen) overlaps(o Listen) bool {
	if !l.Ports.Overlaps(o.Ports) {
		return false
	}
	return l.Addr == o.Addr || covers(l.Addr, o.Addr) || covers(o.Addr, l.Addr)
}

func covers(wildcard, a netip.Addr) bool {
	return wildcard == netip.IPv6Unspecified() && a != netip.IPv4Unspecified() || wildcard == netip.IPv4Unspecified() && a.Is4()
}
