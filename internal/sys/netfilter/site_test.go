package netfilter

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/words/portrange"
	"longhaul/lab/linktest"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

// site is three hosts in a row, see [linktest.Row]. Behind the left one are clients in
// 10.10.0.0/16 and fd10::/16, behind the right one targets in 10.20.0.0/16 and fd20::/16.
type site struct {
	linktest.Row
	t    testing.TB
	syns *linktest.SYNs
}

func newSite(t testing.TB) *site {
	t.Helper()
	nettest.RequireSandbox(t)
	for program, of := range map[string]string{"nft": "nftables", "iptables-legacy": "iptables", "ip": "iproute2"} {
		nettest.RequireProgram(t, program, of)
	}
	s := &site{Row: linktest.NewRow(t, 1500), t: t}
	s.run(`ip route add 10.10.0.0/16 via 10.9.1.2; ip route add 10.20.0.0/16 via 10.9.2.2
		ip -6 route add fd10::/16 via fd09:1::2; ip -6 route add fd20::/16 via fd09:2::2`)
	s.syns = linktest.NewSYNs(t, s.Row)
	return s
}

// run runs a shell command on the router and returns its output.
func (s *site) run(command string, arguments ...string) string {
	s.t.Helper()
	return linktest.Shell(s.t, s.R, command, arguments...)
}

// passing returns which connections' first packets pass the router.
func (s *site) passing(all []Connection) (passed map[Connection]bool) {
	s.t.Helper()
	packets := make([]linktest.SYN, len(all))
	for i, c := range all {
		packets[i] = linktest.SYN{From: netip.AddrPortFrom(c.From, c.FromPort), To: netip.AddrPortFrom(c.To, c.ToPort)}
	}
	passed = map[Connection]bool{}
	for c := range s.syns.Passing(packets) {
		passed[Connection{c.From.Addr(), c.From.Port(), c.To.Addr(), c.To.Port()}] = true
	}
	return passed
}

func connection(from string, fromPort uint16, to string, toPort uint16) Connection {
	return Connection{netip.MustParseAddr(from), fromPort, netip.MustParseAddr(to), toPort}
}

// flows are those of the one connection, of any port of its client.
func (c Connection) flows() Flows {
	single := func(a netip.Addr) []netip.Prefix { return []netip.Prefix{netip.PrefixFrom(a, a.BitLen())} }
	return Flows{Interface: "left", From: single(c.From), To: single(c.To), Ports: []portrange.Range{{First: c.ToPort, Last: c.ToPort}}}
}

func (c Connection) family() byte {
	if c.From.Is4() {
		return unix.NFPROTO_IPV4
	}
	return unix.NFPROTO_IPV6
}

// forward returns the verdict for flows on the router.
func (s *site) forward(family byte, f Flows) (v Verdict) {
	s.t.Helper()
	must(s.t, s.R.Do(func() error {
		r, err := Read(nil)
		if err != nil {
			return err
		}
		v, err = r.Forward(family, f)
		return err
	}))
	return v
}
