package intercept

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"longhaul/lab/hosts"
	"longhaul/lab/linktest"
	"longhaul/test/nettest"
)

// flood sends SYNs to a target from that many ports of an address that answers nothing.
func (s *site) flood(i linktest.Injector, n int, target string) {
	s.t.Helper()
	to := netip.AddrPortFrom(netip.MustParseAddr(target), 5000)
	from := netip.MustParseAddr("10.9.1.77")
	if to.Addr().Is6() {
		from = netip.MustParseAddr("fd09:1::77")
	}
	for port := range n {
		must(s.t, i.Send(linktest.SYNPacket(netip.AddrPortFrom(from, uint16(1024+port)), to)))
	}
}

// silence has the router know the flooding addresses, so that what it sends them is lost
// without ICMP errors of its own.
func (s *site) silence() {
	s.t.Helper()
	nettest.RequireProgram(s.t, "ip", "iproute2")
	for _, address := range []string{"10.9.1.77", "fd09:1::77"} {
		s.run("ip neigh replace " + address + " lladdr 02:00:00:00:00:77 dev left nud permanent")
	}
}

// counterOf reads a counter of TCP on the router.
func (s *site) counterOf(name string) (n int) {
	s.t.Helper()
	must(s.t, s.R.Do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/netstat")
		if err != nil {
			return err
		}
		lines := strings.Split(string(b), "\n")
		names, values := strings.Fields(lines[0]), strings.Fields(lines[1])
		for i, one := range names {
			if one == name {
				n, err = strconv.Atoi(values[i])
				return err
			}
		}
		return fmt.Errorf("the kernel counts no %s", name)
	}))
	return n
}

// TestSYNCookies: connections whose SYN the kernel answered with a cookie are intercepted,
// also when the rules are set anew meanwhile, and no connection is reset.
func TestSYNCookies(t *testing.T) {
	for _, tt := range []struct {
		name, cookies string
		change        func(*Options)
	}{
		{"always", "2", func(*Options) {}},
		{"in a flood", "1", func(*Options) {}},
		{"in a flood, all ports", "1", func(o *Options) { o.Tunnels[0].Ports, o.Tunnels[0].From = nil, nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.silence()
			must(t, s.R.Sysctl("net.ipv4.tcp_syncookies", tt.cookies))
			const backlog = 128
			must(t, s.R.Sysctl("net.core.somaxconn", strconv.Itoa(backlog)))
			o := options()
			tt.change(&o)
			s.set(o)
			defer s.relay(o.Tunnels[0])()
			i := linktest.NewInjector(t, s.A, "eth0")
			for range 3 {
				for _, target := range targets {
					s.flood(i, 3*backlog, target)
				}
				s.expect(byRelay, 5000)
				s.set(o)
			}
			if s.counterOf("SyncookiesRecv") == 0 {
				t.Error("no connection had a cookie")
			}
			if n := s.counterOf("SyncookiesFailed"); n != 0 {
				t.Errorf("%d cookies were no good", n)
			}
		})
	}
}

// TestCookieAcrossSet: the answer to a cookie reaches the relay although the rules were
// set anew, and the tunnel paused, since the SYN.
func TestCookieAcrossSet(t *testing.T) {
	s := newSite(t)
	must(t, s.R.Sysctl("net.ipv4.tcp_syncookies", "2"))
	o := options()
	s.set(o)
	defer s.relay(o.Tunnels[0])()
	for _, target := range targets {
		before := s.relayed.Load()
		conn := s.handshakeAcross(target, func() {
			o.Tunnels[0].Paused = !o.Tunnels[0].Paused
			s.set(o)
		})
		must(t, conn.SetDeadline(time.Now().Add(patience)))
		if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
			t.Errorf("%s: %v", target, err)
		}
		conn.Close()
		if s.relayed.Load() == before {
			t.Errorf("%s: the relay did not get the connection", target)
		}
		o.Tunnels[0].Paused = false
		s.set(o)
	}
}

// handshakeAcross connects the client to a target. The client's host drops the
// acknowledgement of the SYN-ACK, so that the data sent after meanwhile are the first
// that the router sees of the connection.
func (s *site) handshakeAcross(target string, meanwhile func()) net.Conn {
	s.t.Helper()
	speak := s.hush("output", "ack")
	conn, err := s.A.DialTCP(s.t.Context(), netip.AddrPortFrom(netip.MustParseAddr(target), 5000), patience)
	must(s.t, err)
	meanwhile()
	speak()
	_, err = conn.Write([]byte("x"))
	must(s.t, err)
	return conn
}

// hush has the client's host drop segments at a hook that have these of the flags SYN and
// ACK, until speak.
func (s *site) hush(hook, flags string) (speak func()) {
	s.t.Helper()
	nettest.RequireProgram(s.t, "nft", "nftables")
	linktest.Shell(s.t, s.A, fmt.Sprintf("nft 'table inet hush { chain quiet { type filter hook %s priority 0; tcp flags & (syn | ack) == %s drop; }; }'", hook, flags))
	return func() {
		s.t.Helper()
		linktest.Shell(s.t, s.A, "nft delete table inet hush")
	}
}

// TestSignedPasses: connections that are signed (TCP-MD5) go directly, with all their
// segments, also while the relay restarts.
func TestSignedPasses(t *testing.T) {
	s := newSite(t)
	const port = 5002
	o := options()
	s.set(o)
	stop := s.relay(o.Tunnels[0])
	for n, ends := range [][2]string{{"10.9.1.2", "10.9.2.2"}, {"fd09:1::2", "fd09:2::2"}} {
		client, target := netip.MustParseAddr(ends[0]), netip.AddrPortFrom(netip.MustParseAddr(ends[1]), port)
		var l net.Listener
		lc := net.ListenConfig{Control: controlled(func(fd int) error { return sign(fd, netip.AddrPortFrom(client, 0)) })}
		lc.SetMultipathTCP(false)
		must(t, s.B.Do(func() (err error) {
			l, err = lc.Listen(t.Context(), "tcp", target.String())
			return err
		}))
		s.accept(l, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
		d := net.Dialer{Timeout: patience, Control: controlled(func(fd int) error { return sign(fd, target) })}
		d.SetMultipathTCP(false)
		var conn net.Conn
		must(t, s.A.Do(func() (err error) {
			conn, err = d.Dial("tcp", target.String())
			return err
		}))
		t.Cleanup(func() { conn.Close() })
		must(t, conn.SetDeadline(time.Now().Add(patience)))
		talk := func(when string) {
			t.Helper()
			b := make([]byte, 4)
			if _, err := conn.Write([]byte("bgp!")); err != nil {
				t.Errorf("%s: %v", when, err)
			}
			if _, err := io.ReadFull(conn, b); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
		talk("while the relay runs")
		stop()
		talk("without a relay")
		s.set(o)
		stop = s.relay(o.Tunnels[0])
		talk("after the relay's restart")
		if got := s.shown().Signed; got != uint64(n+1) {
			t.Errorf("%d signed connections counted, want %d", got, n+1)
		}
	}
	stop()
	if n := s.relayed.Load(); n != 0 {
		t.Errorf("%d connections by the relay, want 0", n)
	}
}

// sign is TCP_MD5SIG for a peer.
func sign(fd int, peer netip.AddrPort) error {
	var s unix.TCPMD5Sig
	if peer.Addr().Is4() {
		sa := (*unix.RawSockaddrInet4)(unsafe.Pointer(&s.Addr))
		sa.Family, sa.Addr = unix.AF_INET, peer.Addr().As4()
	} else {
		sa := (*unix.RawSockaddrInet6)(unsafe.Pointer(&s.Addr))
		sa.Family, sa.Addr = unix.AF_INET6, peer.Addr().As16()
	}
	s.Keylen = uint16(copy(s.Key[:], "secret"))
	return unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, &s)
}

// shown is what the router shows of the tunnel.
func (s *site) shown() TunnelStatus {
	s.t.Helper()
	var all []Status
	must(s.t, s.on(func(h *Host) (err error) {
		all, err = h.Show()
		return err
	}))
	if len(all) != 1 || len(all[0].Tunnels) != 1 || all[0].Problem != "" {
		s.t.Fatalf("shown: %+v", all)
	}
	return all[0].Tunnels[0]
}

// TestTCPAOPasses: a SYN with the option of TCP-AO, which few kernels have, goes directly,
// and so does one with others before it. Other unknown options are no reason to pass.
func TestTCPAOPasses(t *testing.T) {
	s := newSite(t)
	o := options()
	s.set(o)
	defer s.relay(o.Tunnels[0])()
	i := linktest.NewInjector(t, s.A, "eth0")
	const pad = 1
	option := func(kind byte, data ...byte) []byte { return append([]byte{kind, byte(2 + len(data))}, data...) }
	ao := option(29, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)
	for n, tt := range []struct {
		name          string
		options       []byte
		signed, taken uint64 // for both targets
	}{
		{"TCP-AO", ao, 2, 0},
		{"after others", slices.Concat(option(2, 5, 180), []byte{pad, pad, pad, pad}, ao), 2, 0},
		{"MD5", append([]byte{pad, pad}, option(19, make([]byte, 16)...)...), 2, 0},
		{"another option", option(253, 1, 2), 0, 2},
		{"its number as data", append(option(253, 29, 19), option(2, 29, 19)...), 0, 2},
		{"none", nil, 0, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s.t = t
			before := s.shown()
			for _, target := range targets {
				to := netip.AddrPortFrom(netip.MustParseAddr(target), 5000)
				from := netip.MustParseAddr("10.9.1.77")
				if to.Addr().Is6() {
					from = netip.MustParseAddr("fd09:1::77")
				}
				must(t, i.Send(linktest.SYNPacket(netip.AddrPortFrom(from, uint16(2000+n)), to, tt.options...)))
			}
			nettest.Eventually(t, patience, func() bool {
				now := s.shown()
				return now.Signed+now.Connections-before.Signed-before.Connections == 2
			}, func() string { return fmt.Sprintf("%+v", s.shown()) })
			if now := s.shown(); now.Signed-before.Signed != tt.signed || now.Connections-before.Connections != tt.taken {
				t.Errorf("%d signed and %d taken, want %d and %d", now.Signed-before.Signed, now.Connections-before.Connections, tt.signed, tt.taken)
			}
		})
	}
	s.t = t
}

// TestExtensionHeaders: a connection whose packets have extension headers of IPv6 is
// intercepted as any other.
func TestExtensionHeaders(t *testing.T) {
	s := newSite(t)
	o := options()
	s.set(o)
	defer s.relay(o.Tunnels[0])()
	padding := string([]byte{0, 0, 1, 4, 0, 0, 0, 0}) // PadN; the kernel sets the next header
	for name, header := range map[string]int{"hop by hop": unix.IPV6_HOPOPTS, "destination options": unix.IPV6_DSTOPTS} {
		before := s.relayed.Load()
		d := net.Dialer{Timeout: patience, Control: controlled(func(fd int) error {
			return unix.SetsockoptString(fd, unix.IPPROTO_IPV6, header, padding)
		})}
		d.SetMultipathTCP(false)
		var conn net.Conn
		must(t, s.A.Do(func() (err error) {
			conn, err = d.Dial("tcp", "[fd09:2::2]:5000")
			return err
		}))
		must(t, s.echoes(conn))
		if s.relayed.Load() != before+1 {
			t.Errorf("%s: not by the relay", name)
		}
	}
}

// echoes sends a megabyte to the target, which comes back, and ends the connection.
func (s *site) echoes(conn net.Conn) error {
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	r := bufio.NewReader(conn)
	if _, err := r.ReadString('\n'); err != nil {
		return err
	}
	const size = 1 << 20
	go func() {
		_, _ = conn.Write(make([]byte, size))
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	n, err := io.Copy(io.Discard, r)
	if err == nil && n != size {
		err = fmt.Errorf("%d of %d bytes came back", n, size)
	}
	return err
}

// TestFragments: a connection whose packets arrive in fragments, SYN and all, is
// intercepted as any other.
func TestFragments(t *testing.T) {
	s := newSite(t)
	s.fragment("10.9.2.0/24", "fd09:2::/64")
	o := options()
	s.set(o)
	defer s.relay(o.Tunnels[0])()
	s.expect(byRelay, 5000)
	if n := s.shown().Connections; n != 2 {
		t.Errorf("%d SYNs counted, want 2", n)
	}
}

// fragment has the client's packets to prefixes leave in fragments, see [pieces].
func (s *site) fragment(prefixes ...string) {
	s.t.Helper()
	var fd int
	must(s.t, s.A.Do(func() (err error) {
		if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		request, err := unix.NewIfreq("pieces")
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			return err
		}
		return nil
	}))
	must(s.t, s.A.Up("pieces"))
	for n, to := range prefixes {
		source := netip.MustParseAddr([]string{"10.9.1.2", "fd09:1::2"}[n])
		must(s.t, s.A.Route(hosts.Route{To: netip.MustParsePrefix(to), Device: "pieces", From: source}))
	}
	tun := os.NewFile(uintptr(fd), "tun")
	out := linktest.NewInjector(s.t, s.A, "eth0")
	ended := make(chan error, 1)
	go func() {
		b := make([]byte, 1<<16)
		for id := uint32(1); ; id++ {
			n, err := tun.Read(b)
			if err != nil {
				ended <- nil
				return
			}
			for _, piece := range pieces(b[:n], id) {
				if err := out.Send(piece); err != nil && !errors.Is(err, unix.ENETUNREACH) {
					ended <- fmt.Errorf("send a fragment: %w", err)
					return
				}
			}
		}
	}()
	s.t.Cleanup(func() {
		must(s.t, s.A.Do(func() error {
			device, err := netlink.LinkByName("pieces")
			if err != nil {
				return err
			}
			return netlink.LinkDel(device)
		}))
		must(s.t, <-ended)
		tun.Close()
	})
}

// pieces are the fragments of an IP packet: up to eight, or one with a fragment header.
// The first one of IPv6 has the whole header of TCP (RFC 7112), so its SYNs are one piece.
func pieces(packet []byte, id uint32) (all [][]byte) {
	header, least := 40, 64
	if packet[0]>>4 == 4 {
		header, least = int(packet[0]&15)*4, 16
	}
	payload := packet[header:]
	size := max(least, (len(payload)/8+7)&^7)
	for at := 0; at < len(payload); at += size {
		part := payload[at:min(at+size, len(payload))]
		more := at+size < len(payload)
		piece := append([]byte{}, packet[:header]...)
		if packet[0]>>4 == 4 {
			offset := uint16(at / 8)
			if more {
				offset |= 0x2000
			}
			binary.BigEndian.PutUint16(piece[2:], uint16(header+len(part)))
			binary.BigEndian.PutUint16(piece[4:], uint16(id))
			binary.BigEndian.PutUint16(piece[6:], offset)
		} else {
			offset := uint16(at)
			if more {
				offset |= 1
			}
			next := piece[6]
			piece[6] = unix.IPPROTO_FRAGMENT
			binary.BigEndian.PutUint16(piece[4:], uint16(8+len(part)))
			piece = append(piece, next, 0)
			piece = binary.BigEndian.AppendUint16(piece, offset)
			piece = binary.BigEndian.AppendUint32(piece, id)
		}
		all = append(all, append(piece, part...))
	}
	return all
}

// TestOtherHooksHold: rules at prerouting and input see what the tunnel takes, as they see
// all other packets of the clients.
func TestOtherHooksHold(t *testing.T) {
	s := newSite(t)
	s.nft(`table inet fw {
		chain pre { type filter hook prerouting priority raw; tcp dport 5000 tcp sport 3000 counter drop; }
		chain later { type filter hook prerouting priority 400; tcp dport 5000 tcp sport 3001 counter drop; }
		chain in { type filter hook input priority 0; tcp dport 5000 tcp sport 3002 counter drop; }
	}`)
	o := options()
	s.set(o)
	defer s.relay(o.Tunnels[0])()
	i := linktest.NewInjector(t, s.A, "eth0")
	for n := range uint16(3) {
		for _, ends := range [][2]string{{"10.9.1.77", "10.9.2.2"}, {"fd09:1::77", "fd09:2::2"}} {
			must(t, i.Send(linktest.SYNPacket(netip.AddrPortFrom(netip.MustParseAddr(ends[0]), 3000+n), netip.AddrPortFrom(netip.MustParseAddr(ends[1]), 5000))))
		}
	}
	nettest.Eventually(t, patience, func() bool {
		return strings.Count(s.run("nft list table inet fw"), "counter packets 2 ") == 3
	}, func() string { return s.run("nft list table inet fw") })
}

// TestSYNAgainGoesDirectly: a client gets no answer of the relay, and its next SYN finds the
// tunnel paused. The relay gets nothing of the direct connection.
func TestSYNAgainGoesDirectly(t *testing.T) {
	s := newSite(t)
	must(t, s.R.Sysctl("net.ipv4.tcp_syncookies", "2"))
	o := options()
	defer s.relay(o.Tunnels[0])()
	for _, target := range targets {
		o.Tunnels[0].Paused = false
		s.set(o)
		before := s.shown()
		speak := s.hush("input", "syn | ack")
		ended := make(chan error, 1)
		go func() {
			_, _, err := s.exchange(target, 5000, 1<<20)
			ended <- err
		}()
		nettest.Eventually(t, patience, func() bool { return s.shown().Connections > before.Connections }, func() string { return "no SYN came" })
		o.Tunnels[0].Paused = true
		s.set(o)
		speak()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", target, err)
		}
	}
	if n := s.relayed.Load(); n != 0 {
		t.Errorf("%d connections by the relay, want 0", n)
	}
}
