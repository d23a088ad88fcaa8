package netfilter

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/portrange"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// judge holds the verdict on each connection, with any port of its client, against what its
// first packet meets. It returns of how many the verdict is told, and how many pass.
func (s *site) judge(all []Connection) (told, passes int) {
	s.t.Helper()
	passed := s.passing(all)
	for _, c := range all {
		v := s.forward(c.family(), c.flows())
		switch {
		case v.Outcome == CannotTell:
			s.t.Logf("%s: %s", c, v)
			continue
		case v.Outcome == PartlyRejected: // by the client's port
			s.example(c.family(), v)
		case (v.Outcome == Accepted) != passed[c]:
			s.t.Errorf("%s: the verdict is %s, and it passes: %v", c, v, passed[c])
		}
		told++
	}
	return told, len(passed)
}

// holds holds the verdict on broad flows against what the packets of some of them meet.
func (s *site) holds(family byte, f Flows, all []Connection) Verdict {
	s.t.Helper()
	v := s.forward(family, f)
	s.example(family, v)
	var within []Connection
	for _, c := range all {
		has := func(prefixes []netip.Prefix, a netip.Addr) bool {
			return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
		}
		if c.family() == family && has(f.From, c.From) && has(f.To, c.To) && portrange.Has(f.Ports, c.ToPort) {
			within = append(within, c)
		}
	}
	for c, passes := range s.passing(within) {
		if v.Outcome == Rejected && passes {
			s.t.Errorf("the verdict on %+v is %s, and %s passes", f, v, c)
		}
	}
	if v.Outcome == Accepted {
		if passed := s.passing(within); len(passed) != len(within) {
			s.t.Errorf("the verdict on %+v is %s, and of %v pass %v", f, v, within, passed)
		}
	}
	return v
}

// example sends the first packet of a rejected example, which must not pass.
func (s *site) example(family byte, v Verdict) {
	s.t.Helper()
	if v.Outcome != PartlyRejected && v.Outcome != Rejected {
		return
	}
	c := *v.Example
	if c.FromPort == 0 {
		c.FromPort = 50123
	}
	if s.passing([]Connection{c})[c] {
		s.t.Errorf("the verdict is %s, and it passes", v)
	}
}

// broad holds the verdicts on some random broad flows.
func (s *site) broad(g *grammar, all []Connection) {
	s.t.Helper()
	f := Flows{Interface: "left", From: prefixes("10.10.0.0/16", "fd10::/16"), To: prefixes("10.20.0.0/16", "fd20::/16")}
	for range 2 {
		for _, family := range []byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
			s.holds(family, f, all)
		}
		f = Flows{Interface: "left", From: prefixes("10.10.10.0/25", "10.10.0.2/31", "fd10::/112"), To: prefixes("10.20.20.22/31", "fd20::/120")}
		if g.IntN(2) == 0 {
			f.Ports = []portrange.Range{{First: 1, Last: 80}, {First: 443, Last: 1024}}
		}
	}
}

// cross makes connections of all clients to all targets and ports.
func cross(clients []string, clientPort uint16, targets []string, ports ...uint16) (all []Connection) {
	for _, client := range clients {
		for _, target := range targets {
			for _, port := range ports {
				if c := connection(client, clientPort, target, port); c.From.Is4() == c.To.Is4() {
					all = append(all, c)
				}
			}
		}
	}
	return all
}

func TestForwardNFTables(t *testing.T) {
	s := newSite(t)
	all := cross([]string{"10.10.0.2", "10.10.10.66", "10.10.10.67", "fd10::2", "fd10::66"}, 40000,
		[]string{"10.20.20.22", "10.20.20.23", "fd20::22", "fd20::23"}, 80, 443, 8000)
	s.judge(all)
	s.run(`nft -f - <<'X'
table inet filter {
	chain forward {
		type filter hook forward priority 0; policy drop;
		ct state established,related accept
		ct state invalid drop
		iifname "left" oifname "right" ip saddr 10.10.10.66 tcp dport { 80, 8000-9000 } counter accept
		ip saddr 10.10.0.0/22 tcp dport 443 accept
		ip6 saddr fd10::/64 ip6 daddr fd20::22 tcp dport 80-443 accept
	}
}
X`)
	s.judge(all)
}
