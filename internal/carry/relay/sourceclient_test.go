package relay

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/hops"
	"longhaul/test/nettest"
)

// The kernel lets a socket use an address that is no host's, and connects it from one of
// its own. No flow goes on with another source than its client's.
func TestTargetSeesTheClientOrNobody(t *testing.T) {
	nettest.CheckLeaks(t)
	four := listen(t)
	six, err := net.Listen("tcp6", "[::1]:0")
	nettest.Must(t, err)
	defer six.Close()
	for _, c := range []struct {
		name, client string
		target       net.Listener
		denied       bool
	}{
		{"an address of this host", "127.0.0.9:4000", four, false},
		{"mapped", "[::ffff:127.0.0.9]:4001", four, false},
		{"broadcast of a network", "127.255.255.255:4000", four, true},
		{"mapped broadcast", "[::ffff:127.255.255.255]:4000", four, true},
		{"broadcast", "255.255.255.255:4000", four, true},
		{"multicast", "224.0.0.9:4000", four, true},
		{"no address", "0.0.0.0:4000", four, true},
		{"no port", "127.0.0.9:0", four, true},
		{"IPv6", "[::1]:4000", six, false},
		{"multicast in IPv6", "[ff02::9]:4000", six, true},
		{"multicast of a device in IPv6", "[ff02::9%1]:4000", six, true},
		{"no address in IPv6", "[::]:4000", six, true},
		{"no port in IPv6", "[::1]:0", six, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := heldRig(t, newRig, func(tun *Tunnel) {
				tun.SourceClient = true
				tun.Forward = []hops.Target{targetOf(c.target)}
			})
			from := netip.MustParseAddrPort(c.client)
			r := answerOf(t, g.openHeld(from))
			if c.denied && (r == nil || r.Reason != report.EndDenied || !strings.Contains(r.Err.Error(), c.client)) {
				t.Errorf("a flow of %s gets %+v, want denied", c.client, r)
			}
			if !c.denied && r != nil {
				t.Errorf("a flow of %s gets %v", c.client, r.Err)
			}
		})
	}
}
