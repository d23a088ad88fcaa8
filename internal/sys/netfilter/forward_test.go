package netfilter

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/words/portrange"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// judge holds the verdict on each connection, with any port of its client, against what its
// first packet meets. It returns how many verdicts are certain, and how many packets pass.
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

// TestManyRules: beyond the bound of ranges an example is still found.
func TestManyRules(t *testing.T) {
	s := newSite(t)
	file := filepath.Join(t.TempDir(), "rules")
	var b strings.Builder
	b.WriteString("*filter\n:FORWARD DROP [0:0]\n")
	for i := range 3000 {
		fmt.Fprintf(&b, "-A FORWARD -s 10.10.%d.%d -d 10.20.%d.%d -p tcp --dport %d -j ACCEPT\n", i>>7, 2*(i&127), i&255, i>>8, i+1)
	}
	must(t, os.WriteFile(file, []byte(b.String()+"COMMIT\n"), 0o600))
	s.run("iptables-legacy-restore < " + file)
	v := s.forward(unix.NFPROTO_IPV4, Flows{Interface: "left", From: prefixes("10.10.0.0/16"), To: prefixes("10.20.0.0/16")})
	if v.Outcome != PartlyRejected || v.Rule != 0 {
		t.Errorf("the verdict is %s", v)
	}
	s.example(unix.NFPROTO_IPV4, v)
}

// TestRoutes: the routes say by which device packets leave, and which are forwarded at all.
func TestRoutes(t *testing.T) {
	s := newSite(t)
	s.run(`ip link add other type veth peer name peer; ip link set peer up; ip link set other up; ip route add 10.20.64.0/18 dev other
		nft -f - <<'X'
table inet filter {
	chain forward {
		type filter hook forward priority 0
		oifname "other" drop
		ip daddr 10.9.1.1 drop
		ip daddr 10.30.0.0/16 drop
		ip saddr { 10.9.2.0/24, 10.9.1.1, 127.0.0.0/8 } drop
		tcp dport 0 drop
	}
}
X`)
	for _, tt := range []struct {
		name, prepare, undo string
		from, to            string
		want                string
	}{
		{name: "all by the right", to: "10.20.0.0/18", want: "accepted"},
		{name: "a part by another", to: "10.20.0.0/16", want: "partly rejected: 10.9.1.3:* > 10.20.64.1:1 by rule 1 (handle 2) of the nftables chain inet filter forward"},
		{name: "all by another", to: "10.20.65.0/24", want: "rejected by rule 1 (handle 2) of the nftables chain inet filter forward"},
		{name: "this host", to: "10.9.1.0/24", want: "accepted"},
		{name: "no route", to: "10.30.0.0/16", want: "cannot tell: no route leads to the targets of the tunnel"},
		{name: "unreachable", prepare: "ip route add unreachable 10.30.0.0/16", undo: "ip route del unreachable 10.30.0.0/16", to: "10.30.0.0/16",
			want: "cannot tell: no route leads to the targets of the tunnel"},
		{name: "clients elsewhere", from: "10.9.2.0/24", to: "10.20.0.0/18", want: "cannot tell: no clients of the tunnel are routed by left"},
		{name: "two next hops", prepare: "ip route add 10.40.0.0/16 nexthop dev right nexthop dev other", undo: "ip route del 10.40.0.0/16", to: "10.40.0.0/16",
			want: "cannot tell: rule 1 (handle 2) of the nftables chain inet filter forward depends on the device that the packet leaves by"},
		{name: "a better metric", prepare: "ip route add 10.40.0.0/16 dev right metric 5; ip route add 10.40.0.0/16 dev other metric 9", undo: "ip route flush 10.40.0.0/16", to: "10.40.0.0/16", want: "accepted"},
		{name: "the default route", prepare: "ip route add default via 10.9.2.2", undo: "ip route del default", to: "8.8.8.0/24", want: "accepted"},
		{name: "the default table", prepare: "ip route add 10.50.0.0/16 via 10.9.2.2 table default", undo: "ip route flush table default", to: "10.50.0.0/16", want: "accepted"},
		{name: "a routing rule", prepare: "ip rule add pref 99 from 10.10.0.2 lookup 99", undo: "ip rule del pref 99", from: "10.10.0.0/16", to: "10.20.0.0/18",
			want: "cannot tell: rule 1 (handle 2) of the nftables chain inet filter forward depends on the device that the packet leaves by"},
		{name: "the rule of longhaul", prepare: "ip rule add pref 1812 fwmark 0x1000/0x1000 lookup 1812", undo: "ip rule del pref 1812", to: "10.20.0.0/18", want: "accepted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s.t = t
			s.run(tt.prepare)
			f := Flows{Interface: "left", To: prefixes(tt.to)}
			if tt.from != "" {
				f.From = prefixes(tt.from)
			}
			if v := s.forward(unix.NFPROTO_IPV4, f); v.String() != tt.want {
				t.Errorf("the verdict is %q, want %q", v, tt.want)
			}
			s.run(tt.undo)
		})
	}
}

// TestTranslated: of connections whose targets are translated it cannot be told, of others
// it can.
func TestTranslated(t *testing.T) {
	s := newSite(t)
	for _, tt := range []struct{ name, load, clear, rule string }{
		{"nftables", `nft 'add table ip nat; add chain ip nat pre { type nat hook prerouting priority dstnat; }; add rule ip nat pre ip daddr 10.20.20.22 tcp dport 80 dnat to 10.20.20.23:8080'`,
			"nft delete table ip nat", "rule 1 (handle 2) of the nftables chain ip nat pre"},
		{"iptables-legacy", "iptables-legacy -t nat -A PREROUTING -d 10.20.20.22 -p tcp --dport 80 -j DNAT --to-destination 10.20.20.23:8080",
			"iptables-legacy -t nat -F", "rule 1 of PREROUTING of iptables-legacy's table nat"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s.t = t
			s.run(tt.load)
			s.run("nft 'add table inet f; add chain inet f f { type filter hook forward priority 0; }; add rule inet f f ip daddr 10.20.20.22 drop'")
			for port, want := range map[uint16]string{
				80: "cannot tell: " + tt.rule + " depends on the address that it translates to",
				81: "rejected by rule 1 (handle 2) of the nftables chain inet f f",
			} {
				c := connection("10.10.0.2", 40000, "10.20.20.22", port)
				if v := s.forward(c.family(), c.flows()); v.String() != want {
					t.Errorf("the verdict on %s is %q, want %q", c, v, want)
				}
			}
			s.run(tt.clear + "; nft delete table inet f")
		})
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

// TestManyElements: a blocklist with 100 000 elements and a set of concatenations.
func TestManyElements(t *testing.T) {
	s := newSite(t)
	file := filepath.Join(t.TempDir(), "rules")
	write := func(set, rule string, n int, element func(i int) string) {
		t.Helper()
		var b strings.Builder
		b.WriteString("flush ruleset\ntable inet filter {\n" + set + " elements = { ")
		for i := range n {
			b.WriteString(element(i) + ",\n")
		}
		b.WriteString(" }\n}\nchain forward { type filter hook forward priority 0\n" + rule + "\ntcp dport 80 accept\ntcp dport 1-1000 ip saddr 10.10.0.0/24 accept\n}\n}\n")
		must(t, os.WriteFile(file, []byte(b.String()), 0o600))
		s.run("nft -f " + file)
	}
	all := Flows{Interface: "left", From: prefixes("10.10.0.0/16"), To: prefixes("10.20.0.0/16")}
	elsewhere := Flows{Interface: "left", From: prefixes("10.9.1.0/24"), To: prefixes("10.20.0.0/16")}
	address := func(i int) string { return fmt.Sprintf("10.%d.%d.%d", 10+i>>15, i>>7&255, 2*(i&127)) }
	pairs := func(i int) string { return fmt.Sprintf("10.10.%d.%d . %d", i>>8&255, i&255, 1+i%60000) }
	for _, tt := range []struct {
		name, set, rule string
		n               int
		element         func(int) string
		want            Outcome
		wantElsewhere   Outcome
	}{
		{"addresses", "set s { type ipv4_addr;", "ip saddr @s drop", 100_000, address, PartlyRejected, Accepted},
		{"intervals", "set s { type ipv4_addr; flags interval;", "ip saddr @s drop", 100_000, address, PartlyRejected, Accepted},
		{"allowed", "set s { type ipv4_addr;", "ip saddr != @s drop", 20_000, address, PartlyRejected, Rejected},
		{"pairs", "set s { type ipv4_addr . inet_service;", "ip saddr . tcp dport @s drop", 50_000, pairs, PartlyRejected, Accepted},
		{"verdicts", "map s { type ipv4_addr : verdict;", "ip saddr vmap @s", 20_000, func(i int) string { return address(i) + [2]string{" : drop", " : accept"}[i%2] }, PartlyRejected, Accepted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s.t = t
			write(tt.set, tt.rule, tt.n, tt.element)
			v := s.forward(unix.NFPROTO_IPV4, all)
			if v.Outcome != tt.want {
				t.Errorf("the verdict is %s, want %s", v, tt.want)
			}
			s.example(unix.NFPROTO_IPV4, v)
			if v := s.forward(unix.NFPROTO_IPV4, elsewhere); v.Outcome != tt.wantElsewhere {
				t.Errorf("the verdict on other clients is %s, want %s", v, tt.wantElsewhere)
			}
		})
	}
}
