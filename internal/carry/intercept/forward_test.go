package intercept

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"longhaul/internal/sys/netfilter"
	"longhaul/internal/words/portrange"
	"longhaul/lab/linktest"
	"longhaul/test/nettest"
)

// TestForwardRules holds the verdicts on tunnels against what the first packets of
// connections meet, beside real firewalls. There is no relay.
func TestForwardRules(t *testing.T) {
	nettest.RequireRoot(t) // to see the first packets: see hold
	for _, tt := range []struct {
		name    string
		prepare func(s *site)
		want    map[string]string // the verdict on the broad tunnel, by family
	}{
		{"firewalld", func(s *site) {
			firewall := s.firewalld()
			firewall(`set -e; f="firewall-cmd --permanent"; $f --zone=internal --change-interface=left; $f --zone=external --change-interface=right
				$f --zone=external --remove-masquerade; $f --new-policy=over; $f --policy=over --add-ingress-zone=internal; $f --policy=over --add-egress-zone=external
				$f --policy=over --set-target=ACCEPT
				$f --policy=over --add-rich-rule='rule family=ipv4 source address=10.10.10.66 destination address=10.20.20.22 port port=80 protocol=tcp reject'
				$f --policy=over --add-rich-rule='rule family=ipv4 source address=10.10.10.64/26 destination address=10.20.20.23 port port=440-443 protocol=tcp drop'
				$f --policy=over --add-rich-rule='rule family=ipv6 source address=fd10::66 port port=80 protocol=tcp drop'; firewall-cmd --reload`)
		}, map[string]string{
			"ipv4": "partly rejected: 10.10.10.66:* > 10.20.20.22:80 by rule ",
			"ipv6": "partly rejected: [fd10::66]:* > [fd20::1]:80 by rule ",
		}},
		{"firewalld installed", func(s *site) {
			firewall := s.firewalld()
			firewall("firewall-cmd --permanent --zone=internal --change-interface=left; firewall-cmd --reload")
		}, map[string]string{
			"ipv4": "rejected by rule ", "ipv6": "rejected by rule ",
		}},
		{"ufw", func(s *site) {
			ufw := s.ufw()
			ufw(`ufw default deny routed
				ufw route reject from 10.10.10.66 to 10.20.20.22 port 80 proto tcp
				ufw route allow in on left out on right from 10.10.0.0/16 to 10.20.20.22 port 80,443 proto tcp
				ufw route allow from 10.10.0.0/24 to 10.20.20.23
				ufw route allow from fd10::/120 to fd20::22 port 80:81 proto tcp; ufw --force enable`)
		}, map[string]string{
			"ipv4": "partly rejected: ", "ipv6": "partly rejected: ",
		}},
		{"Docker", func(s *site) {
			s.docker()
			s.run(`iptables -P FORWARD DROP
				iptables -I DOCKER-USER 1 -i left -s 10.10.10.66 -d 10.20.20.22 -p tcp --dport 80 -j REJECT
				iptables -I DOCKER-USER 2 -i left -o right ! -s 10.10.0.0/24 -p tcp -m multiport --dports 79:81,443 -j ACCEPT
				iptables -I DOCKER-USER 3 -i left -d 10.20.20.23 -m conntrack --ctstate NEW -j ACCEPT
				ip6tables -A FORWARD -s fd10::66 -p tcp ! --dport 80 -j DROP`)
		}, map[string]string{
			"ipv4": "partly rejected: 10.10.10.66:* > 10.20.20.22:80 by rule 1 (handle ", "ipv6": "partly rejected: [fd10::66]:* > [fd20::1]:1 by rule ",
		}},
		{"nftables, default drop", func(s *site) {
			s.nft(`table inet filter { chain forward { type filter hook forward priority filter; policy drop
				ct state vmap { established : accept, related : accept, invalid : drop }
				iifname "left" oifname "right" ip saddr 10.10.0.0/24 tcp dport { 80, 443 } accept
				ip saddr 10.10.10.0/25 ip daddr 10.20.20.22 accept
				ip6 saddr fd10::/124 ip6 daddr fd20::20-fd20::2f tcp dport != 443 accept
				meta nfproto ipv6 reject with icmpv6 admin-prohibited
				}
			}`)
		}, map[string]string{
			"ipv4": "partly rejected: ", "ipv6": "partly rejected: ",
		}},
		{"iptables-legacy", func(s *site) {
			nettest.RequireProgram(s.t, "iptables-legacy", "iptables")
			s.run(`iptables-legacy -A FORWARD -s 10.10.0.0/24 -j ACCEPT
				iptables-legacy -A FORWARD -i left -s 10.10.10.66 -d 10.20.20.22 -p tcp --dport 80 -j REJECT
				iptables-legacy -N clients; iptables-legacy -A FORWARD -i lef+ -g clients
				iptables-legacy -A clients -m iprange --dst-range 10.20.20.0-10.20.20.22 -j RETURN
				iptables-legacy -A clients -p tcp -m multiport --dports 80:443 -m conntrack --ctstate NEW -j DROP
				ip6tables-legacy -P FORWARD DROP; ip6tables-legacy -A FORWARD -p tcp --syn -d fd20::22 ! -s fd10::66 -j ACCEPT
				ip6tables-legacy -t mangle -A FORWARD -p tcp --dport 443 -j DROP`)
		}, map[string]string{
			"ipv4": "partly rejected: 10.10.10.66:* > 10.20.20.22:80 by rule 2 of FORWARD of iptables-legacy's table filter",
			"ipv6": "partly rejected: [fd10::1]:* > [fd20::1]:443 by rule 1 of FORWARD of ip6tables-legacy's table mangle",
		}},
		{"nftables, maps and sets", func(s *site) {
			s.needsNFT("* in maps, as Linux 5.13 has", `table inet asks { chain asks { tcp dport vmap { 1 : drop, * : continue }; }; }`)
			s.nft(`table inet filter {
				set clients { type ipv4_addr; flags interval; elements = { 10.10.0.0/28, 10.10.10.60-10.10.10.66 } }
				set pairs { type ipv4_addr . ipv4_addr . inet_service; flags interval; elements = { 10.10.10.0/24 . 10.20.20.22 . 80-81, 10.10.0.2 . 10.20.20.0/24 . 443 } }
				map by { type ipv4_addr . inet_service : verdict; elements = { 10.20.20.23 . 80 : drop, 10.20.20.22 . 443 : jump most } }
				chain most { ip saddr != @clients drop; ip saddr 10.10.0.2 return; accept; }
				chain v6 { ip6 saddr . tcp dport vmap { fd10::66 . 80 : accept, fd10::2 . 443 : goto end, * : continue }; ip6 daddr & ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe == fd20::22 drop; }
				chain end { tcp dport 443 drop; }
				chain forward { type filter hook forward priority 0
					meta nfproto vmap { ipv6 : jump v6 }
					ip saddr . ip daddr . tcp dport @pairs reject
					ip daddr . tcp dport vmap @by
				}
			}`)
		}, map[string]string{
			"ipv4": "partly rejected: ", "ipv6": "partly rejected: ",
		}},
		{"matches that depend on the packet", func(s *site) {
			s.nft(`table inet filter { chain forward { type filter hook forward priority 0; policy drop; meta mark 7 drop; tcp dport 1-60000 accept; limit rate 5/second accept; }; }`)
		}, map[string]string{
			"ipv4": "cannot tell: rule 1 (handle 2) of the nftables chain inet filter forward depends on the mark of the packet",
			"ipv6": "cannot tell: rule 1 (handle 2) of the nftables chain inet filter forward depends on the mark of the packet",
		}},
		{"nothing", func(*site) {}, map[string]string{"ipv4": "accepted", "ipv6": "accepted"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			nettest.RequireProgram(t, "ip", "iproute2")
			s.run(`ip route add 10.10.0.0/16 via 10.9.1.2; ip route add 10.20.0.0/16 via 10.9.2.2
				ip -6 route add fd10::/16 via fd09:1::2; ip -6 route add fd20::/16 via fd09:2::2`)
			tt.prepare(s)
			s.hold(tt.want)
		})
	}
}

// hold makes 20 connections and looks at the verdicts on tunnels that have just one of
// them, and on the tunnel with all of them.
func (s *site) hold(want map[string]string) {
	s.t.Helper()
	var all []linktest.SYN
	for _, of := range []struct {
		clients, targets string
		ports            []uint16
	}{
		{"10.10.0.2 10.10.10.66", "10.20.20.22 10.20.20.23", []uint16{80, 82, 443}}, {"fd10::2 fd10::66", "fd20::22 fd20::23", []uint16{80, 443}},
	} {
		for client := range strings.FieldsSeq(of.clients) {
			for target := range strings.FieldsSeq(of.targets) {
				for _, port := range of.ports {
					all = append(all, linktest.SYN{
						From: netip.AddrPortFrom(netip.MustParseAddr(client), 40000), To: netip.AddrPortFrom(netip.MustParseAddr(target), port),
					})
				}
			}
		}
	}
	syns := linktest.NewSYNs(s.t, s.Row)
	passed := syns.Passing(all)
	o := Options{Relay: "test", Dialers: []Dialer{dialer()}}
	for i, c := range all {
		o.Tunnels = append(o.Tunnels, Tunnel{
			Name: fmt.Sprint(i), Interface: "left", From: single(c.From.Addr()), To: single(c.To.Addr()),
			Ports: []portrange.Range{{First: c.To.Port(), Last: c.To.Port()}},
		})
	}
	o.Tunnels = append(o.Tunnels, Tunnel{Name: "all", Interface: "left", From: prefixes("10.10.0.0/16", "fd10::/16"), To: prefixes("10.20.0.0/16", "fd20::/16")})
	var verdicts []ForwardVerdict
	must(s.t, s.on(func(h *Host) (err error) {
		verdicts, err = h.ForwardRules(o)
		return err
	}))
	if len(verdicts) != len(all)+2 {
		s.t.Fatalf("%d verdicts on %d tunnels", len(verdicts), len(all)+1)
	}
	for i, c := range all {
		v := verdicts[i]
		if v.Outcome == netfilter.CannotTell && strings.HasPrefix(want[v.Family], "cannot tell") {
			continue
		}
		if expected := map[bool]netfilter.Outcome{true: netfilter.Accepted, false: netfilter.Rejected}[passed[c]]; v.Outcome != expected {
			s.t.Errorf("%v: the verdict is %q, and it passes: %v", c, v, passed[c])
		}
	}
	for _, v := range verdicts[len(all):] {
		if !strings.HasPrefix(v.String(), want[v.Family]) {
			s.t.Errorf("the verdict on all of %s is %q, want %q", v.Family, v, want[v.Family])
		}
		s.t.Logf("%s: %s; %s", v.Family, v, v.Show)
		if v.Show != "" {
			s.run(v.Show)
		}
		if v.Outcome == netfilter.PartlyRejected {
			e := v.Example
			example := linktest.SYN{From: netip.AddrPortFrom(e.From, max(e.FromPort, 40001)), To: netip.AddrPortFrom(e.To, e.ToPort)}
			if syns.Passing([]linktest.SYN{example})[example] {
				s.t.Errorf("the example of %q passes", v)
			}
		}
	}
}

func single(a netip.Addr) []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}
}

// TestLegacyInput: the input chains of iptables-legacy are seen, and the remedy works.
func TestLegacyInput(t *testing.T) {
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock")) // that of /run is root's
	s := newSite(t)
	nettest.RequireProgram(t, "iptables-legacy", "iptables")
	s.run("iptables-legacy -P INPUT DROP; iptables-legacy -A INPUT -p tcp --dport 22 -j ACCEPT; ip6tables-legacy -t mangle -A INPUT -i left -p tcp -j DROP")
	o := options()
	for _, want := range []string{
		"INPUT of iptables-legacy's table filter drops connections that tunnel to-b intercepts; iptables-legacy -I INPUT ",
		"INPUT of ip6tables-legacy's table mangle drops connections that tunnel to-b intercepts; ip6tables-legacy -t mangle -I INPUT ",
	} {
		said := s.check(o)
		if !strings.HasPrefix(said, want) {
			t.Fatalf("the check says %q, want %q", said, want)
		}
		_, command, _ := strings.Cut(said, "; ")
		s.run(command)
	}
	s.works(o)
}
