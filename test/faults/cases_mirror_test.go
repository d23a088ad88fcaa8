package faults

import (
	"errors"
	"syscall"
	"testing"

	"longhaul/test/nettest"
)

// mirrored are the ways in which a target fails, with the errno of connect as the client
// has it without a relay.
var mirrored = []struct {
	name   string
	target string
	want   syscall.Errno
}{
	{"nobody listens", "10.9.2.2", syscall.ECONNREFUSED},
	{"nobody listens", "fd09:2::2", syscall.ECONNREFUSED},
	{"a firewall resets", "10.9.2.3", syscall.ECONNREFUSED},
	{"a firewall resets", "fd09:2::3", syscall.ECONNREFUSED},
	{"a firewall says host unreachable", "10.9.2.4", syscall.EHOSTUNREACH},
	{"a firewall says host unreachable", "fd09:2::4", syscall.EHOSTUNREACH},
	{"a firewall prohibits", "10.9.2.5", syscall.EHOSTUNREACH},
	{"a firewall prohibits", "fd09:2::5", syscall.EACCES},
	{"a firewall says net unreachable", "10.9.2.6", syscall.ENETUNREACH},
	{"a firewall says net unreachable", "fd09:2::6", syscall.ENETUNREACH},
	{"no such host", "10.9.2.9", syscall.EHOSTUNREACH},
	{"no such host", "fd09:2::9", syscall.EHOSTUNREACH},
	{"no route", "10.98.0.1", syscall.ENETUNREACH},
	{"no route", "fd98::1", syscall.ENETUNREACH},
	{"a prohibited route", "10.97.0.1", syscall.EHOSTUNREACH},
	{"a prohibited route", "fd97::1", syscall.EACCES},
}

const mirroredTargets = `10.9.2.0/24, 10.97.0.0/16, 10.98.0.0/16, "fd09:2::/64", "fd97::/16", "fd98::/16"`

// fail makes the targets of mirrored.
func (s *routed) fail() {
	s.t.Helper()
	s.shellOn(s.R, `ip -4 route add prohibit 10.97.0.0/16; ip -6 route add prohibit fd97::/16`)
	s.shellOn(s.B, `
		for n in 3 4 5 6; do
			ip addr add 10.9.2.$n/32 dev eth0
			ip addr add fd09:2::$n/128 dev eth0 nodad
		done
		nft -f - <<-END
		table inet filter {
			chain input {
				type filter hook input priority 0
				meta l4proto tcp ip daddr 10.9.2.3 reject with tcp reset
				meta l4proto tcp ip6 daddr fd09:2::3 reject with tcp reset
				ip daddr 10.9.2.4 reject with icmp type host-unreachable
				meta l4proto tcp ip6 daddr fd09:2::4 reject with icmpv6 type addr-unreachable
				ip daddr 10.9.2.5 reject with icmp type admin-prohibited
				meta l4proto tcp ip6 daddr fd09:2::5 reject with icmpv6 type admin-prohibited
				ip daddr 10.9.2.6 reject with icmp type net-unreachable
				meta l4proto tcp ip6 daddr fd09:2::6 reject with icmpv6 type no-route
			}
		}
		END
	`)
}

// errnoOf is the errno of a client's connect.
func (s *routed) errnoOf(target string) (errno syscall.Errno) {
	s.t.Helper()
	c, err := s.dial(target)(s.t.Context())
	if err == nil {
		c.Close()
		return 0
	}
	if !errors.As(err, &errno) {
		s.t.Fatalf("connect to %s: %v", target, err)
	}
	return errno
}

// Case 70: with refuse: mirror, connect fails as it does without the relay when the
// target refuses or cannot be reached.
func TestCase70InterceptedTargetFailsMirrored(t *testing.T) {
	t.Parallel()
	for _, source := range []string{"client", "relay"} {
		t.Run(source, func(t *testing.T) {
			t.Parallel()
			s := newRouted(t)
			s.to = mirroredTargets
			s.fail()
			for _, c := range mirrored {
				if got := s.errnoOf(c.target); got != c.want {
					t.Errorf("directly, %s at %s: connect gets %v, want %v", c.name, c.target, got, c.want)
				}
			}
			s.start("    refuse: mirror\n    source: " + source)
			for _, c := range mirrored {
				if source == "client" && c.name == "no such host" {
					// The kernel's own ICMP about its SYN goes to the client, whose SYN
					// has another sequence number.
					continue
				}
				if got := s.errnoOf(c.target); got != c.want {
					t.Errorf("%s at %s: connect gets %v, want %v\n%s", c.name, c.target, got, c.want, s.run("nft", "nftables", "list", "ruleset"))
				}
			}
			s.serve()
			s.relay.reload(s.config("    refuse: mirror\n    source: " + source + "\n    allow: [10.9.1.7, \"fd09:1::7\"]"))
			for _, address := range routedTargets {
				if got := s.errnoOf(address); got != syscall.ECONNREFUSED {
					t.Errorf("a client that allow excludes gets %v", got)
				}
			}
		})
	}
}

// silence has the target drop first SYNs until hear is called.
func (s *routed) silence() (hear func()) {
	s.t.Helper()
	s.shellOn(s.B, `
		nft add table inet silence
		nft add chain inet silence input '{ type filter hook input priority 0 ; }'
		nft add rule inet silence input tcp dport 5000 'tcp flags & (syn | ack) == syn' drop
	`)
	return func() { s.t.Helper(); s.shellOn(s.B, "nft delete table inet silence") }
}

// dialing begins a connection to each address of a silent target, and returns once the
// relay dials both.
func (s *routed) dialing() (all []<-chan error) {
	s.t.Helper()
	before := s.relay.status().tunnel("main").FlowsTotal
	for _, address := range routedTargets {
		all = append(all, begin(s.t, s.dial(address)))
	}
	nettest.Eventually(s.t, patience, func() bool { return s.relay.status().tunnel("main").FlowsTotal == before+2 },
		func() string { return "the relay does not dial" })
	return all
}

func expectEchoes(t *testing.T, when string, all []<-chan error) {
	t.Helper()
	for i, echoed := range all {
		if err := <-echoed; err != nil {
			t.Errorf("%s: to %s: %v", when, routedTargets[i], err)
		}
	}
}

// Case 70, more of it: connections whose SYN is held while the target is slow to answer,
// the tunnel is drained, the relay stops, is upgraded or killed. None is refused.
func TestCase70SYNIsHeld(t *testing.T) {
	t.Parallel()
	s := newRouted(t).serve()
	s.start("    refuse: mirror")
	flows := func() int64 { return s.relay.status().tunnel("main").FlowsTotal }
	s.expect(true, "at first")

	hear := s.silence()
	waiting := s.dialing()
	hear()
	before := flows()
	expectEchoes(t, "a slow target", waiting)
	if n := flows(); n != before {
		t.Errorf("%d flows more for copies of a SYN", n-before)
	}

	hear = s.silence()
	waiting = s.dialing()
	if output, status := command(t, "drain", "main", "--control-socket", s.relay.socket()); status != 0 {
		t.Fatal(output)
	}
	hear()
	before = flows()
	expectEchoes(t, "drained while it dialed", waiting)
	if n := flows(); n != before {
		t.Errorf("%d flows while the tunnel is drained", n-before)
	}
	if output, status := command(t, "resume", "main", "--control-socket", s.relay.socket()); status != 0 {
		t.Fatal(output)
	}
	s.awaitWay(true, "after resume")

	hear = s.silence()
	waiting = s.dialing()
	nettest.Must(t, s.relay.cmd.Process.Kill())
	<-s.relay.exited
	hear()
	expectEchoes(t, "killed while it dialed", waiting)
	s.relay = restartDaemon(t, s.R, s.relay)
	for _, h := range s.expect(true, "after the restart") {
		h.release(t)
	}

	hear = s.silence()
	waiting = s.dialing()
	s.relay.signal(syscall.SIGTERM)
	s.relay.expectLog(`(?s)msg=stopping.*msg="new connections pass the relay"`)
	hear()
	expectEchoes(t, "stopped while it dialed", waiting)
	s.relay.expectExit(0)
	s.relay = restartDaemon(t, s.R, s.relay)

	hear = s.silence()
	waiting = s.dialing()
	_, err := s.relay.upgrade("")
	nettest.Must(t, err)
	hear()
	expectEchoes(t, "upgraded while it dialed", waiting)
	s.expect(true, "after the upgrade")
}

// Case 70, more of it: many clients connect at once, through firewalls that drop what
// they do not know.
func TestCase70CrowdIsHeld(t *testing.T) {
	t.Parallel()
	s := newRouted(t).serve()
	s.shellOn(s.R, `nft -f - <<-END
		table inet filter {
			chain prerouting {
				type filter hook prerouting priority filter
				fib saddr . iif oif missing drop
			}
			chain input {
				type filter hook input priority filter; policy drop
				ct state invalid drop
				ct state established,related accept
				meta mark & 0x1000 == 0x1000 accept
				ip6 nexthdr icmpv6 accept
			}
			chain forward {
				type filter hook forward priority filter; policy drop
				ct state invalid drop
				iifname left accept
			}
			chain output {
				type filter hook output priority filter
				ct state invalid drop
			}
		}
		END
	`)
	s.start("    refuse: mirror\n    max_flows_per_source: off")
	const crowd = 200
	var waiting []<-chan error
	for n := range crowd {
		waiting = append(waiting, begin(t, s.dial(routedTargets[n%2])))
	}
	for _, echoed := range waiting {
		if err := <-echoed; err != nil {
			t.Error(err)
		}
	}
	nettest.Eventually(t, patience, func() bool { return s.relay.status().FlowsNow == 0 }, func() string { return "flows are left" })
	if n := s.relay.status().tunnel("main").FlowsTotal; n != crowd {
		t.Errorf("%d flows of %d clients", n, crowd)
	}
}
