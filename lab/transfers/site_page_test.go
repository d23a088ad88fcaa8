package transfers

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"longhaul/lab"
	"longhaul/lab/hosts"
	"longhaul/test/nettest"
)

// TestSitePage sets a pair up as docs/pairs.md says, and then makes two far relays of the one as
// docs/availability.md says, command by command. A flow stands from before to after all of them.
func TestSitePage(t *testing.T) {
	nettest.RequireRoot(t)
	s := newPageSites(t, t.TempDir())
	s.useProgram()
	s.addSecondFar()
	join := func(invited func()) place {
		return place{begins: "longhaul pair join - <", prints: ` is a peer now`, then: func(string) { invited() }}
	}
	check := place{begins: "longhaul check files", instead: func(c pageCommand) {
		nettest.Eventually(t, time.Minute, func() bool { // a relay looks at its keys each second
			_, err := s.shell("relay-a", c.line)
			return err == nil
		}, func() string { return "no session stands" })
	}}
	invite, invited := s.serveInvitation()
	s.follow(readPage(t, "docs/pairs.md", "Set it up"), []place{invite, join(invited), check})
	standing := s.hears("10.10.10.20:9000")

	p := readPage(t, "docs/availability.md", "Several far relays of a pair")
	p.remove(func(c pageCommand) bool { return c.line[0] == ' ' }) // a part of a file, to show its keys
	invite, invited = s.serveInvitation()
	s.follow(p, []place{
		invite, join(invited), check,
		{begins: "longhaul pair rename ", prints: `site-b/b1`},
		{begins: "sed -i ", prints: `^$`},
		{begins: "longhaul reload", instead: func(c pageCommand) { s.execute(c) }},
	})
	nettest.Eventually(t, time.Minute, func() bool {
		said, err := s.shell("relay-a", "longhaul status")
		for _, host := range []string{"site-b/b1", "site-b/b2"} {
			if err != nil || !matches("pair "+host+" at .*: up ", said) {
				return false
			}
		}
		return true
	}, func() string { return "not both far relays are up" })
	// sshd answers a client that says what it is: the flow stood through all of this.
	_, err := io.WriteString(standing, "SSH-2.0-test\r\n")
	nettest.Must(t, err)
	nettest.Must(t, standing.SetReadDeadline(time.Now().Add(time.Minute)))
	if _, err := io.ReadFull(standing, make([]byte, 5)); err != nil {
		t.Errorf("the flow from before: %v", err)
	}
}

// hears connects from host-a to sshd through a relay, and reads the beginning of its greeting.
func (s *pageSites) hears(at string) net.Conn {
	s.t.Helper()
	conn, err := s.Host("host-a").DialTCP(s.ctx, netip.MustParseAddrPort(at), time.Minute)
	nettest.Must(s.t, err)
	s.t.Cleanup(func() { conn.Close() })
	nettest.Must(s.t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	for last := byte(0); last != '\n'; {
		var one [1]byte
		_, err := io.ReadFull(conn, one[:])
		nettest.Must(s.t, err)
		last = one[0]
	}
	return conn
}

// addSecondFar adds relay-b2, between site A and host-b as relay-b is.
func (s *pageSites) addSecondFar() {
	s.t.Helper()
	host, err := s.Add("relay-b2")
	nettest.Must(s.t, err)
	prefix := netip.MustParsePrefix
	for _, cable := range []struct {
		other, device, end string
		a, b               netip.Addr
		bits               int
	}{
		{"relay-a", "wan2", "wan", lab.WANA2, lab.WANB2, 30},
		{"host-b", "lan2", "lan", lab.HostBOnB2, lab.RelayB2, 24},
	} {
		other := s.Host(cable.other)
		nettest.Must(s.t, hosts.Cable(other, cable.device, host, cable.end, 1500))
		nettest.Must(s.t, other.Address(cable.device, netip.PrefixFrom(cable.a, cable.bits)))
		nettest.Must(s.t, host.Address(cable.end, netip.PrefixFrom(cable.b, cable.bits)))
	}
	nettest.Must(s.t, host.Route(hosts.Route{To: prefix(lab.HostB.String() + "/32"), Via: lab.HostBOnB2}))
	names, err := os.OpenFile("/etc/hosts", os.O_APPEND|os.O_WRONLY, 0)
	nettest.Must(s.t, err)
	_, err = fmt.Fprintf(names, "%s relay-b2.example.net\n", lab.WANB2)
	nettest.Must(s.t, err)
	nettest.Must(s.t, names.Close())
	s.give("relay-b2")
}
