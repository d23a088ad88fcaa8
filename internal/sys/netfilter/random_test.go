package netfilter

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

var (
	rulesets = flag.Int("rulesets", 20, "how many random rulesets of each kind")
	seed     = flag.Uint64("seed", 0, "the first of their seeds")
)

// grammar writes random rulesets. Values come from small pools, of which the connections
// have others: so rules match some of them.
type grammar struct {
	*rand.Rand
	six   bool // the family of the current rule
	known bool // every match can be decided from the rules and the flow
}

func pick[T any](g *grammar, all ...T) T { return all[g.IntN(len(all))] }

var (
	clients4 = []string{"10.10.0.2", "10.10.0.3", "10.10.10.66", "10.10.10.127", "10.10.10.128", "10.10.255.254"}
	clients6 = []string{"fd10::2", "fd10::66", "fd10::1:0", "fd10:0:0:1::2"}
	targets4 = []string{"10.20.0.1", "10.20.20.22", "10.20.20.23", "10.20.21.0", "10.20.128.9"}
	targets6 = []string{"fd20::1", "fd20::22", "fd20::23", "fd20:0:0:ff::1"}
	portPool = []uint16{1, 22, 79, 80, 81, 443, 1023, 1024, 8000, 8080, 65535}
)

func (g *grammar) connections(n int) (all []Connection) {
	seen := map[Connection]bool{}
	for len(all) < n {
		clients, targets := clients4, targets4
		if g.IntN(2) == 0 {
			clients, targets = clients6, targets6
		}
		c := connection(pick(g, clients...), uint16(pick(g, 1, 79, 1024, 40000, 65535)), pick(g, targets...), pick(g, portPool...))
		if !seen[c] {
			seen[c] = true
			all = append(all, c)
		}
	}
	return all
}

func (g *grammar) port() string { return fmt.Sprint(pick(g, portPool...)) }

// ports is a range, in order.
func (g *grammar) ports(separator string) string {
	a, b := pick(g, portPool...), pick(g, portPool...)
	if a > b {
		a, b = b, a
	}
	if a == b {
		return fmt.Sprint(a)
	}
	return fmt.Sprint(a, separator, b)
}

func (g *grammar) address(six, client bool) string {
	switch {
	case six && client:
		return pick(g, clients6...)
	case six:
		return pick(g, targets6...)
	case client:
		return pick(g, clients4...)
	}
	return pick(g, targets4...)
}

func (g *grammar) prefix(six, client bool) string {
	bits := pick(g, 8, 16, 22, 24, 25, 31, 32)
	if six {
		bits = pick(g, 16, 48, 64, 112, 120, 127, 128)
	}
	return fmt.Sprintf("%s/%d", g.address(six, client), bits)
}

func (g *grammar) maybe(word string) string {
	if g.IntN(4) == 0 {
		return word
	}
	return ""
}

// several are one to four values.
func (g *grammar) several(one func() string) string {
	var all []string
	for range 1 + g.IntN(4) {
		all = append(all, one())
	}
	return strings.Join(all, ", ")
}

func (g *grammar) order() string { return pick(g, "", "!= ", "< ", "<= ", "> ", ">= ") }

// side is the words of a family and of an address of it.
func (g *grammar) side() (six, client bool, word string) {
	six, client = g.six, g.IntN(2) == 0
	word = "ip "
	if six {
		word = "ip6 "
	}
	if client {
		return six, client, word + "saddr "
	}
	return six, client, word + "daddr "
}

func (g *grammar) portSide() string {
	return pick(g, "tcp dport ", "tcp dport ", "th dport ", "tcp sport ")
}

func (g *grammar) not() string { return g.maybe("!= ") }

// match is a match of nft.
func (g *grammar) match() string {
	for {
		m := g.anyMatch()
		if m == "" {
			continue
		}
		if words := strings.Fields(m); (words[0] == "ip6" || strings.Contains(m, "ip6 ")) == g.six || !strings.Contains(m, "ip") || words[0] == "meta" {
			return m
		}
	}
}

func (g *grammar) anyMatch() string {
	six, client, side := g.side()
	switch g.IntN(30) {
	case 0, 1, 2:
		return side + g.not() + g.prefix(six, client)
	case 3:
		return side + g.order() + g.address(six, client)
	case 4, 5:
		return side + g.not() + "{ " + g.several(func() string { return g.prefix(six, client) }) + " }"
	case 6:
		return g.portSide() + g.order() + g.port()
	case 7:
		return g.portSide() + g.not() + g.ports("-")
	case 8, 9:
		return g.portSide() + g.not() + "{ " + g.several(func() string { return g.ports("-") }) + " }"
	case 10:
		return "iifname " + g.not() + pick(g, `"left"`, `"right"`, `"le*"`, "{ left, lo }", `"l*"`)
	case 11:
		return "oifname " + g.not() + pick(g, `"left"`, `"right"`, `"ri*"`, "{ right, lo }")
	case 12:
		return pick(g, "iif ", "oif ") + g.not() + pick(g, "left", "right")
	case 13:
		return "ct state " + g.not() + pick(g, "new", "established,related", "invalid", "{ new, established }", "untracked")
	case 14:
		return "tcp flags " + pick(g, "syn", "& (fin|syn|rst|ack) == syn", "& (syn|ack) == (syn|ack)", "! ack", "syn / syn,ack", "& fin == 0")
	case 15:
		return pick(g, "meta nfproto ipv4", "meta nfproto ipv6", "meta protocol ip", "meta protocol ip6", "meta nfproto != ipv4")
	case 16:
		return pick(g, "meta l4proto tcp", "meta l4proto { tcp, udp }", "ip protocol tcp", "ip6 nexthdr tcp", "meta l4proto != tcp", "exthdr frag exists", "exthdr rt missing", "rt type 0", "ip protocol != tcp", "ip6 nexthdr udp")
	case 17:
		return fmt.Sprintf("ip saddr . ip daddr %s{ %s }", g.not(), g.several(func() string { return g.address(false, true) + " . " + g.address(false, false) }))
	case 18:
		return fmt.Sprintf("ip saddr . tcp dport %s{ %s }", g.not(), g.several(func() string { return g.prefix(false, true) + " . " + g.ports("-") }))
	case 19:
		return fmt.Sprintf("ip6 daddr . tcp dport %s{ %s }", g.not(), g.several(func() string { return g.address(true, false) + " . " + g.port() }))
	case 20:
		return fmt.Sprintf("ip6 saddr . ip6 daddr . tcp dport %s{ %s }", g.not(),
			g.several(func() string { return g.prefix(true, true) + " . " + g.prefix(true, false) + " . " + g.ports("-") }))
	case 21:
		return fmt.Sprintf("iifname . oifname . ip daddr %s{ %s }", g.not(), g.several(func() string { return pick(g, "left . right", "right . left") + " . " + g.prefix(false, false) }))
	case 22:
		return "ip saddr & " + pick(g, "255.255.255.0", "0.0.0.255", "0.255.0.1", "255.0.0.0") + " " + pick(g, "== ", "!= ") + pick(g, "10.10.10.0", "0.0.0.2", "0.10.0.0", "10.0.0.0")
	case 23:
		return pick(g, "ip daddr @v4", "ip daddr != @v4", "ip6 daddr @v6", "tcp dport @p", "ip saddr . tcp dport @c", "ip saddr . ip daddr . tcp dport @ci")
	case 24:
		return pick(g, "ct direction original", "ct original ip saddr "+g.prefix(false, true), "ct original proto-dst "+g.port(), "ct status dnat", "ct status ! dnat", "ct original ip6 daddr "+g.prefix(true, false))
	case 25:
		return pick(g, "fib daddr type unicast", "fib daddr type local", "fib saddr type != unicast", "meta pkttype host", "meta pkttype broadcast", "iifgroup 0", "oifgroup 0")
	case 26: // not known beforehand
		if g.known {
			return ""
		}
		return pick(g, "meta mark 0", "meta mark and 3 == 1", "ct mark 7", "meta length < 100", "ip ttl < 3", "ip dscp cs1", "limit rate 1000/second", "meta mark { 1, 2 }", "tcp option maxseg size 1-1460", "ip saddr @dyn", "meta mark != 5", "quota over 100 mbytes", "numgen inc mod 2 0")
	case 27:
		return "ip " + pick(g, "saddr", "daddr") + " " + g.not() + pick(g, "10.10.0.0-10.10.10.66", "10.10.10.67-10.20.20.22", "10.20.20.23-10.20.128.9")
	case 28:
		return fmt.Sprintf("tcp sport . tcp dport %s{ %s }", g.not(), g.several(func() string { return g.ports("-") + " . " + g.ports("-") }))
	}
	return "counter"
}

func (g *grammar) verdict(depth int) string {
	switch g.IntN(12) {
	case 0, 1, 2:
		return "accept"
	case 3, 4:
		return "drop"
	case 5:
		return "reject"
	case 6:
		return "return"
	case 7:
		return pick(g, "counter", "log", "meta mark set 1", "ct mark set 2", "continue", "notrack")
	case 8:
		return pick(g, "reject with icmpx admin-prohibited", "drop")
	}
	if depth < 3 {
		return fmt.Sprintf("%s c%d", pick(g, "jump", "jump", "goto"), depth+1+g.IntN(3-depth))
	}
	return "counter"
}

func (g *grammar) vmap(depth int) string {
	terminal := func() string {
		v := "counter"
		for strings.ContainsAny(v, " ") && !strings.HasPrefix(v, "jump") && !strings.HasPrefix(v, "goto") || v == "counter" || v == "log" || v == "reject" || v == "notrack" {
			v = g.verdict(depth)
		}
		return v
	}
	unique := func(key func() string) string {
		seen := map[string]bool{}
		var all []string
		for range 1 + g.IntN(4) {
			if k := key(); !seen[k] {
				seen[k] = true
				all = append(all, k+" : "+terminal())
			}
		}
		if g.IntN(4) == 0 {
			all = append(all, "* : "+terminal())
		}
		return "vmap { " + strings.Join(all, ", ") + " }"
	}
	switch g.IntN(7) {
	case 0:
		return "tcp dport " + unique(g.port)
	case 1:
		return "ip saddr " + unique(func() string { return g.address(false, true) })
	case 2:
		return "ip6 daddr " + unique(func() string { return g.address(true, false) })
	case 3:
		return "ip daddr . tcp dport " + unique(func() string { return g.address(false, false) + " . " + g.port() })
	case 4:
		return "ip saddr " + unique(func() string { return pick(g, "10.10.0.0/24", "10.10.10.64/26", "10.10.10.128-10.10.255.255") })
	case 5:
		return "iifname . tcp dport " + unique(func() string { return pick(g, "left", "right") + " . " + g.port() })
	}
	return "ct state " + unique(func() string { return pick(g, "new", "established", "invalid") })
}

func (g *grammar) rule(depth int) string {
	g.six = g.IntN(2) == 0
	if g.IntN(6) == 0 {
		return g.vmap(depth)
	}
	var words []string
	for range pick(g, 0, 1, 1, 1, 2, 2, 3) {
		words = append(words, g.match())
	}
	return strings.Join(append(words, g.verdict(depth)), " ")
}

// nftables are the lines of a ruleset of one or two tables. nft does not take all rules.
func (g *grammar) nftables() (lines []string) {
	add := func(format string, a ...any) { lines = append(lines, "add "+fmt.Sprintf(format, a...)) }
	for i := range 1 + g.IntN(2) {
		table := fmt.Sprintf("inet t%d", i)
		add("table %s", table)
		add("set %s v4 { type ipv4_addr; flags interval; auto-merge; elements = { %s }; }", table, g.several(func() string { return g.prefix(false, false) }))
		add("set %s v6 { type ipv6_addr; flags interval; auto-merge; elements = { %s }; }", table, g.several(func() string { return g.prefix(true, false) }))
		add("set %s p { type inet_service; elements = { %s }; }", table, g.several(g.port))
		add("set %s c { type ipv4_addr . inet_service; elements = { %s }; }", table, g.several(func() string { return g.address(false, true) + " . " + g.port() }))
		add("set %s ci { type ipv4_addr . ipv4_addr . inet_service; flags interval; elements = { %s . %s . %s }; }", table, g.prefix(false, true), g.prefix(false, false), g.ports("-"))
		add("set %s dyn { type ipv4_addr; flags dynamic,timeout; timeout 1h; elements = { 10.10.0.2 }; }", table)
		chains := []string{"c3", "c2", "c1", "f0", "f1"}[:4+g.IntN(2)]
		for _, chain := range chains {
			hook := ""
			if chain[0] == 'f' {
				hook = fmt.Sprintf("{ type filter hook forward priority %d; policy %s; }", g.IntN(200)-100, pick(g, "accept", "accept", "drop"))
			}
			add("chain %s %s %s", table, chain, hook)
		}
		for _, chain := range chains {
			depth := 0
			if chain[0] == 'c' {
				depth = int(chain[1] - '0')
			}
			for range 1 + g.IntN(5) {
				add("rule %s %s %s", table, chain, g.rule(depth))
			}
		}
	}
	return lines
}

// xtMatch is a match of iptables.
func (g *grammar) xtMatch(six bool) string {
	inv := g.maybe("! ")
	switch g.IntN(16) {
	case 0, 1:
		return inv + "-s " + g.prefix(six, true)
	case 2, 3:
		return inv + "-d " + g.prefix(six, false)
	case 4:
		return inv + pick(g, "-i left", "-i right", "-i le+")
	case 5:
		return inv + pick(g, "-o right", "-o left", "-o r+")
	case 6, 7:
		return "-p tcp -m tcp " + inv + pick(g, "--dport ", "--dport ", "--sport ") + g.ports(":")
	case 8:
		return "-p tcp -m tcp " + inv + pick(g, "--syn", "--tcp-flags ALL SYN", "--tcp-flags SYN,RST RST")
	case 9:
		return "-p tcp -m multiport " + inv + pick(g, "--dports ", "--sports ", "--ports ") + strings.ReplaceAll(g.several(func() string { return g.ports(":") }), ", ", ",")
	case 10:
		return "-m conntrack " + inv + "--ctstate " + pick(g, "NEW", "RELATED,ESTABLISHED", "INVALID", "DNAT", "NEW,UNTRACKED")
	case 11:
		return "-m state " + inv + "--state " + pick(g, "NEW", "RELATED,ESTABLISHED")
	case 12:
		if six {
			return "-m iprange " + inv + pick(g, "--src-range fd10::3-fd10::66", "--dst-range fd20::1-fd20::22")
		}
		return "-m iprange " + inv + pick(g, "--src-range 10.10.0.3-10.10.10.127", "--dst-range 10.20.0.0-10.20.20.22")
	case 13:
		if six {
			return "-p " + pick(g, "tcp", "udp", "ipv6-icmp")
		}
		return inv + "-p " + pick(g, "tcp", "udp", "icmp")
	case 14:
		return pick(g, "-m addrtype --dst-type UNICAST", "-m addrtype --dst-type LOCAL", "-m addrtype ! --dst-type LOCAL", "-m pkttype --pkt-type unicast", "-m comment --comment x",
			"-m conntrack --ctorigdstport 80 -p tcp", "-m conntrack --ctdir ORIGINAL", map[bool]string{true: "-m rt --rt-type 0", false: "-m conntrack --ctorigsrc 10.10.0.0/24"}[six], "-m conntrack --ctproto 6", "-m conntrack ! --ctstatus SEEN_REPLY")
	}
	if g.known {
		return ""
	}
	return pick(g, "-m mark --mark 1", "-m mark ! --mark 1/3", "-m limit --limit 1000/s", "-m length --length 0:100", "-m connmark --mark 4", "-m statistic --mode nth --every 2 --packet 0")
}

func (g *grammar) xtables(six bool) string {
	var b strings.Builder
	for _, table := range []string{"mangle", "filter"} {
		if table == "mangle" && g.IntN(2) == 0 {
			continue
		}
		fmt.Fprintf(&b, "*%s\n:FORWARD %s [0:0]\n:c1 - [0:0]\n:c2 - [0:0]\n:c3 - [0:0]\n", table, pick(g, "ACCEPT", "DROP"))
		for depth, chain := range []string{"FORWARD", "c1", "c2", "c3"} {
			for range 1 + g.IntN(5) {
				words := []string{"-A", chain}
				protocol := false
				for range pick(g, 0, 1, 1, 2, 2) {
					m := g.xtMatch(six)
					if m == "" {
						continue
					}
					if strings.Contains(m, "-p ") {
						if protocol {
							continue
						}
						protocol = true
					}
					words = append(words, m)
				}
				if hasTwice(words) {
					words = words[:3]
				}
				target := pick(g, "-j ACCEPT", "-j ACCEPT", "-j DROP", "-j RETURN", "-j LOG", "", "jump", "jump", "goto")
				if target == "-j DROP" && table == "filter" && !protocol && g.IntN(2) == 0 {
					target = "-j REJECT"
				}
				if target == "jump" || target == "goto" {
					if depth == 3 {
						target = ""
					} else {
						target = fmt.Sprintf("%s c%d", map[string]string{"jump": "-j", "goto": "-g"}[target], depth+1+g.IntN(3-depth))
					}
				}
				b.WriteString(strings.Join(append(words, target), " ") + "\n")
			}
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

// hasTwice: iptables takes -s and the like once.
func hasTwice(words []string) bool {
	seen := map[string]bool{}
	for _, w := range words[2:] {
		for _, option := range []string{"-s ", "-d ", "-i ", "-o "} {
			if strings.HasPrefix(strings.TrimPrefix(w, "! "), option) {
				if seen[option] {
					return true
				}
				seen[option] = true
			}
		}
	}
	return false
}

// TestRandom loads random rulesets and holds the verdicts on random connections against
// what their packets meet.
func TestRandom(t *testing.T) {
	s := newSite(t)
	for _, kind := range []struct {
		name  string
		seed  uint64
		load  func(g *grammar) string
		clear string
	}{
		{"nftables", 1, func(g *grammar) string {
			lines := g.nftables()
			s.run(`for line; do nft "$line" 2>/dev/null || true; done`, lines...)
			return s.run("nft -a list ruleset")
		}, "nft flush ruleset"},
		{"iptables-nft", 2, func(g *grammar) string {
			four, six := g.xtables(false), g.xtables(true)
			s.load("iptables-restore", four)
			s.load("ip6tables-restore", six)
			return four + six
		}, "nft flush ruleset"},
		{"iptables-legacy", 3, func(g *grammar) string {
			four, six := g.xtables(false), g.xtables(true)
			s.load("iptables-legacy-restore", four)
			s.load("ip6tables-legacy-restore", six)
			return four + six
		}, "for p in iptables ip6tables; do for t in mangle filter; do $p-legacy -t $t -P FORWARD ACCEPT; $p-legacy -t $t -F; $p-legacy -t $t -X; done; done"},
	} {
		t.Run(kind.name, func(t *testing.T) {
			s.t = t
			told, all, passed := 0, 0, 0
			for i := range *rulesets {
				g := &grammar{Rand: rand.New(rand.NewPCG(kind.seed, *seed+uint64(i))), known: i%2 == 0}
				rules := kind.load(g)
				connections := g.connections(10)
				n, passes := s.judge(connections)
				told, all, passed = told+n, all+len(connections), passed+passes
				if g.known && n < len(connections) {
					t.Errorf("of %d connections the verdict tells %d, though nothing is unknown", len(connections), n)
				}
				s.broad(g, connections)
				if t.Failed() {
					t.Fatalf("ruleset %d:\n%s", i, rules)
				}
				s.run(kind.clear)
			}
			t.Logf("%d rulesets, %d connections: %d pass, %d verdicts are certain", *rulesets, all, passed, told)
			if told < all/2 || passed < all/5 || passed > all*4/5 {
				t.Errorf("of %d connections %d pass, and the verdict tells %d: the rules test little", all, passed, told)
			}
		})
	}
}

func (s *site) load(command, rules string) {
	s.t.Helper()
	if rules == "" {
		return
	}
	s.run(`printf '%s' "$1" | `+command, rules)
}
