package netfilter

import (
	"net/netip"
	"testing"

	"longhaul/internal/portrange"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// compare holds the verdict on each connection against what its first packet meets, and
// those on the broad flows against all of them.
func (s *site) compare(all []Connection) (told int) {
	s.t.Helper()
	passed := s.passing(all)
	for _, c := range all {
		v := s.forward(c.family(), c.flows())
		switch {
		case v.Outcome == CannotTell:
			s.t.Logf("%s: %s, %v", c, v, passed[c])
			continue
		case v.Outcome == PartlyRejected:
			// By the client's port: then the example decides, and whether it has this port.
			s.example(c.family(), v)
		case (v.Outcome == Accepted) != passed[c]:
			s.t.Errorf("%s: the verdict is %s, and it passes: %v", c, v, passed[c])
		}
		told++
	}
	for _, family := range []byte{2, 10} {
		f := Flows{Interface: "left", From: prefixes("10.10.0.0/16", "fd10::/16"), To: prefixes("10.20.0.0/16", "fd20::/16")}
		v := s.forward(family, f)
		s.t.Logf("all: %s", v)
		for _, c := range all {
			if c.family() != family || !f.From[0].Contains(c.From) && !f.From[1].Contains(c.From) || !f.To[0].Contains(c.To) && !f.To[1].Contains(c.To) {
				continue
			}
			if v.Outcome == Accepted && !passed[c] || v.Outcome == Rejected && passed[c] {
				s.t.Errorf("the verdict on all is %s, and %s passes: %v", v, c, passed[c])
			}
		}
		s.example(family, v)
	}
	return told
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

var _ = portrange.Range{}

func TestForwardNFTables(t *testing.T) {
	s := newSite(t)
	all := cross([]string{"10.10.0.2", "10.10.10.66", "10.10.10.67", "fd10::2", "fd10::66"}, 40000,
		[]string{"10.20.20.22", "10.20.20.23", "fd20::22", "fd20::23"}, 80, 443, 8000)
	s.compare(all)
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
	s.compare(all)
}
