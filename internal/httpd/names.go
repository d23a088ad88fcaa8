package httpd

import (
	"net"
	"net/netip"
	"strings"
)

// Names are what a server may be called in a Host header. A page of another site
// can have its own name lead here (DNS rebinding), and would then read the answers.
type Names struct {
	// Address says whether it may be an address; nil: any may, for no page can
	// have one lead elsewhere.
	Address func(netip.Addr) bool
	// Name says whether it may be a name, in lower case and without a final dot.
	// Nil: none but localhost, which always may.
	Name func(string) bool
}

// Has says whether a Host header names the server, with or without a port.
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
