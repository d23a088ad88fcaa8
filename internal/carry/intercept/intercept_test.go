package intercept

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"longhaul/internal/sys/ledger"
	"longhaul/internal/words/portrange"
	"longhaul/internal/words/remedy"
	"longhaul/lab/hosts"
	"longhaul/test/nettest"
)

// TestIntercepts: connections go by the relay while it listens, and directly without it;
// everything else passes.
func TestIntercepts(t *testing.T) {
	s := newSite(t)
	o := options()
	s.expect(direct, 5000)
	s.set(o)
	s.expect(direct, 5000)
	stop := s.relay(o.Tunnels[0])
	s.expect(byRelay, 5000)
	s.expect(direct, 5001)
	s.expectDatagrams(100)
	s.expectDatagrams(4000) // in fragments

	o.Tunnels[0].Paused = true
	s.set(o)
	s.expect(direct, 5000)
	o.Tunnels[0].Paused = false
	s.set(o)
	s.expect(byRelay, 5000)
	var shown []Status
	must(t, s.on(func(h *Host) (err error) {
		shown, err = h.Show()
		return err
	}))
	if len(shown) != 1 || shown[0].Problem != "" || shown[0].HasEnded() || len(shown[0].Tunnels) != 1 || shown[0].Tunnels[0].Connections != 4 || shown[0].Tunnels[0].Bypassed != 2 {
		t.Errorf("shown: %+v", shown)
	}
	stop()
	s.expect(direct, 5000)
	must(t, s.on(func(h *Host) error { return h.Clear("test") }))
	s.expect(direct, 5000)
}

// expectDatagrams sends a datagram of that size to the target, which comes back.
func (s *site) expectDatagrams(size int) {
	s.t.Helper()
	for _, target := range targets {
		var c net.Conn
		must(s.t, s.A.Do(func() (err error) {
			c, err = net.Dial("udp", net.JoinHostPort(target, "5000"))
			return err
		}))
		must(s.t, c.SetDeadline(time.Now().Add(patience)))
		sent, back := bytes.Repeat([]byte{7}, size), make([]byte, size+1)
		_, err := c.Write(sent)
		n := 0
		if err == nil {
			n, err = c.Read(back)
		}
		if err != nil || !bytes.Equal(back[:n], sent) {
			s.t.Errorf("a datagram of %d bytes to %s: %d came back, %v", size, target, n, err)
		}
		c.Close()
	}
}

// TestEstablishedStays: a standing connection of the relay outlives a pause, and a
// standing direct connection the beginning of interception.
func TestEstablishedStays(t *testing.T) {
	s := newSite(t)
	o := options()
	defer s.relay(o.Tunnels[0])()
	talk := func() func() {
		conn, err := s.A.DialTCP(t.Context(), netip.MustParseAddrPort("10.9.2.2:5000"), patience)
		must(t, err)
		t.Cleanup(func() { conn.Close() })
		must(t, conn.SetDeadline(time.Now().Add(patience)))
		b := make([]byte, 100)
		_, err = conn.Read(b)
		must(t, err)
		return func() {
			t.Helper()
			_, err := conn.Write([]byte("x"))
			must(t, err)
			n, err := conn.Read(b)
			if err != nil || n != 1 {
				t.Errorf("%d bytes, %v", n, err)
			}
		}
	}
	unrelayed := talk()
	s.set(o)
	unrelayed()
	relayed := talk()
	relayed()
	if n := s.relayed.Load(); n != 1 {
		t.Errorf("%d connections by the relay, want 1", n)
	}
	o.Tunnels[0].Paused = true
	s.set(o)
	relayed()
	unrelayed()
}

// TestDialer: a relay that intercepts nothing dials from the client's address, on a host
// that forwards nothing else. Firewalls for the answers of known connections let it.
func TestDialer(t *testing.T) {
	s := newSite(t)
	must(t, s.R.Sysctl("net.ipv4.ip_forward", "0"))
	must(t, s.R.Sysctl("net.ipv6.conf.all.forwarding", "0"))
	before := s.state()
	s.nft(`table inet fw {
		chain in { type filter hook input priority 0; policy drop; ct state established,related accept; ip6 nexthdr icmpv6 accept; }
	}`)
	o := Options{Relay: "test", Dialers: []Dialer{dialer()}}
	must(t, s.on(func(h *Host) error { return h.Check(o) }))
	s.set(o)
	for i, target := range targets {
		client := &net.TCPAddr{IP: net.ParseIP([]string{"10.9.1.2", "fd09:1::2"}[i]), Port: 4444}
		c, err := s.dialFrom(client, net.JoinHostPort(target, "5000"), patience)
		must(t, err)
		must(t, c.SetDeadline(time.Now().Add(patience)))
		must(t, c.CloseWrite())
		all, err := io.ReadAll(c)
		if want := client.String() + "\n"; err != nil || string(all) != want {
			t.Errorf("the target at %s sees %q, %v; want %q", target, all, err, want)
		}
		c.Close()
	}
	var shown []Status
	must(t, s.on(func(h *Host) (err error) {
		shown, err = h.Show()
		return err
	}))
	if len(shown) != 1 || shown[0].Problem != "" || len(shown[0].Tunnels) != 0 || len(shown[0].Dialers) != 1 || shown[0].Dialers[0].Connections != 2 {
		t.Errorf("shown: %+v", shown)
	}
	must(t, s.on(func(h *Host) error { return h.Clear("test") }))
	s.run("nft delete table inet fw")
	if after := s.state(); after != before {
		t.Errorf("left\n%s", after)
	}
}

// TestManyPorts: with more ports than the first rules compare one by one, all are
// intercepted.
func TestManyPorts(t *testing.T) {
	s := newSite(t)
	o := options()
	o.Tunnels[0].Ports = []portrange.Range{{First: 22, Last: 22}, {First: 4000, Last: 5000}}
	s.set(o)
	defer s.relay(o.Tunnels[0])()
	s.expect(byRelay, 5000)
	s.expect(direct, 5001)
}

// TestBesideFirewalls: interception works beside what firewalls and routers have.
func TestBesideFirewalls(t *testing.T) {
	for _, tt := range []struct{ name, rules string }{
		{"invalid packets are dropped", `table inet fw {
			chain in { type filter hook input priority 0; ct state invalid counter drop; }
			chain through { type filter hook forward priority 0; ct state invalid counter drop; }
			chain out { type filter hook output priority 0; ct state invalid counter drop; }
		}`},
		{"policy drop", `table inet fw {
			chain in { type filter hook input priority 0; policy drop; ct state invalid counter drop; ct state established,related accept; meta mark and 0x1000 == 0x1000 accept; ip6 nexthdr icmpv6 accept; }
			chain through { type filter hook forward priority 0; policy drop; ct state invalid drop; ct state established,related accept; iifname "left" accept; ip6 nexthdr icmpv6 accept; }
		}`},
		{"as firewalld filters reverse paths", `table inet firewalld {
			chain filter_PREROUTING { type filter hook prerouting priority filter + 10; icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept; meta nfproto ipv6 fib saddr . mark . iif oif missing drop; }
			chain filter_INPUT { type filter hook input priority filter + 10; ct state { established, related } accept; iifname "lo" accept; iifname "left" accept; ct state invalid drop; ip6 nexthdr icmpv6 accept; reject with icmpx admin-prohibited; }
		}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.nft(tt.rules)
			o := options()
			must(t, s.on(func(h *Host) error { return h.Check(o) }))
			s.set(o)
			stop := s.relay(o.Tunnels[0])
			s.expect(byRelay, 5000)
			if list := s.run("nft list ruleset"); strings.Contains(strings.ReplaceAll(list, "counter packets 0", ""), "counter packets") && tt.name == "invalid packets are dropped" {
				t.Errorf("packets were dropped as invalid:\n%s", list)
			}
			stop()
			s.expect(direct, 5000)
		})
	}
}

// TestMasquerade: addresses are translated as for a direct connection.
func TestMasquerade(t *testing.T) {
	s := newSite(t)
	s.nft(`table inet nat { chain post { type nat hook postrouting priority srcnat; oifname "right" masquerade; }; chain in { type filter hook input priority 0; ct state invalid counter drop; }; }`)
	s.set(options())
	defer s.relay(options().Tunnels[0])()
	for target, router := range map[string]string{"10.9.2.2": "10.9.2.1", "fd09:2::2": "fd09:2::1"} {
		_, peer, err := s.exchange(target, 5000, 1<<20)
		if host, _, _ := net.SplitHostPort(peer); err != nil || host != router {
			t.Errorf("the target sees %s, %v", peer, err)
		}
	}
	if n := s.relayed.Load(); n != 2 {
		t.Errorf("%d connections by the relay, want 2", n)
	}
}

// TestPathMTU: the relay's connection learns from ICMP that the path is narrower than both
// ends assume. The router that says so writes to the client, whose address the packets
// have.
func TestPathMTU(t *testing.T) {
	s := newSite(t)
	s.nft(`table inet fw { chain in { type filter hook input priority 0; ct state invalid counter drop; }; }`)
	narrow, far := newHost(t, "narrow"), newHost(t, "far")
	must(t, hosts.Cable(s.R, "wan", narrow, "near", 1500))
	must(t, hosts.Cable(narrow, "far", far, "eth0", 1500))
	must(t, narrow.MTU("far", 1300))
	for _, a := range []struct {
		host            *hosts.Host
		device, address string
		to, via         string
	}{
		{s.R, "wan", "10.9.3.1/24", "10.9.4.0/24", "10.9.3.2"}, {s.R, "wan", "fd09:3::1/64", "fd09:4::/64", "fd09:3::2"},
		{narrow, "near", "10.9.3.2/24", "0.0.0.0/0", "10.9.3.1"}, {narrow, "near", "fd09:3::2/64", "::/0", "fd09:3::1"},
		{narrow, "far", "10.9.4.1/24", "", ""}, {narrow, "far", "fd09:4::1/64", "", ""},
		{far, "eth0", "10.9.4.2/24", "0.0.0.0/0", "10.9.4.1"}, {far, "eth0", "fd09:4::2/64", "::/0", "fd09:4::1"},
	} {
		must(t, a.host.Address(a.device, netip.MustParsePrefix(a.address)))
		if a.to != "" {
			must(t, a.host.Route(hosts.Route{To: netip.MustParsePrefix(a.to), Via: netip.MustParseAddr(a.via)}))
		}
	}
	must(t, narrow.Sysctl("net.ipv4.ip_forward", "1"))
	must(t, narrow.Sysctl("net.ipv6.conf.all.forwarding", "1"))
	o := options()
	o.Tunnels[0].To = prefixes("10.9.4.0/24", "fd09:4::/64")
	s.set(o)
	defer s.relay(o.Tunnels[0])()
	for _, address := range []string{"10.9.4.2:5000", "[fd09:4::2]:5000"} {
		var l net.Listener
		must(t, far.Do(func() (err error) {
			l, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
			return err
		}))
		s.accept(l, func(c *net.TCPConn) {
			n, _ := io.Copy(io.Discard, c)
			fmt.Fprint(c, n)
		})
		conn, err := s.A.DialTCP(t.Context(), netip.MustParseAddrPort(address), patience)
		must(t, err)
		t.Cleanup(func() { conn.Close() })
		must(t, conn.SetDeadline(time.Now().Add(patience)))
		_, err = conn.Write(make([]byte, 1<<20))
		must(t, err)
		must(t, conn.CloseWrite())
		if got, err := io.ReadAll(conn); err != nil || string(got) != fmt.Sprint(1<<20) {
			t.Errorf("%s got %q, %v\n%s", address, got, err, s.run("nft list ruleset"))
		}
	}
	if n := s.relayed.Load(); n != 2 {
		t.Errorf("%d connections by the relay, want 2", n)
	}
}

func newHost(t *testing.T, name string) *hosts.Host {
	h, err := hosts.New(name)
	must(t, err)
	t.Cleanup(h.Close)
	return h
}

// TestOwnAddresses: connections to the router itself are not intercepted, and its own
// servers keep their connection tracking.
func TestOwnAddresses(t *testing.T) {
	s := newSite(t)
	s.nft(`table inet fw { chain in { type filter hook input priority 0; ct state invalid counter drop; }; }`)
	l, err := s.R.ListenTCP(t.Context(), 5002)
	must(t, err)
	s.accept(l, func(c *net.TCPConn) { fmt.Fprintf(c, "%s\n", c.RemoteAddr()) })
	s.set(options())
	defer s.relay(options().Tunnels[0])()
	if _, _, err := s.exchange("10.9.2.1", 5002, 0); err != nil {
		t.Error(err)
	}
	if n := s.relayed.Load(); n != 0 {
		t.Errorf("%d connections by the relay, want 0", n)
	}
}

// TestCollisions: each gives one sentence and a remedy, before anything is changed.
func TestCollisions(t *testing.T) {
	s := newSite(t)
	nettest.RequireProgram(t, "nft", "nftables")
	nettest.RequireProgram(t, "ip", "iproute2")
	before := s.state()
	for _, tt := range []struct {
		name, prepare, undo string
		change              func(*Options)
		want                string
	}{
		{name: "nothing", want: ""},
		{name: "no such interface", change: func(o *Options) { o.Tunnels[0].Interface = "lan9" },
			want: "tunnel to-b intercepts at lan9: no such interface; see ip link"},
		{name: "the other interface", change: func(o *Options) { o.Tunnels[0].Interface = "right" },
			want: "tunnel to-b intercepts at right, but the route to its clients in 10.9.1.0/24 goes by left; intercept at left"},
		{name: "two bits", change: func(o *Options) { o.Mark = 3 }, want: "the mark 0x3 is not one bit; use one such as 0x1000"},
		{name: "forwarding", prepare: "sysctl -qw net.ipv4.ip_forward=0", undo: "sysctl -qw net.ipv4.ip_forward=1",
			want: "net.ipv4.ip_forward is 0: without forwarding no connection passes while the relay is down; sysctl -w net.ipv4.ip_forward=1"},
		{name: "marks in reverse lookups", prepare: "sysctl -qw net.ipv4.conf.all.src_valid_mark=1", undo: "sysctl -qw net.ipv4.conf.all.src_valid_mark=0",
			want: "net.ipv4.conf.all.src_valid_mark is 1, as wg-quick sets it"},
		{name: "a bridge calls iptables", prepare: "ip link add br0 type bridge; sysctl -qw net.bridge.bridge-nf-call-iptables=1",
			undo: "ip link del br0", change: atBridge,
			want: "net.bridge.bridge-nf-call-iptables is 1, and tunnel to-b intercepts at the bridge br0: nobody would get its connections; sysctl -w net.bridge.bridge-nf-call-iptables=0"},
		{name: "one bridge calls ip6tables", prepare: "sysctl -qw net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0; ip link add br0 type bridge nf_call_ip6tables 1",
			undo: "ip link del br0", change: atBridge,
			want: "nf_call_ip6tables of br0 is 1, and tunnel to-b intercepts at the bridge br0: nobody would get its connections; ip link set br0 type bridge nf_call_ip6tables 0"},
		{name: "a bridge", prepare: "ip link add br0 type bridge; sysctl -qw net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0",
			undo: "ip link del br0", change: atBridge},
		{name: "a rule has the mark", prepare: "ip rule add pref 99 fwmark 0x3000/0x3000 lookup main", undo: "ip rule del pref 99",
			want: "the routing rule of priority 99 uses the mark 0x1000; choose another bit"},
		{name: "a rule has other bits", prepare: "ip rule add pref 99 fwmark 0xca6c lookup 51820", undo: "ip rule del pref 99"},
		{name: "a rule has the table", prepare: "ip -6 rule add pref 99 from fd09:1::2 lookup 1812", undo: "ip -6 rule del pref 99",
			want: "the routing rule of priority 99 looks up table 1812; choose another table"},
		{name: "the table has routes", prepare: "ip route add 10.77.0.0/16 dev right table 1812", undo: "ip route flush table 1812",
			want: "table 1812 has routes of another program; choose another table"},
		{name: "nftables set the mark", prepare: `nft add table inet other; nft 'add chain inet other pre { type filter hook prerouting priority 0 ; }'; nft add rule inet other pre tcp dport 80 meta mark set 0x1001`,
			undo: "nft delete table inet other", want: "a rule in the nftables chain inet other pre uses the mark 0x1000; choose another bit"},
		{name: "nftables or the mark", prepare: `nft add table ip other; nft 'add chain ip other pre { type filter hook prerouting priority 0 ; }'; nft add rule ip other pre meta mark set mark or 0x1000`,
			undo: "nft delete table ip other", want: "a rule in the nftables chain ip other pre uses the mark 0x1000"},
		{name: "nftables test for the mark", prepare: `nft add table inet other; nft 'add chain inet other pre { type filter hook prerouting priority 0 ; }'; nft add rule inet other pre meta mark and 0xf000 == 0x1000 drop`,
			undo: "nft delete table inet other", want: "a rule in the nftables chain inet other pre uses the mark 0x1000"},
		{name: "policy drop", prepare: `nft add table inet fw; nft 'add chain inet fw in { type filter hook input priority 0 ; policy drop ; }'; nft add rule inet fw in ct state established,related accept; nft add rule inet fw in tcp dport 22 accept; nft add rule inet fw in iifname right accept`,
			undo: "nft delete table inet fw", want: "the nftables chain inet fw in drops connections that tunnel to-b intercepts; nft insert rule inet fw in meta mark and 0x1000 == 0x1000 accept"},
		{name: "policy drop and the rule", prepare: `nft add table inet fw; nft 'add chain inet fw in { type filter hook input priority 0 ; policy drop ; }'; nft insert rule inet fw in meta mark and 0x1000 == 0x1000 accept`,
			undo: "nft delete table inet fw"},
		{name: "policy drop and a trusted interface", prepare: `nft add table inet fw; nft 'add chain inet fw in { type filter hook input priority 0 ; policy drop ; }'; nft 'add chain inet fw zones'; nft add rule inet fw in jump zones; nft 'add rule inet fw zones iifname vmap { left : accept, right : drop }'`,
			undo: "nft delete table inet fw"},
		{name: "policy drop and ports", prepare: `nft add table inet fw; nft 'add chain inet fw in { type filter hook input priority 0 ; policy drop ; }'; nft 'add rule inet fw in ip saddr { 10.8.0.0/16, 10.9.1.0-10.9.1.99 } tcp dport { 22, 4000-5000 } accept'; nft 'add rule inet fw in ip6 saddr fd09::/16 tcp dport 5000 accept'`,
			undo: "nft delete table inet fw"},
		{name: "policy drop and other ports", prepare: `nft add table inet fw; nft 'add chain inet fw in { type filter hook input priority 0 ; policy drop ; }'; nft 'add rule inet fw in ip saddr { 10.8.0.0/16, 10.9.2.0-10.9.2.99 } tcp dport { 22, 4000-5000 } accept'`,
			undo: "nft delete table inet fw", want: "the nftables chain inet fw in drops"},
		{name: "firewalld", prepare: `nft add table inet firewalld; nft 'add chain inet firewalld filter_INPUT { type filter hook input priority 10 ; }'; nft 'add rule inet firewalld filter_INPUT ct state { established, related } accept'; nft 'add rule inet firewalld filter_INPUT iifname lo accept'; nft add rule inet firewalld filter_INPUT ct state invalid drop; nft add rule inet firewalld filter_INPUT reject with icmpx type admin-prohibited`,
			undo: "nft delete table inet firewalld", want: "the nftables chain inet firewalld filter_INPUT drops connections that tunnel to-b intercepts; firewall-cmd --permanent --zone="},
		{name: "not understood", prepare: `nft add table inet fw; nft 'add chain inet fw in { type filter hook input priority 0 ; policy drop ; }'; nft add rule inet fw in tcp option maxseg size 1-1460 accept`,
			undo: "nft delete table inet fw"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := os.Stat("/proc/sys/net/bridge"); err != nil && strings.Contains(tt.prepare, "net.bridge.") {
				t.Skip("needs the kernel module br_netfilter")
			}
			if tt.prepare != "" {
				s.run(tt.prepare)
				defer s.run(tt.undo)
			}
			o := options()
			if tt.change != nil {
				tt.change(&o)
			}
			err := s.on(func(h *Host) error { return h.Check(o) })
			text := ""
			if err != nil {
				text = remedy.Line(err)
			}
			if !strings.HasPrefix(text, tt.want) || tt.want == "" && err != nil || strings.Contains(text, "\n") {
				t.Errorf("got  %q\nwant %q", text, tt.want)
			}
		})
	}
	if after := s.state(); after != before {
		t.Errorf("the checks left\n%s", after)
	}
}

// atBridge has a tunnel intercept at a bridge that has no clients yet.
func atBridge(o *Options) {
	o.Tunnels[0].Interface, o.Tunnels[0].From = "br0", nil
}

// TestBridge: with the settings that the check asks for, connections that arrive at a
// bridge are intercepted.
func TestBridge(t *testing.T) {
	s := newSite(t)
	nettest.RequireProgram(t, "ip", "iproute2")
	s.run(`ip link add br0 type bridge nf_call_iptables 0 nf_call_ip6tables 0; ip link set left master br0; ip link set br0 up
		ip -6 address show dev left | grep -o 'inet6 fd[^ ]*' | while read _ a; do ip address add "$a" dev br0 nodad; done
		ip address del 10.9.1.1/24 dev left; ip address add 10.9.1.1/24 dev br0
		ip -6 address flush dev left scope global
		[ ! -e /proc/sys/net/bridge ] || sysctl -qw net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0`)
	o := options()
	o.Tunnels[0].Interface = "br0"
	s.works(o)
}

// TestTwoRelays: they share the routing rule, which goes with the last one. What both
// would intercept is a collision.
func TestTwoRelays(t *testing.T) {
	s := newSite(t)
	before := s.state()
	first, second := options(), options()
	second.Relay, second.Tunnels[0].Name = "other", "to-c"
	s.set(first)
	err := s.on(func(h *Host) error { return h.Check(second) })
	if want := "tunnel to-c intercepts connections that tunnel to-b of relay test also intercepts"; err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
	second.Tunnels[0].Ports = []portrange.Range{{First: 6000, Last: 6000}}
	must(t, s.on(func(h *Host) error { return h.Check(second) }))
	s.set(second)
	must(t, s.on(func(h *Host) error { return h.Clear("test") }))
	var shown []Status
	must(t, s.on(func(h *Host) (err error) {
		shown, err = h.Show()
		return err
	}))
	if len(shown) != 1 || shown[0].Relay != "other" || shown[0].Problem != "" {
		t.Errorf("shown: %+v", shown)
	}
	must(t, s.on(func(h *Host) error { return h.Clear("other") }))
	if after := s.state(); after != before {
		t.Errorf("left\n%s", after)
	}
}

// TestReload: another mark, table and set of families take the place of the former ones.
func TestReload(t *testing.T) {
	s := newSite(t)
	before := s.state()
	o := options()
	s.set(o)
	o.Mark, o.Table = 0x2000, 1900
	o.Tunnels[0].From, o.Tunnels[0].To = prefixes("10.9.1.0/24"), prefixes("10.9.2.0/24")
	must(t, s.on(func(h *Host) error { return h.Check(o) }))
	s.set(o)
	once := s.state()
	if strings.Contains(once, "1812:\tfrom all fwmark 0x1000") || !strings.Contains(once, "lookup 1900") || strings.Contains(once, "ip6") {
		t.Errorf("after the reload\n%s", once)
	}
	s.set(o)
	if again := s.state(); again != once {
		t.Errorf("set again\n%s", again)
	}
	s.set(Options{Relay: "test"})
	if after := s.state(); after != before {
		t.Errorf("left\n%s", after)
	}
}

// many are options with a thousand rules and more.
func many() Options {
	o := options()
	first := o.Tunnels[0]
	for i := range 150 {
		next := first
		port := uint16(10_000 + 3*i)
		next.Name, next.Ports = fmt.Sprintf("to-%d", i), []portrange.Range{{First: port, Last: port}, {First: port + 2, Last: port + 2}}
		o.Tunnels = append(o.Tunnels, next)
	}
	return o
}

// The answers to a transaction come all at once, and must not be too many.
func TestManyTunnels(t *testing.T) {
	s := newSite(t)
	o := many()
	clean := s.state()
	s.set(o)
	defer s.relay(o.Tunnels[0])()
	s.expect(byRelay, 5000)
	must(t, s.on(func(h *Host) error { return h.Clear(o.Relay) }))
	if left := s.state(); left != clean {
		t.Errorf("clear leaves:\n%s", left)
	}
}

// TestFewAnswers: in a user namespace the buffer for the kernel's answers may be too small.
// A change that was made is no failure, and one that was not made is.
func TestFewAnswers(t *testing.T) {
	s := newSite(t)
	clean := s.state()
	defer func(bytes int) { answerBytes = bytes }(answerBytes)
	answerBytes = 1
	o := many()
	lacks := func(want int) {
		must(t, s.on(func(h *Host) error {
			all, err := h.Missing(o, Look{Table: true}, &Standing{})
			if len(all) != want {
				t.Errorf("the host lacks %v, want %d parts", all, want)
			}
			return err
		}))
	}
	lacks(1)
	for range 2 {
		s.set(o)
		lacks(0)
		o.Tunnels[0].Paused = !o.Tunnels[0].Paused
	}
	o.Tunnels[0].Name = strings.Repeat("x", 300) // no chain may have such a name
	if err := s.on(func(h *Host) error { return h.Set(o, &Standing{}) }); err == nil {
		t.Error("rules that the kernel refuses are no error")
	}
	must(t, s.on(func(h *Host) error { return h.Clear(o.Relay) }))
	if left := s.state(); left != clean {
		t.Errorf("clear leaves:\n%s", left)
	}
}

// TestLost: what other programs removed, and rules without a record, are named and put
// right.
func TestLost(t *testing.T) {
	s := newSite(t)
	before := s.state()
	problem := func() string {
		t.Helper()
		var shown []Status
		must(t, s.on(func(h *Host) (err error) {
			shown, err = h.Show()
			return err
		}))
		if len(shown) != 1 {
			t.Fatalf("shown: %+v", shown)
		}
		return shown[0].Problem
	}
	s.set(options())
	whole := s.state()
	for _, tt := range []struct{ command, want string }{
		{"nft flush ruleset", "another program has removed the nftables table longhaul-test: new connections go directly"},
		{"ip -6 rule del pref 1812", "another program has removed the IPv6 routing rule for mark 0x1000: new connections get no answer"},
	} {
		s.run(tt.command)
		if got := problem(); !strings.HasPrefix(got, tt.want) {
			t.Errorf("after %s: %q", tt.command, got)
		}
		s.set(options())
		if got := problem(); got != "" {
			t.Errorf("after %s and Set: %q", tt.command, got)
		}
		if got := s.state(); got != whole {
			t.Errorf("after %s and Set\n%s", tt.command, got)
		}
	}
	must(t, os.RemoveAll(s.host.Ledger))
	if got := problem(); !strings.HasPrefix(got, "without a record") {
		t.Errorf("without the ledger: %q", got)
	}
	must(t, s.on(func(h *Host) error { return h.Clear("test") }))
	if after := s.state(); after != before {
		t.Errorf("left\n%s", after)
	}
}

// TestCommands: the commands of the dry run do what Set does.
func TestCommands(t *testing.T) {
	nettest.RequireProgram(t, "nft", "nftables")
	for name, change := range map[string]func(*Options){
		"as it is":            func(*Options) {},
		"answers of any port": func(o *Options) { o.AnswerPorts = false },
		"many ports, in parts": func(o *Options) {
			o.Tunnels[0].Ports = []portrange.Range{{First: 22, Last: 22}, {First: 5000, Last: 5100}}
		},
		"everybody, all ports": func(o *Options) {
			o.Tunnels[0].From, o.Tunnels[0].Ports = nil, nil
		},
		"everywhere": func(o *Options) {
			o.Tunnels[0].From, o.Tunnels[0].To, o.Tunnels[0].Ports = nil, prefixes("0.0.0.0/0", "::/0"), []portrange.Range{{First: 22, Last: 22}}
		},
		"touching prefixes and ports": func(o *Options) {
			o.Tunnels[0].To = prefixes("10.9.2.0/24", "10.9.3.0/24", "10.9.2.128/25", "10.9.4.4/32", "255.255.255.0/24", "0.0.0.0/8")
			o.Tunnels[0].From = prefixes("10.9.1.0/25", "10.9.1.128/25", "10.9.2.0/24")
			o.Tunnels[0].Ports = []portrange.Range{{First: 0, Last: 10}, {First: 9, Last: 20}, {First: 30, Last: 30}, {First: 31, Last: 40}, {First: 65535, Last: 65535}}
		},
		"single ports": func(o *Options) {
			o.Tunnels[0].Ports = []portrange.Range{{First: 22, Last: 22}, {First: 1521, Last: 1521}}
		},
		"a range":  func(o *Options) { o.Tunnels[0].Ports = []portrange.Range{{First: 5432, Last: 5440}} },
		"mirrored": mirrored,
		"mirrored and paused": func(o *Options) {
			mirrored(o)
			o.Tunnels[0].Paused = true
			o.Tunnels[0].To = prefixes("10.9.2.0/24")
		},
		"two tunnels": func(o *Options) {
			o.Tunnels[0].Paused = true
			o.Tunnels = append(o.Tunnels, Tunnel{Name: "2.x_y", Interface: "right", To: prefixes("fd09:3::/64", "fd09:5::7/128"), ListenPort6: 8000})
		},
		"a dialer": func(o *Options) { o.Tunnels, o.Dialers = nil, []Dialer{dialer()} },
		"a dialer to all ports of one family, beside a tunnel": func(o *Options) {
			o.Dialers = []Dialer{{Name: "from-a", From: prefixes("0.0.0.0/0"), To: prefixes("0.0.0.0/0")}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := options()
			change(&o)
			byProgram, byHand := newSite(t), newSite(t)
			byProgram.set(o)
			byHand.run(strings.Join(Commands(o), "\n"))
			if got, want := byProgram.state(), byHand.state(); got != want {
				t.Errorf("by the program\n%s\nby hand\n%s", got, want)
			}
		})
	}
}

func mirrored(o *Options) {
	o.Tunnels[0].Mirror, o.Tunnels[0].HoldPort, o.Tunnels[0].HoldPort6 = true, 7100, 7106
}

// A child process sets or clears, see [TestMain].
const (
	childOrder  = "LONGHAUL_TEST_INTERCEPT"
	childLedger = "LONGHAUL_TEST_LEDGER"
)

func obey(order, dir string) error {
	h := testHost(dir)
	if order == "clear" {
		return h.Clear("test")
	}
	return h.Set(killed(), &Standing{})
}

func killed() Options {
	o := options()
	o.Dialers = []Dialer{dialer()}
	return o
}

// TestKilled kills a process that sets or clears before each system call that may change
// something. Clear then restores the host, and so does Set with Clear.
func TestKilled(t *testing.T) {
	strace := nettest.RequireProgram(t, "strace", "strace")
	s := newSite(t)
	before, sysctls := s.state(), s.sysctls()
	clean := func(what string) {
		t.Helper()
		if after := s.state(); after != before {
			t.Fatalf("%s left\n%s", what, after)
		}
		book, err := ledger.Read(s.host.Ledger)
		if err != nil || len(book.Entries) > 0 {
			t.Fatalf("%s left in the ledger %+v, %v", what, book, err)
		}
	}
	child := func(order string, call string, n int) (killed bool) {
		t.Helper()
		cmd := exec.Command(strace, "-f", "-qq", "-o", "/dev/null", "-e", "trace="+call, "-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", call, n), "/proc/self/exe")
		self, err := os.Executable()
		must(t, err)
		cmd.Args[len(cmd.Args)-1] = self
		cmd.Env = append(os.Environ(), childOrder+"="+order, childLedger+"="+s.host.Ledger)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		must(t, s.R.Start(cmd))
		err = cmd.Wait()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() > 0 {
			t.Fatalf("%s: %v\n%s", order, err, out.String())
		}
		return err != nil
	}
	kills := 0
	for _, call := range []string{"sendto,sendmsg", "openat,mkdirat,write,renameat,unlinkat"} {
		for _, order := range []string{"set", "clear"} {
			for n := 1; ; n++ {
				if order == "clear" {
					s.set(killed())
				}
				if !child(order, call, n) {
					must(t, s.on(func(h *Host) error { return h.Clear("test") }))
					break
				}
				kills++
				what := fmt.Sprintf("%s killed before call %d of %s", order, n, call)
				if n%2 == 0 {
					s.set(killed())
				}
				must(t, s.on(func(h *Host) error { return h.Clear("test") }))
				clean(what)
			}
		}
	}
	t.Logf("killed %d times", kills)
	if diff := cmp.Diff(sysctls, s.sysctls()); diff != "" {
		t.Errorf("sysctls have changed (-before +after):\n%s", diff)
	}
}

// TestDryRun: a dry run only says what would change.
func TestDryRun(t *testing.T) {
	s := newSite(t)
	before := s.state()
	s.host.DryRun = true
	s.set(options())
	if after := s.state(); after != before {
		t.Errorf("a dry run left\n%s", after)
	}
	s.host.DryRun = false
	s.set(options())
	whole := s.state()
	s.host.DryRun = true
	var undone []Undone
	must(t, s.on(func(h *Host) (err error) {
		undone, err = h.Undo(ledger.AllClaims)
		return err
	}))
	if len(undone) != 1 || undone[0].Relay != "test" || len(undone[0].Taken) != 1 {
		t.Errorf("undone: %+v", undone)
	}
	if after := s.state(); after != whole {
		t.Errorf("a dry run changed\n%s", after)
	}
}

// TestFailedSet: a Set that the kernel refuses leaves nothing.
func TestFailedSet(t *testing.T) {
	s := newSite(t)
	before := s.state()
	must(t, s.R.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(lo)
	}))
	if err := s.on(func(h *Host) error { return h.Set(options(), &Standing{}) }); err == nil {
		t.Error("no error without a loopback device")
	}
	must(t, s.R.Up("lo"))
	if after := s.state(); after != before {
		t.Errorf("left\n%s", after)
	}
}
