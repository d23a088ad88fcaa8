package faults

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/lab/hosts"
	"longhaul/test/nettest"
)

const setAgain = "rules of interception, they are set again"

// hostRules is what the relay has set on the router, with the router's addresses.
func (s *routed) hostRules() string {
	s.t.Helper()
	return s.shellOn(s.R, `nft -s -t list ruleset | sort
		for f in -4 -6; do ip $f rule; ip $f route show table 1812; ip $f -br addr show dev left scope global; done`)
}

// damage is what another program does to a host, in one change.
type damage struct {
	name   string
	script string // T is the relay's table
	lines  int    // in the log
}

// The table of the last ones is that of a ruleset of other programs.
var damages = []damage{
	{"flush ruleset", "nft flush ruleset", 1},
	{"delete table", "nft delete table inet $T", 1},
	{"delete chain", `nft "flush chain inet $T answer; delete chain inet $T answer"`, 1},
	{"delete set", `nft "flush chain inet $T take-ipv4; flush chain inet $T syn-ipv4-main; flush chain inet $T ipv4-main; delete set inet $T begun-ipv4"`, 1},
	{"delete rule", `nft delete rule inet $T divert handle $(nft -a list chain inet $T divert | sed -n 's/.*iifname.*handle //p' | head -1)`, 1},
	{"replace rule", `nft replace rule inet $T take-ipv4 handle $(nft -a list chain inet $T take-ipv4 | sed -n 's/.*drop.*handle //p' | head -1) accept`, 1},
	{"delete set element", "nft flush set inet $T begun-ipv4", 0},
	{"table dormant", `nft "add table inet $T { flags dormant; }"`, 1},
	{"policy drop", `nft "add chain inet $T divert { policy drop; }"`, 1},
	{"routing rule", "ip rule del pref 1812", 1},
	{"routing rule, IPv6", "ip -6 rule del pref 1812", 1},
	{"route", "ip route del local default dev lo table 1812", 1},
	{"routing table, IPv6", "ip -6 route flush table 1812", 1},
	{"address", "ip addr del 10.9.1.1/24 dev left; ip addr add 10.9.1.1/24 dev left", 0},
	{"restart of nftables", `echo 'flush ruleset; table inet other { chain c { type filter hook forward priority 0; accept; }; }' | nft -f -; nft delete table inet other`, 1},
}

// Case 105: another program removes a part of what an intercepting relay has set. The relay
// sets it again, with one line in the log, its flows go on, and new connections are
// intercepted.
func TestCase105HostIsDamaged(t *testing.T) {
	t.Parallel()
	s := newRouted(t).serve().start("")
	flows := s.expect(true, "at first")
	whole := s.hostRules()
	table := strings.TrimSpace(s.shellOn(s.R, "nft list tables | sed -n 's/table inet //p'"))
	for _, d := range damages {
		s.reload() // no fight
		before := s.relay.log.count(setAgain)
		s.shellOn(s.R, "T="+table+"\n"+d.script)
		nettest.Eventually(t, patience, func() bool { return s.relay.log.count(setAgain) == before+d.lines && s.hostRules() == whole },
			func() string { return fmt.Sprintf("after %s the host has\n%s\nnot\n%s", d.name, s.hostRules(), whole) })
		for _, h := range flows {
			h.alive(t, "after "+d.name)
		}
		for _, h := range s.expect(true, "after "+d.name) {
			h.release(t)
		}
		if n := s.relay.log.count(setAgain) - before; n != d.lines {
			t.Errorf("%s: %d lines in the log, want %d", d.name, n, d.lines)
		}
	}
	nettest.Must(t, s.R.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
	for _, h := range flows {
		h.alive(t, "after conntrack -F")
	}
	if p := s.relay.status().tunnel("main").Host; len(p) > 0 {
		t.Errorf("the host lacks %+v", p)
	}
}

// reload reloads the relay's own file.
func (s *routed) reload() string {
	s.t.Helper()
	output, status := command(s.t, "reload", "--control-socket", s.relay.socket())
	if status != 0 {
		s.t.Fatalf("reload: %s", output)
	}
	return output
}

func (s *routed) problem(part flow.HostPart) (text string) {
	for _, p := range s.relay.status().tunnel("main").Host {
		if p.Part == part {
			text = p.Problem
		}
	}
	return text
}

// Case 106: the interface of an intercepting tunnel goes down, and is made anew. The relay
// says so, and takes connections when it is back.
func TestCase106InterfaceIsMadeAnew(t *testing.T) {
	t.Parallel()
	s := newRouted(t).serve().start("")
	s.expect(true, "at first")
	again := func() {
		for _, address := range []string{"10.9.1.1/24", "fd09:1::1/64"} {
			nettest.Must(t, s.R.Address("left", netip.MustParsePrefix(address)))
		}
	}
	s.shellOn(s.R, "ip link set left down; ip -6 addr flush dev left; ip addr flush dev left")
	s.relay.expectLog("the interface left is down")
	nettest.Eventually(t, patience, func() bool { return s.problem(flow.HostInterface) != "" }, func() string { return "the status does not say that the interface is down" })
	if output, status := command(t, "ready", "--control-socket", s.relay.socket()); status == 0 || !strings.Contains(output, "left is down") {
		t.Errorf("ready says %q", output)
	}
	s.shellOn(s.R, "ip link set left up")
	again()
	s.relay.expectLog("the interface is back")
	s.expect(true, "after the interface was down")
	s.shellOn(s.R, "ip link del left")
	s.relay.expectLog("the interface left is gone")
	nettest.Must(t, hosts.Cable(s.A, "eth0", s.R, "left", 1500))
	again()
	for address, via := range map[string]string{"10.9.1.2/24": "10.9.1.1", "fd09:1::2/64": "fd09:1::1"} {
		nettest.Must(t, s.A.Address("eth0", netip.MustParsePrefix(address)))
		gateway := netip.MustParseAddr(via)
		everywhere := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if gateway.Is6() {
			everywhere = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		nettest.Must(t, s.A.Route(hosts.Route{To: everywhere, Via: gateway}))
	}
	nettest.Eventually(t, patience, func() bool { return s.problem(flow.HostInterface) == "" }, func() string { return "the interface stays gone" })
	s.expect(true, "after the interface was made anew")
}

// Case 107: a program that keeps removing a rule is named, and the relay goes on setting it
// again, ever later. A reload sets it at once and says so.
func TestCase107FightForRules(t *testing.T) {
	t.Parallel()
	s := newRouted(t).serve().start("")
	for range 3 {
		before := s.relay.log.count(setAgain)
		s.shellOn(s.R, "ip rule del pref 1812")
		nettest.Eventually(t, patience, func() bool { return s.relay.log.count(setAgain) > before }, func() string { return "the rule is not set again" })
	}
	s.relay.expectLog("keeps removing rules of interception.*opponent=")
	// Each removal doubles the time, so that one comes in which all can look.
	nettest.Eventually(t, patience, func() bool {
		s.shellOn(s.R, "ip rule del pref 1812 || true")
		output, _ := command(t, "ready", "--control-socket", s.relay.socket())
		shown := s.run(nettest.Longhaul(t), "longhaul", "intercept", "show")
		return strings.Contains(s.problem(flow.HostRules), "new connections get no answer") &&
			strings.Contains(output, "get no answer") && strings.Contains(shown, "get no answer")
	}, func() string { return "status, ready and show do not say that the rule is missing" })
	nettest.Eventually(t, patience, func() bool {
		s.shellOn(s.R, "ip rule del pref 1812 || true")
		return strings.Contains(s.reload(), "set again: the IPv4 routing rule for mark 0x1000")
	}, func() string { return "a reload does not say what it sets again" })
	s.expect(true, "after the reload")
}

// Case 108: intercept clear --yes takes the rules of a running relay back, for good: also over
// an upgrade. A reload sets them again.
func TestCase108RulesAreCleared(t *testing.T) {
	nettest.RequireRoot(t)
	s := newRouted(t).serve().start("")
	s.expect(true, "at first")
	clean := s.run(nettest.Longhaul(t), "longhaul", "intercept", "clear", "--yes")
	s.relay.expectLog("the operator has taken the rules of interception back")
	s.expect(false, "after intercept clear")
	if s.problem(flow.HostRules) == "" {
		t.Errorf("the status does not say that the rules were cleared: %s", clean)
	}
	_, err := s.relay.upgrade("")
	nettest.Must(t, err)
	s.expect(false, "after an upgrade")
	if output := s.reload(); !strings.Contains(output, "intercept clear") {
		t.Errorf("the reload says %q", output)
	}
	s.expect(true, "after the reload")
}

// Case 109: a setting without which interception does not work is reported, and stays.
func TestCase109SettingIsChanged(t *testing.T) {
	t.Parallel()
	s := newRouted(t).serve().start("")
	nettest.Must(t, s.R.Sysctl("net.ipv4.conf.all.src_valid_mark", "1"))
	s.relay.expectLog("a setting of this host was changed.*src_valid_mark")
	if got := s.shellOn(s.R, "cat /proc/sys/net/ipv4/conf/all/src_valid_mark"); strings.TrimSpace(got) != "1" {
		t.Errorf("the relay has set src_valid_mark to %s", got)
	}
	nettest.Must(t, s.R.Sysctl("net.ipv4.conf.all.src_valid_mark", "0"))
	s.relay.expectLog("again as interception needs it")
}

// Case 110: the host lacks a listening address at the start, loses one, and makes the interface
// of one anew. The other tunnels serve, and each takes its address when it comes.
func TestCase110ListeningAddressIsAbsent(t *testing.T) {
	t.Parallel()
	s := newRouted(t).serve()
	dummy := func() {
		s.shellOn(s.R, "ip link add extra type veth peer name extra-peer; ip link set extra-peer up; ip link set extra up; ip addr add 10.9.8.1/32 dev extra; ip -6 addr add fe80::99/64 dev extra nodad")
	}
	s.shellOn(s.R, "ip -6 addr add fe80::1/64 dev left nodad")
	s.relay = startDaemon(t, s.R, unsupervised, `control_socket: SOCKET
workers: 1
http_listen: ["10.9.8.1:9464", "[fe80::99%extra]:9464"]
tunnels:
  - {name: here, listen: "10.9.1.1:6000", forward: "10.9.2.2:5000"}
  - {name: absent, listen: "10.9.8.1:6000", forward: "10.9.2.2:5000"}
  - {name: zone, listen: "[fe80::99%extra]:6000", forward: "10.9.2.2:5000"}
`)
	state := func(name string) string { return s.relay.status().tunnel(name).State }
	await := func(want string, names ...string) {
		t.Helper()
		for _, name := range names {
			nettest.Eventually(t, patience, func() bool { return state(name) == want }, func() string { return name + " is " + state(name) + ", not " + want })
		}
	}
	// From the relay's own host: the addresses are its own.
	reach := func(address string) {
		t.Helper()
		connect := func() (err error) {
			at := netip.MustParseAddrPort(address)
			sa := unix.Sockaddr(&unix.SockaddrInet4{Port: int(at.Port()), Addr: [4]byte{10, 9, 8, 1}})
			family := unix.AF_INET
			if at.Addr().Is6() {
				link, err := netlink.LinkByName(at.Addr().Zone())
				if err != nil {
					return err
				}
				sa, family = &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16(), ZoneId: uint32(link.Attrs().Index)}, unix.AF_INET6
			}
			fd, err := unix.Socket(family, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Connect(fd, sa)
		}
		var err error
		nettest.Eventually(t, patience, func() bool {
			err = s.R.Do(connect)
			return err == nil
		}, func() string { return fmt.Sprintf("connect to %s: %v", address, err) })
	}
	await("listening", "here")
	await("waiting", "absent", "zone")
	s.relay.expectLog(`level=WARN msg="waiting for an address, the relay goes on without it" service=http address=10\.9\.8\.1:9464 reason="this host does not have the address"`)
	if output, status := command(t, "status", "--control-socket", s.relay.socket()); status != 0 || !strings.Contains(output, "http waits for address 10.9.8.1:9464: this host does not have the address") {
		t.Errorf("status says %q", output)
	}
	if output, status := command(t, "ready", "absent", "--control-socket", s.relay.socket()); status == 0 || !strings.Contains(output, "waiting for address 10.9.8.1:6000") {
		t.Errorf("ready says %q", output)
	}
	for _, name := range []string{"here", "absent --ignore host"} {
		if output, status := command(t, append(append([]string{"ready"}, strings.Fields(name)...), "--control-socket", s.relay.socket())...); status != 0 {
			t.Errorf("ready %s says %q", name, output)
		}
	}
	dummy()
	await("listening", "absent", "zone")
	reach("10.9.8.1:6000")
	reach("[fe80::99%extra]:6000")
	reach("10.9.8.1:9464")
	reach("[fe80::99%extra]:9464")
	s.shellOn(s.R, "ip link del extra")
	await("waiting", "absent", "zone")
	_, err := s.relay.upgrade("")
	nettest.Must(t, err)
	await("waiting", "absent", "zone")
	dummy()
	await("listening", "absent", "zone")
	reach("10.9.8.1:6000")
	reach("[fe80::99%extra]:6000")
	reach("10.9.8.1:9464")
	reach("[fe80::99%extra]:9464")
	if listen := s.relay.status().tunnel("zone").Listen; len(listen) != 1 || listen[0] != "[fe80::99%extra]:6000" {
		t.Errorf("the tunnel listens on %s", listen)
	}
	// A drained tunnel stays drained when its interface is made anew.
	if output, status := command(t, "drain", "zone", "--control-socket", s.relay.socket()); status != 0 {
		t.Fatal(output)
	}
	s.shellOn(s.R, "ip link del extra")
	dummy()
	await("drained", "zone")
	if output, status := command(t, "resume", "zone", "--control-socket", s.relay.socket()); status != 0 {
		t.Fatal(output)
	}
	await("listening", "zone")
	reach("[fe80::99%extra]:6000")
}
