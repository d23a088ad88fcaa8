package relay

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"longhaul/test/nettest"
)

// TestPortOfAConnection holds that a port that an outgoing connection has is told from one where
// something listens.
func TestPortOfAConnection(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	nettest.Must(t, err)
	defer server.Close()
	outgoing, err := net.Dial("tcp", server.Addr().String())
	nettest.Must(t, err)
	defer outgoing.Close()
	held := netip.MustParseAddrPort(outgoing.LocalAddr().String())
	for _, c := range []struct {
		at         netip.AddrPort
		want, lack string
	}{
		{held, "a connection from " + held.String() + " to " + server.Addr().String() + " has the port", "stop what listens"},
		{netip.AddrPortFrom(netip.IPv4Unspecified(), held.Port()), "net.ipv4.ip_local_reserved_ports=", "stop what listens"},
		{netip.MustParseAddrPort(server.Addr().String()), "stop what listens there", "a connection from"},
	} {
		l, err := openListener(listenKey{addr: c.at}, false, nil)
		if err == nil {
			closeFD(l.fd)
		}
		if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), c.lack) {
			t.Errorf("listen on %s: %v, want %q", c.at, err, c.want)
		}
	}
}
