package hold_test

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf/features"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"longhaul/internal/carry/intercept"
	"longhaul/internal/carry/intercept/hold"
	"longhaul/internal/sys/checksum"
	"longhaul/internal/sys/ledger"
	"longhaul/lab/hosts"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

const patience = 30 * time.Second

// router makes this process's network namespace the router of clients behind lan0, and
// has it hold the SYNs to the targets. No target exists. answers decides.
type router struct {
	holder    *hold.Holder
	listeners []*net.TCPListener // by family
}

func newRouter(t testing.TB, mirror bool, answer func(*hold.Holder, hold.SYN)) *router {
	t.Helper()
	nettest.RequireRoot(t)
	r := &router{}
	ready := make(chan struct{})
	h, err := hold.New(func(s hold.SYN) {
		<-ready
		answer(r.holder, s)
	}, func(err error) { t.Error(err) })
	const since = 5<<8 | 18
	if version, unknown := features.LinuxVersionCode(); err != nil && unknown == nil && version>>8 < since {
		t.Skip(err)
	}
	must(t, err)
	r.holder = h
	close(ready)
	t.Cleanup(h.Close)
	tunnel := intercept.Tunnel{Name: "main", Interface: "lan0", Mirror: mirror,
		To: []netip.Prefix{netip.MustParsePrefix("10.9.2.0/24"), netip.MustParsePrefix("fd09:2::/64")}}
	ports := []*uint16{&tunnel.HoldPort, &tunnel.HoldPort6}
	listening := []*uint16{&tunnel.ListenPort, &tunnel.ListenPort6}
	for i, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		*ports[i], err = h.Listen(hold.Place{Tunnel: "main", Interface: "lan0", Six: i == 1})
		must(t, err)
		lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
			level, option := unix.SOL_IP, unix.IP_TRANSPARENT
			if i == 1 {
				level, option = unix.SOL_IPV6, unix.IPV6_TRANSPARENT
			}
			return errors.Join(c.Control(func(fd uintptr) {
				err = errors.Join(unix.SetsockoptInt(int(fd), level, option, 1),
					unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_SAVE_SYN, 1))
			}), err)
		}}
		lc.SetMultipathTCP(false)
		l, err := lc.Listen(t.Context(), "tcp", address)
		must(t, err)
		t.Cleanup(func() { l.Close() })
		r.listeners = append(r.listeners, l.(*net.TCPListener))
		*listening[i] = uint16(l.Addr().(*net.TCPAddr).Port)
	}
	host := &intercept.Host{Ledger: filepath.Join(t.TempDir(), "ledger"), By: ledger.By{Owner: "test", Means: ledger.Relay, Process: ledger.ThisProcess()}}
	must(t, host.Set(intercept.Options{Relay: "test", Tunnels: []intercept.Tunnel{tunnel}}, &intercept.Standing{}))
	t.Cleanup(func() { must(t, host.Clear("test")) })
	return r
}

// newClient makes a client behind lan0.
func newClient(t testing.TB) *hosts.Host {
	t.Helper()
	a, err := hosts.New("a")
	must(t, err)
	t.Cleanup(a.Close)
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lan0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(a.Namespace())}
	must(t, netlink.LinkAdd(link))
	t.Cleanup(func() { must(t, netlink.LinkDel(link)) })
	must(t, a.Up("eth0"))
	use(t, link, "10.9.1.1/24", "fd09:1::1/64")
	must(t, a.Address("eth0", netip.MustParsePrefix("10.9.1.2/24")))
	must(t, a.Address("eth0", netip.MustParsePrefix("fd09:1::2/64")))
	must(t, a.Route(hosts.Route{To: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.9.1.1")}))
	must(t, a.Route(hosts.Route{To: netip.MustParsePrefix("::/0"), Via: netip.MustParseAddr("fd09:1::1")}))
	return a
}

func use(t testing.TB, link netlink.Link, addresses ...string) {
	t.Helper()
	must(t, netlink.LinkSetUp(link))
	for _, text := range addresses {
		address, err := netlink.ParseAddr(text)
		must(t, err)
		address.Flags = unix.IFA_F_NODAD
		must(t, netlink.AddrAdd(link, address))
	}
	for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		must(t, os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0))
	}
}

// TestAnswers: the client gets each answer, as the errno of connect.
func TestAnswers(t *testing.T) {
	r := newRouter(t, true, func(h *hold.Holder, s hold.SYN) { h.Answer(s, hold.Answer(s.To.Port()-5000)) })
	a := newClient(t)
	for answer, want := range map[hold.Answer][2]syscall.Errno{
		hold.Connect:         {},
		hold.Reset:           {syscall.ECONNREFUSED, syscall.ECONNREFUSED},
		hold.NetUnreachable:  {syscall.ENETUNREACH, syscall.ENETUNREACH},
		hold.HostUnreachable: {syscall.EHOSTUNREACH, syscall.EHOSTUNREACH},
		hold.AdminProhibited: {syscall.EHOSTUNREACH, syscall.EACCES},
	} {
		for i, target := range []string{"10.9.2.2", "fd09:2::2"} {
			c, err := a.DialTCP(t.Context(), netip.AddrPortFrom(netip.MustParseAddr(target), 5000+uint16(answer)), patience)
			var got syscall.Errno
			errors.As(err, &got)
			if got != want[i] || (err == nil) != (want[i] == 0) {
				t.Errorf("answer %d of %s: %v, want %v", answer, target, err, want[i])
			}
			if err == nil {
				expectOptions(t, r.listeners[i], c)
				c.Close()
			}
		}
	}
}

// expectOptions checks that the listener got the client's SYN with the options of a Linux
// kernel, and the client the listener's.
func expectOptions(t *testing.T, l *net.TCPListener, c net.Conn) {
	t.Helper()
	must(t, l.SetDeadline(time.Now().Add(patience)))
	accepted, err := l.AcceptTCP()
	must(t, err)
	defer accepted.Close()
	if accepted.RemoteAddr().String() != c.LocalAddr().String() || accepted.LocalAddr().String() != c.RemoteAddr().String() {
		t.Errorf("accepted from %s to %s, dialed from %s to %s", accepted.RemoteAddr(), accepted.LocalAddr(), c.LocalAddr(), c.RemoteAddr())
	}
	for side, conn := range map[string]*net.TCPConn{"client": c.(*net.TCPConn), "relay": accepted} {
		raw, err := conn.SyscallConn()
		must(t, err)
		must(t, raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			must(t, err)
			const timestamps, sack, scale = 1, 2, 4
			if info.Options&(timestamps|sack|scale) != timestamps|sack|scale || info.Snd_mss < 1400 {
				t.Errorf("the %s's connection has options %#x and an MSS of %d", side, info.Options, info.Snd_mss)
			}
		}))
	}
}

// TestNoEthernet: SYNs of a device without Ethernet, as those of a VPN, are held and put
// back, too.
func TestNoEthernet(t *testing.T) {
	newRouter(t, true, func(h *hold.Holder, s hold.SYN) { h.Answer(s, hold.Connect) })
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	must(t, err)
	request, err := unix.NewIfreq("lan0")
	must(t, err)
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	must(t, unix.IoctlIfreq(fd, unix.TUNSETIFF, request))
	tun := os.NewFile(uintptr(fd), "tun")
	defer tun.Close()
	link, err := netlink.LinkByName("lan0")
	must(t, err)
	use(t, link, "10.9.1.1/24")
	syn := []byte{0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, unix.IPPROTO_TCP, 0x21, 0xb9, 10, 9, 1, 2, 10, 9, 2, 2,
		0x80, 1, 0x13, 0x88, 1, 2, 3, 4, 0, 0, 0, 0, 0x50, 0x02, 0xfa, 0xf0, 0, 0, 0, 0}
	// Another port for each run: the kernel remembers the last run's SYN for a while.
	binary.BigEndian.PutUint16(syn[20:], 1024+uint16(time.Now().UnixNano())%60000)
	binary.BigEndian.PutUint16(syn[10:], 0)
	binary.BigEndian.PutUint16(syn[10:], checksum.Of(syn[:20]))
	binary.BigEndian.PutUint16(syn[36:], checksum.Of(syn[12:20], []byte{0, unix.IPPROTO_TCP, 0, 20}, syn[20:]))
	_, err = tun.Write(syn)
	must(t, err)
	b := make([]byte, 2000)
	must(t, tun.SetReadDeadline(time.Now().Add(patience)))
	for {
		n, err := tun.Read(b)
		if err != nil {
			t.Fatalf("no SYN-ACK: %v", err)
		}
		if n >= 40 && b[0] == 0x45 && slices.Equal(b[12:20], []byte{10, 9, 2, 2, 10, 9, 1, 2}) && b[33] == 0x12 {
			return
		}
	}
}

// BenchmarkConnect is the time and the CPU time of a connect to the relay, of all
// processes of the machine's side: with the SYN held and put back at once, and without.
func BenchmarkConnect(b *testing.B) {
	for _, mirror := range []bool{false, true} {
		b.Run(map[bool]string{false: "after", true: "mirror"}[mirror], func(b *testing.B) {
			r := newRouter(b, mirror, func(h *hold.Holder, s hold.SYN) { h.Answer(s, hold.Connect) })
			a := newClient(b)
			go func() {
				for {
					c, err := r.listeners[0].AcceptTCP()
					if err != nil {
						return
					}
					c.Close()
				}
			}()
			to := &unix.SockaddrInet4{Port: 5000, Addr: [4]byte{10, 9, 2, 2}}
			var before, after unix.Rusage
			must(b, a.Do(func() error {
				must(b, unix.Getrusage(unix.RUSAGE_SELF, &before))
				for b.Loop() {
					fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
					if err != nil {
						return err
					}
					if err := unix.Connect(fd, to); err != nil {
						return err
					}
					unix.Close(fd)
				}
				return unix.Getrusage(unix.RUSAGE_SELF, &after)
			}))
			used := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
			b.ReportMetric(float64(used)/1e3/float64(b.N), "cpu-us/op")
		})
	}
}
