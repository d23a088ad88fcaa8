package faults

import (
	"errors"
	"syscall"
	"testing"
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
