package httpd

import (
	"net"
	"net/netip"
	"strings"
)

// Names defines the valid Host headers of a server. A foreign page can point
// its own name at the server (DNS rebinding), and could then read the answers.
type Names struct {
	// Address reports whether an address is valid; nil: every address is, since
	// a page cannot redirect one.
	Address func(netip.Addr) bool
	// Name reports whether a name in lower case and without a final dot is
	// valid. localhost always is; nil: only localhost.
	Name func(string) bool
}

// Has reports whether a Host header, with or without a port, names the server.
func (n Names) Has(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if addr, err := netip.ParseAddr(host); err == nil {
		return n.Address == nil || n.Address(addr)
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || n.Name != nil && n.Name(host)
}
