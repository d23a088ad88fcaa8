package relay

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/hops"
	"longhaul/lab/hosts"
	"longhaul/test/nettest"
)

// ownHost is a host with addresses, local routes and rules of routing of many kinds, and
// with a router before the rest.
func ownHost(t testing.TB) *hosts.Host {
	t.Helper()
	nettest.RequireSandbox(t)
	ip := nettest.RequireProgram(t, "ip", "iproute2")
	h, err := hosts.New("own")
	nettest.Must(t, err)
	t.Cleanup(h.Close)
	other, err := hosts.New("other")
	nettest.Must(t, err)
	t.Cleanup(other.Close)
	nettest.Must(t, h.Sysctl("net.ipv6.conf.all.forwarding", "1")) // a router has the anycast addresses of its networks
	nettest.Must(t, hosts.Cable(h, "lan", other, "lan", 1500))
	for _, address := range []string{"10.1.1.1/24", "10.1.1.2/24", "fd01:1::1/64"} {
		nettest.Must(t, h.Address("lan", netip.MustParsePrefix(address)))
	}
	for _, route := range []string{
		"-4 route add default via 10.1.1.254", "-6 route add default via fd01:1::254",
		"-4 route add local 10.2.0.0/16 dev lo", "-6 route add local fd01:2::/64 dev lo",
		"-4 route add local 10.3.0.0/16 dev lo src 10.1.1.1",
		"-4 route add unreachable 10.4.0.0/16", "-4 route add blackhole 10.5.0.0/16", "-4 route add prohibit 10.6.0.0/16",
		"-6 route add unreachable fd01:4::/64", "-6 route add blackhole fd01:5::/64",
		"-4 route add local 10.7.0.0/16 dev lo table 7", "-6 route add local fd01:7::/64 dev lo table 7",
		"-4 rule add fwmark 7 lookup 7", "-6 rule add fwmark 7 lookup 7",
		"-4 route add local 10.8.0.0/16 dev lo table 8", "-4 rule add ipproto tcp dport 80 lookup 8",
		"-6 route add local fd01:9::/64 dev lo table 9", "-6 rule add from fd01:f::/64 lookup 9",
	} {
		cmd := exec.Command("/bin/sh", "-c", ip+" "+route)
		nettest.Must(t, h.Start(cmd))
		if err := cmd.Wait(); err != nil {
			t.Fatalf("ip %s: %v", route, err)
		}
	}
	return h
}

// The kernel's own answer is right for every kind of route.
func TestOwnAddresses(t *testing.T) {
	h := ownHost(t)
	nettest.Must(t, h.Do(func() error {
		b := fib{fd: -1}
		defer b.close()
		for _, c := range []struct {
			name, to, from string
			mark           uint32
			own            bool
			fails          unix.Errno
		}{
			{name: "an address", to: "10.1.1.1:22", own: true},
			{name: "a second address of a network", to: "10.1.1.2:22", own: true},
			{name: "in IPv6", to: "[fd01:1::1]:22", own: true},
			{name: "mapped", to: "[::ffff:10.1.1.1]:22", own: true},
			{name: "loopback", to: "127.0.0.1:22", own: true},
			{name: "loopback of IPv6", to: "[::1]:22", own: true},
			{name: "anycast", to: "[fd01:1::]:22", own: true},
			{name: "broadcast of a network", to: "10.1.1.255:22", own: true},
			{name: "broadcast", to: "255.255.255.255:22", own: true},
			{name: "multicast", to: "224.0.0.9:22", own: true},
			{name: "in a local route", to: "10.2.3.4:22", own: true},
			{name: "in a local route of IPv6", to: "[fd01:2::9]:22", own: true},
			{name: "mapped, in a local route", to: "[::ffff:10.2.3.4]:22", own: true},
			{name: "in a local route with another source", to: "10.3.3.4:22", own: true},
			{name: "a neighbour", to: "10.1.1.9:22"},
			{name: "a neighbour in IPv6", to: "[fd01:1::9]:22"},
			{name: "a mapped neighbour", to: "[::ffff:10.1.1.9]:22"},
			{name: "elsewhere", to: "198.51.100.1:22"},
			{name: "elsewhere in IPv6", to: "[2001:db8::1]:22"},
			{name: "of a client", to: "198.51.100.1:22", from: "10.9.9.9:4000"},
			{name: "of a client in IPv6", to: "[2001:db8::1]:22", from: "[fd01:c::1]:4000"},
			{name: "an address, of a client", to: "10.1.1.1:22", from: "10.9.9.9:4000", own: true},
			{name: "an address in IPv6, of a client", to: "[fd01:1::1]:22", from: "[fd01:c::1]:4000", own: true},
			{name: "unreachable", to: "10.4.0.1:22"},
			{name: "prohibited", to: "10.6.0.1:22"},
			{name: "unreachable in IPv6", to: "[fd01:4::1]:22"},
			{name: "a black hole", to: "10.5.0.1:22", fails: unix.EINVAL},
			{name: "a black hole in IPv6", to: "[fd01:5::1]:22", fails: unix.EINVAL},
			{name: "without the mark of a rule", to: "10.7.0.1:22"},
			{name: "with the mark of a rule", to: "10.7.0.1:22", mark: 7, own: true},
			{name: "with the mark of a rule in IPv6", to: "[fd01:7::1]:22", mark: 7, own: true},
			{name: "another port than a rule's", to: "10.8.0.1:22"},
			{name: "the port of a rule", to: "10.8.0.1:80", own: true},
			{name: "another client than a rule's", to: "[fd01:9::1]:22", from: "[fd01:c::1]:4000"},
			{name: "a client of a rule", to: "[fd01:9::1]:22", from: "[fd01:f::1]:4000", own: true},
		} {
			q := query{to: netip.MustParseAddrPort(c.to), mark: c.mark}
			if c.from != "" {
				q.from = netip.MustParseAddrPort(c.from)
			}
			own, err := b.isOwn(q)
			if own != c.own || c.fails == 0 && err != nil || c.fails != 0 && !errors.Is(err, c.fails) {
				t.Errorf("%s, %s: %v, %v", c.name, c.to, own, err)
			}
		}
		return nil
	}))
}

// A socket's mark and device are those of its query.
func TestQueryOfSocket(t *testing.T) {
	h := ownHost(t)
	nettest.Must(t, h.Do(func() error {
		for _, as := range []int{unix.AF_INET, unix.AF_INET6} {
			fd, errno := newSocket(as)
			if errno != 0 {
				return errno
			}
			defer closeFD(fd)
			level, option := unix.IPPROTO_IP, unix.IP_TOS
			if as == unix.AF_INET6 {
				level, option = unix.IPPROTO_IPV6, unix.IPV6_TCLASS
			}
			if err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 7),
				unix.SetsockoptInt(fd, level, option, 0x28),
				unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "lan")); err != nil {
				return err
			}
			if q := queryOf(fd, as, netip.AddrPort{}, netip.AddrPort{}); q.mark != 7 || q.tos != 0x28 || q.device == 0 {
				return fmt.Errorf("%+v", q)
			}
		}
		return nil
	}))
}

// Without netlink, and after an answer that is none, nothing counts as of another host.
func TestNoOwnAddresses(t *testing.T) {
	b := fib{fd: -1}
	defer b.close()
	to := query{to: netip.MustParseAddrPort("127.0.0.1:22")}
	if own, err := b.isOwn(to); !own || err != nil {
		t.Fatal(own, err)
	}
	for _, m := range [][]byte{nil, make([]byte, 16), make([]byte, 20), make([]byte, 64)} {
		if _, errno := b.parse(m); errno == 0 {
			t.Errorf("%d bytes are an answer", len(m))
		}
	}
	fd, errno := newSocket(unix.AF_INET) // in place of a netlink socket
	if errno != 0 {
		t.Fatal(errno)
	}
	b.fd = fd
	if _, err := b.isOwn(to); err == nil {
		t.Error("no error without netlink")
	}
	if own, err := b.isOwn(to); !own || err != nil {
		t.Error("not after a new start", own, err)
	}
}

// A client that dialed an address of this host does not reach it, unless the tunnel lets
// it, also for a held SYN. The flow counts as denied before the SYN has its answer.
func TestLocalTargets(t *testing.T) {
	nettest.CheckLeaks(t)
	for _, local := range []bool{false, true} {
		g := heldRig(t, newRig, func(tun *Tunnel) {
			tun.Forward = []hops.Target{{Original: true}}
			tun.LocalTargets = local
		})
		target := listen(t)
		answers := make(chan *report.Refusal, 1)
		var denied int64 // as the answer comes
		g.relay.OpenHeld(HeldSYN{Tunnel: "t", From: clientPort(t), To: addrOf(target), Answer: func(r *report.Refusal) {
			denied = g.relay.Overview().Tunnels[0].Denied
			answers <- r
		}})
		switch r := answerOf(t, answers); {
		case local && r != nil:
			t.Errorf("with local_targets: %v", r)
		case !local && (r == nil || r.Reason != report.EndDenied || r.Err.Error() != "127.0.0.1 is an address of this host: see local_targets"):
			t.Errorf("without local_targets: %+v", r)
		}
		if (denied == 1) == local {
			t.Errorf("local_targets: %v: %d denied", local, denied)
		}
	}
}

func BenchmarkIsOwn(b *testing.B) {
	h := ownHost(b)
	for name, to := range map[string]string{"own4": "10.1.1.1:22", "other4": "198.51.100.1:22", "own6": "[fd01:1::1]:22", "other6": "[2001:db8::1]:22"} {
		b.Run(name, func(b *testing.B) {
			nettest.Must(b, h.Do(func() error {
				f := fib{fd: -1}
				defer f.close()
				q := query{to: netip.MustParseAddrPort(to)}
				b.ReportAllocs()
				for b.Loop() {
					if _, err := f.isOwn(q); err != nil {
						return err
					}
				}
				return nil
			}))
		})
	}
}
