package connsource

import (
	"net"
	"net/netip"
	"testing"
)

type connFrom struct {
	net.Conn
	remote net.Addr
}

func (c connFrom) RemoteAddr() net.Addr { return c.remote }

func TestSource(t *testing.T) {
	for from, want := range map[string]string{
		"192.0.2.7":              "192.0.2.7",
		"::ffff:192.0.2.7":       "192.0.2.7",
		"::ffff:192.0.2.7%eth0":  "192.0.2.7",
		"2001:db8:1:2:3:4:5:6":   "2001:db8:1:2::",
		"2001:db8:1:2:ffff::":    "2001:db8:1:2::",
		"2001:db8:1:3::ffff:1:1": "2001:db8:1:3::",
		"fe80::1:2":              "fe80::",
		"fe80::1:2%eth0":         "fe80::",
		"::1":                    "::",
	} {
		a := netip.MustParseAddr(from)
		if got := OfAddr(a); got != netip.MustParseAddr(want) {
			t.Errorf("%s comes from %s, want %s", from, got, want)
		}
		if got := Of(connFrom{remote: net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, 5))}); got != netip.MustParseAddr(want) {
			t.Errorf("a connection of %s comes from %s, want %s", from, got, want)
		}
	}
	if got := OfAddr(netip.Addr{}); got.IsValid() {
		t.Errorf("no address comes from %s", got)
	}
	for _, remote := range []net.Addr{nil, &net.TCPAddr{}, &net.UnixAddr{Name: "@", Net: "unix"}} {
		if got := Of(connFrom{remote: remote}); got.IsValid() {
			t.Errorf("a connection of %v comes from %s", remote, got)
		}
	}
}
