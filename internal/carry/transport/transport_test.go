package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/ccnames"
	"longhaul/lab/link"
	"longhaul/test/nettest"
)

func newTestTunnel(t *testing.T, lan, wan Options, side WANSide) *Tunnel {
	t.Helper()
	tunnel, err := New(Legs{LAN: lan, WAN: wan, Side: side}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return tunnel
}

// connectLocal connects over loopback in the test's namespace.
func connectLocal(t *testing.T, address string, tunnel *Tunnel) (dialed, accepted leg, l *net.TCPListener) {
	t.Helper()
	lc := net.ListenConfig{Control: control(tunnel, false), KeepAlive: -1} // net would set its own
	lc.SetMultipathTCP(false)
	listener, err := lc.Listen(context.Background(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	d := net.Dialer{Control: control(tunnel, true), KeepAlive: -1}
	d.SetMultipathTCP(false)
	c, err := d.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return newLeg(t, c, tunnel, true), newLeg(t, s, tunnel, false), listener.(*net.TCPListener)
}

func (l leg) option(t *testing.T, level, option int) (value int) {
	t.Helper()
	l.fd(t, func(fd int) {
		var err error
		if value, err = unix.GetsockoptInt(fd, level, option); err != nil {
			t.Fatal(err)
		}
	})
	return value
}

// bufferLocks returns which buffers have a fixed size. It skips the test where the
// kernel does not tell.
func (l leg) bufferLocks(t *testing.T) (locks int) {
	t.Helper()
	var err error
	l.fd(t, func(fd int) { locks, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK) })
	if errors.Is(err, unix.ENOPROTOOPT) {
		t.Skip("needs SO_BUF_LOCK (Linux 5.14)")
	}
	nettest.Must(t, err)
	return locks
}

func (l leg) congestionControl(t *testing.T) (name string) {
	t.Helper()
	l.fd(t, func(fd int) {
		var err error
		if name, err = unix.GetsockoptString(fd, unix.SOL_TCP, unix.TCP_CONGESTION); err != nil {
			t.Fatal(err)
		}
	})
	return name
}

func (l leg) pacing(t *testing.T) (bytesPerSecond uint64) {
	t.Helper()
	l.fd(t, func(fd int) {
		var err error
		if bytesPerSecond, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE); err != nil {
			t.Fatal(err)
		}
	})
	return bytesPerSecond
}

func (l leg) windowScale(t *testing.T) (shift uint8) {
	t.Helper()
	l.fd(t, func(fd int) {
		info, err := tcpinfo.Get(fd)
		nettest.Must(t, err)
		shift = info.RcvWScale
	})
	return shift
}

func (l leg) info(t *testing.T) (info *unix.TCPInfo) {
	t.Helper()
	l.fd(t, func(fd int) {
		var err error
		if info, err = unix.GetsockoptTCPInfo(fd, unix.SOL_TCP, unix.TCP_INFO); err != nil {
			t.Fatal(err)
		}
	})
	return info
}

// Every option is set on the accepted leg, by inheritance, and on the dialed
// one.
func TestOptionsArrive(t *testing.T) {
	nettest.RequireSandbox(t)
	dscp := uint8(46)
	o := Options{
		CongestionControl: "reno",
		PacingRateBps:     20_000_000_000,
		SendBuffer:        1 << 20,
		ReceiveBuffer:     2 << 20,
		MSS:               1000,
		Keepalive:         Keepalive{Idle: 61 * time.Second, Interval: 1500 * time.Millisecond, Count: 4},
		UserTimeout:       2 * time.Second,
		DSCP:              &dscp,
	}
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		for _, side := range []WANSide{WANBoth, WANNone} {
			t.Run(address+" "+string(side), func(t *testing.T) {
				dialed, accepted, _ := connectLocal(t, address, newTestTunnel(t, o, o, side))
				for name, l := range map[string]leg{"dialed": dialed, "accepted": accepted} {
					want := map[string]int{
						"send buffer": 2 << 20, "receive buffer": 4 << 20,
						"keepalive": 1, "idle": 61, "interval": 2, "count": 4, "user timeout": 2000, "tos": 46 << 2,
					}
					got := map[string]int{
						"send buffer":    l.option(t, unix.SOL_SOCKET, unix.SO_SNDBUF),
						"receive buffer": l.option(t, unix.SOL_SOCKET, unix.SO_RCVBUF),
						"keepalive":      l.option(t, unix.SOL_SOCKET, unix.SO_KEEPALIVE),
						"idle":           l.option(t, unix.SOL_TCP, unix.TCP_KEEPIDLE),
						"interval":       l.option(t, unix.SOL_TCP, unix.TCP_KEEPINTVL),
						"count":          l.option(t, unix.SOL_TCP, unix.TCP_KEEPCNT),
						"user timeout":   l.option(t, unix.SOL_TCP, unix.TCP_USER_TIMEOUT),
						"tos":            l.option(t, unix.SOL_IP, unix.IP_TOS),
					}
					if strings.HasPrefix(address, "[") {
						want["class"] = 46 << 2
						got["class"] = l.option(t, unix.SOL_IPV6, unix.IPV6_TCLASS)
					}
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("%s leg (-want +got):\n%s", name, diff)
					}
					if cc := l.congestionControl(t); cc != "reno" {
						t.Errorf("%s leg uses %s", name, cc)
					}
					if p := l.pacing(t); p != 20_000_000_000/8 {
						t.Errorf("%s leg is paced to %d bytes/s", name, p)
					}
					if mss := l.info(t).Snd_mss; mss > 1000 || mss < 900 {
						t.Errorf("%s leg has segments of %d bytes", name, mss)
					}
					if l.degraded != "" {
						t.Errorf("%s leg: %s", name, l.degraded)
					}
				}
			})
		}
	}
}

// A listening socket that stays open over a reload gets the new settings and
// loses the old ones.
func TestPrepareAgain(t *testing.T) {
	nettest.RequireSandbox(t)
	o := Options{CongestionControl: "reno", PacingRateBps: 1e9, ReceiveBuffer: 1 << 20, MSS: 1000, UserTimeout: time.Minute}
	_, _, listener := connectLocal(t, "127.0.0.1:0", newTestTunnel(t, o, o, WANBoth))

	after := newTestTunnel(t, Options{Keepalive: Keepalive{Disabled: true}}, Options{}, WANNone)
	raw, err := listener.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = after.Prepare(int(fd), false) }); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	d := net.Dialer{}
	d.SetMultipathTCP(false)
	c, err := d.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	s, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	l := newLeg(t, s, after, false)
	if cc := l.congestionControl(t); cc != after.lan.cc.name {
		t.Errorf("congestion control %s, want %s", cc, after.lan.cc.name)
	}
	if p := l.pacing(t); p != noPacingBound {
		t.Errorf("still paced to %d bytes/s", p)
	}
	if mss := l.info(t).Snd_mss; mss <= 1000 {
		t.Errorf("segments still have %d bytes", mss)
	}
	if locks := l.bufferLocks(t); locks&unix.SOCK_RCVBUF_LOCK != 0 {
		t.Error("the receive buffer is still fixed")
	}
	if n := l.option(t, unix.SOL_TCP, unix.TCP_USER_TIMEOUT); n != 0 {
		t.Errorf("user timeout still %d ms", n)
	}
	if after.host.canCapRTO {
		if n := l.option(t, unix.SOL_TCP, rtoMaxOption); n != 120_000 {
			t.Errorf("bound of the retransmission timeout still %d ms", n)
		}
	}
	if n := l.option(t, unix.SOL_SOCKET, unix.SO_KEEPALIVE); n != 0 {
		t.Error("keepalive is still on")
	}
}

// TestAuto holds that WANAuto decides by the round trip: loopback is a LAN, a path of 20 ms is not.
func TestAuto(t *testing.T) {
	dialed, accepted, _ := connectLocal(t, "127.0.0.1:0", withRTT(newTestTunnel(t, Options{}, Options{}, WANAuto), near))
	a, b, _ := newPath(t, link.Settings{Delay: 10 * time.Millisecond, RateBps: 1e9})
	farDialed, farAccepted := connect(t, a, b, a.tunnel(t, Options{}, Options{}, WANAuto), b.tunnel(t, Options{}, Options{}, ""))
	for _, tt := range []struct {
		name string
		leg  leg
		side string
	}{{"dialed on loopback", dialed, LAN}, {"accepted on loopback", accepted, LAN}, {"dialed over 20 ms", farDialed, WAN}, {"accepted over 20 ms", farAccepted, WAN}} {
		if tt.leg.side != tt.side {
			t.Errorf("%s: %s, want %s", tt.name, tt.leg.side, tt.side)
		}
		cc := tt.leg.congestionControl(t)
		if ccnames.Paces(cc) && tt.side == LAN {
			t.Errorf("%s: %s", tt.name, cc)
		}
		if tryCC("bbr") == nil && tt.side == WAN && !ccnames.Paces(cc) {
			t.Errorf("%s: %s, although there is bbr", tt.name, cc)
		}
		bound := tt.leg.option(t, unix.SOL_TCP, unix.TCP_NOTSENT_LOWAT)
		if want := map[string]int{LAN: 0, WAN: 1_000_000}[tt.side]; bound != want {
			t.Errorf("%s: %d bytes may wait unsent, want %d", tt.name, bound, want)
		}
		if locks := tt.leg.bufferLocks(t); tt.side == LAN && locks != 0 {
			t.Errorf("%s: the buffers are fixed (%d)", tt.name, locks)
		}
	}
}

// withRTT makes a tunnel assume a round trip for every handshake. On a busy
// machine real handshakes take longer, over loopback as long as over a path.
func withRTT(tunnel *Tunnel, rtt time.Duration) *Tunnel {
	tunnel.handshakeRTT = func(int) time.Duration { return rtt }
	return tunnel
}

// near is a round trip on a LAN.
const near = 100 * time.Microsecond

// TestHandshakeRTT holds that handshakeRTT equals the kernel's value.
func TestHandshakeRTT(t *testing.T) {
	begun := time.Now()
	dialed, accepted, _ := connectLocal(t, "127.0.0.1:0", nil)
	took := time.Since(begun)
	for name, l := range map[string]leg{"dialed": dialed, "accepted": accepted} {
		l.fd(t, func(fd int) {
			if rtt := handshakeRTT(fd); rtt <= 0 || rtt > took {
				t.Errorf("%s: a round trip of %v, want more than 0 and at most the %v that the handshake took", name, rtt, took)
			}
		})
	}
	if rtt := handshakeRTT(-1); rtt != guessedRTT {
		t.Errorf("a round trip of %v without a connection, want %v", rtt, guessedRTT)
	}
}

func TestFixedSides(t *testing.T) {
	for _, tt := range []struct {
		side             WANSide
		dialed, accepted string
	}{
		{WANListen, LAN, WAN}, {WANForward, WAN, LAN}, {WANBoth, WAN, WAN}, {WANNone, LAN, LAN},
	} {
		dialed, accepted, _ := connectLocal(t, "127.0.0.1:0", newTestTunnel(t, Options{}, Options{}, tt.side))
		if dialed.side != tt.dialed || accepted.side != tt.accepted {
			t.Errorf("%s: dialed %s and accepted %s, want %s and %s", tt.side, dialed.side, accepted.side, tt.dialed, tt.accepted)
		}
	}
}

// The memory of the process bounds buffers of legs whose side is named, and of lanes. Others have the
// usual window.
func TestMemoryBoundsBuffers(t *testing.T) {
	a, b, _ := newPath(t, link.Settings{Delay: 20 * time.Millisecond, RateBps: 1e9})
	const most = 10e9 / 8 * 0.04 * receiveBDP // bytes of payload for the path
	ours := func(bytes int64) Memory { return Memory{Bytes: bytes, ByUs: true} }
	for _, tt := range []struct {
		name   string
		l      Legs // of the dialing end; the other end has the same, the other way round
		size   int  // of the receive buffer, in bytes of payload
		scale  uint8
		says   string // of degraded; empty: nothing
		remedy string
	}{
		{"much memory", Legs{Side: WANForward, Memory: ours(8 << 30)}, most, 14, "", ""},
		{"some", Legs{Side: WANForward, Memory: ours(3 << 30)}, most, 13, "", ""},
		{"a lane", Legs{Lanes: WANForward, Memory: ours(8 << 30)}, most, 14, "", ""},
		{"little", Legs{Side: WANForward, Memory: ours(512 << 20)}, 64 << 20, 10, "limited by memory", "raise memory_limit to 1 GiB"},
		{"a small host", Legs{Side: WANForward, Memory: Memory{Bytes: 64 << 20}}, usualBuffer, 10, "limited by memory", "give the relay's host or control group 1 GiB of memory"},
		{"an unknown side", Legs{Memory: ours(8 << 30)}, usualBuffer, 10, "", "name the leg's side with wan_side"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.l.WAN.PathRateBps = 10e9
			other := tt.l
			for _, side := range []*WANSide{&other.Side, &other.Lanes} {
				if *side == WANForward {
					*side = WANListen
				}
			}
			ta, tb := a.tunnelOf(t, tt.l), b.tunnelOf(t, other)
			if !ta.host.canForce || !ta.host.canUnlock {
				t.Skip("needs CAP_NET_ADMIN outside a user namespace, and Linux 5.14")
			}
			rtt := func(int) time.Duration { return 40 * time.Millisecond } // also on a busy machine
			ta.handshakeRTT, tb.handshakeRTT = rtt, rtt
			dialed, accepted := connect(t, a, b, ta, tb)
			defer dialed.Close()
			defer accepted.Close()
			for name, l := range map[string]leg{"dialed": dialed, "accepted": accepted} {
				if got := l.option(t, unix.SOL_SOCKET, unix.SO_RCVBUF) / 2; got != tt.size {
					t.Errorf("%s leg: receive buffer of %d bytes, want %d", name, got, tt.size)
				}
				if got := l.windowScale(t); got != tt.scale {
					t.Errorf("%s leg: window scale %d, want %d", name, got, tt.scale)
				}
				if !strings.Contains(l.degraded, tt.says) || tt.remedy == "" && l.degraded != "" {
					t.Errorf("%s leg: %s", name, l.degraded)
				}
			}
			remedies := ""
			for _, lack := range ta.Lacks() {
				remedies += lack.Remedy + "\n"
			}
			if !strings.Contains(remedies, tt.remedy) || tt.remedy == "" && strings.Contains(remedies, "memory") {
				t.Errorf("remedies: %s", remedies)
			}
		})
	}
}

// If the sysctls allow little, as before Linux 6.17, the largest window is set
// before the handshake. A LAN leg returns to autotuning afterwards.
func TestWindowBeyondSysctl(t *testing.T) {
	a, b, _ := newPath(t, link.Settings{Delay: 20 * time.Millisecond, RateBps: 1e9})
	for _, s := range []*site{a, b} {
		s.sysctl(t, "tcp_rmem", "4096 131072 6291456")
	}
	o := Options{PathRateBps: 10e9}
	ta, tb := a.tunnel(t, Options{}, o, WANAuto), b.tunnel(t, Options{}, o, WANAuto)
	if !ta.host.canForce {
		t.Skip("needs CAP_NET_ADMIN outside a user namespace")
	}
	dialed, accepted := connect(t, a, b, ta, tb)
	for name, l := range map[string]leg{"dialed": dialed, "accepted": accepted} {
		// 4 BDP of 10 Gb/s and 40 ms exceed the bound.
		if got := l.option(t, unix.SOL_SOCKET, unix.SO_RCVBUF); got != 2*usualBuffer {
			t.Errorf("%s leg: receive buffer %d, want %d", name, got, 2*usualBuffer)
		}
	}
	// Some kernels announce the room after the first data, others (6.1) more with each
	// segment.
	ended := make(chan struct{}, 2)
	go func() {
		_, _ = io.Copy(io.Discard, onlyReader{accepted})
		ended <- struct{}{}
	}()
	go func() {
		for buffer := make([]byte, 64<<10); ; {
			if _, err := dialed.Write(buffer); err != nil {
				break
			}
		}
		ended <- struct{}{}
	}()
	defer func() {
		dialed.Close()
		accepted.Close()
		<-ended
		<-ended
	}()
	want := uint32(30 << 20)
	if !ta.host.canUnlock {
		want = 4 << 20 // the buffer came after the handshake, which scales the window for tcp_rmem
	}
	nettest.Eventually(t, patience, func() bool { return dialed.info(t).Snd_wnd > want }, func() string {
		return fmt.Sprintf("the announced window is %d bytes, want over %d", dialed.info(t).Snd_wnd, want)
	})

	withRTT(ta, near)
	dialedNear, acceptedNear := connect(t, a, a, ta, ta)
	for name, l := range map[string]leg{"dialed": dialedNear, "accepted": acceptedNear} {
		if got := l.option(t, unix.SOL_SOCKET, unix.SO_RCVBUF); got > 1<<20 {
			t.Errorf("%s leg: receive buffer %d stays large on a LAN", name, got)
		}
		if locks := l.bufferLocks(t); locks != 0 {
			t.Errorf("%s leg: the buffers are fixed on a LAN", name)
		}
	}
}

// With sysctls too small for the path, the tunnel sets sufficient buffers, or
// its remedy does.
func TestBuffersHoldPath(t *testing.T) {
	a, b, ta, tb := pathWithSmallSysctls(t)
	from, to := connect(t, a, b, ta, tb)
	const minSize = 2 * narrowRate / 8 * 2 * narrowDelay / time.Second // the kernel takes half of it for its own
	for name, size := range map[string]int{"send": from.largestBuffer(t, a, sending), "receive": to.largestBuffer(t, b, receiving)} {
		if size < int(minSize) {
			t.Errorf("the %s buffer grows to %d bytes, want %d", name, size, minSize)
		}
	}
	const size = 4 << 20
	go func() {
		_, _ = from.Write(make([]byte, size)) // an error shows at the other end
	}()
	if n, err := io.CopyN(io.Discard, onlyReader{to}, size); err != nil {
		t.Errorf("%d of %d bytes arrive: %v", n, size, err)
	}
}

// largestBuffer is the largest possible size of a leg's buffer.
func (l leg) largestBuffer(t *testing.T, s *site, d direction) int {
	t.Helper()
	option, lock, sysctl := unix.SO_SNDBUF, unix.SOCK_SNDBUF_LOCK, "tcp_wmem"
	if d == receiving {
		option, lock, sysctl = unix.SO_RCVBUF, unix.SOCK_RCVBUF_LOCK, "tcp_rmem"
	}
	if l.bufferLocks(t)&lock != 0 {
		return l.option(t, unix.SOL_SOCKET, option)
	}
	var maxSize int
	s.do(t, func() error {
		text, err := os.ReadFile(filepath.Join("/proc/sys/net/ipv4", sysctl))
		if err != nil {
			return err
		}
		_, err = fmt.Sscan(string(text), new(int), new(int), &maxSize)
		return err
	})
	return maxSize
}

// The path of pathWithSmallSysctls.
const (
	narrowRate  = 100e6
	narrowDelay = 40 * time.Millisecond
)

// pathWithSmallSysctls makes a path that the kernel's largest buffers do not
// fill, and a tunnel for each end with its remedies applied.
func pathWithSmallSysctls(t *testing.T) (a, b *site, ta, tb *Tunnel) {
	t.Helper()
	a, b, _ = newPath(t, link.Settings{Delay: narrowDelay, RateBps: narrowRate})
	for _, s := range []*site{a, b} {
		s.sysctl(t, "tcp_rmem", "4096 131072 524288")
		s.sysctl(t, "tcp_wmem", "4096 16384 262144")
	}
	tunnels := func() {
		o := Options{PathRateBps: narrowRate}
		ta = withRTT(a.tunnel(t, Options{}, o, WANAuto), 2*narrowDelay)
		tb = withRTT(b.tunnel(t, Options{}, o, WANAuto), 2*narrowDelay)
	}
	tunnels()
	connect(t, a, b, ta, tb) // the first flow reports the lacks that depend on the path
	if !ta.host.canForce {
		// The caps of plain buffers belong to the machine, and may suffice.
		for _, s := range []struct {
			*site
			*Tunnel
		}{{a, ta}, {b, tb}} {
			for _, l := range s.Lacks() {
				s.do(t, func() error { return exec.Command("sh", "-c", l.Remedy).Run() })
			}
		}
		tunnels()
		connect(t, a, b, ta, tb)
	}
	if l := append(ta.Lacks(), tb.Lacks()...); len(l) > 0 {
		t.Error("lacks:", l)
	}
	return a, b, ta, tb
}

// A user timeout ends a connection to a dead peer, and spares one to a peer
// that does not read.
func TestUserTimeout(t *testing.T) {
	a, b, l := newPath(t, link.Settings{Delay: time.Millisecond})
	tunnel := tunnelWithUserTimeout(t, a)
	// One peer on loopback with its window closed, and one that has read
	// everything.
	stalled, _ := connect(t, a, a, tunnel, nil)
	var sending sync.WaitGroup
	defer sending.Wait()
	defer stalled.Close()
	sending.Go(func() {
		for buf := make([]byte, 1<<20); ; {
			if _, err := stalled.Write(buf); err != nil {
				return
			}
		}
	})
	nettest.Eventually(t, patience, func() bool { return stalled.info(t).Backoff > 0 }, // it probes the window
		func() string { return "the window of the peer that does not read never closes" })
	closed := time.Now()

	quiet, _ := connect(t, a, b, tunnel, nil)
	takeDown(t, l)
	gone := time.Now()
	if _, err := quiet.Write([]byte("lost")); err != nil {
		t.Fatal(err)
	}
	nettest.Eventually(t, patience, func() bool { return !alive(quiet, t) }, func() string { return "nobody notices the peer that is gone" })
	if d := time.Since(gone); d < userTimeout/3 {
		t.Errorf("a peer that is gone was given up after %v already, with a user timeout of %v", d, userTimeout)
	}

	nettest.Eventually(t, patience, func() bool { return time.Since(closed) > 2*userTimeout || !alive(stalled, t) }, func() string { return "time stands still" })
	if !alive(stalled, t) {
		t.Errorf("a peer that does not read was reset after %v", time.Since(closed))
	}
}

// userTimeout is the value of tunnelWithUserTimeout, just above the minimum.
const userTimeout = 1700 * time.Millisecond

func tunnelWithUserTimeout(t *testing.T, s *site) *Tunnel {
	t.Helper()
	s.sysctl(t, "tcp_retries2", "1") // makes the minimum timeout short
	// The kernel answers no two window probes within half a second. With so few
	// retries, one unanswered probe ends the connection.
	s.sysctl(t, "tcp_invalid_ratelimit", "0")
	o := Options{UserTimeout: userTimeout}
	tunnel := s.tunnel(t, o, o, WANAuto)
	if !tunnel.host.canCapRTO {
		t.Skip("needs TCP_RTO_MAX_MS (Linux 6.15)")
	}
	if lacks := tunnel.Lacks(); len(lacks) > 0 {
		t.Error("lacks:", lacks)
	}
	return tunnel
}

// takeDown makes a link lose everything in both directions.
func takeDown(t *testing.T, l *link.Link) {
	t.Helper()
	for _, dir := range []link.Direction{link.AToB, link.BToA} {
		if err := l.Set(dir, link.Settings{Down: true}); err != nil {
			t.Fatal(err)
		}
	}
}

func alive(l leg, t *testing.T) bool { return l.info(t).State == unix.BPF_TCP_ESTABLISHED }

func TestLacks(t *testing.T) {
	h := host{
		defaultCC: "cubic", tcpWmem: [3]int{4096, 16384, 4 << 20}, tcpRmem: [3]int{4096, 131072, 6 << 20},
		wmemMax: 212992, rmemMax: 212992, retries2: 15, slowStartAfterIdle: true,
	}
	refuse := func(name string) error {
		if name == "cubic" {
			return nil
		}
		return unix.ENOENT
	}
	var log bytes.Buffer
	tunnel := newTunnel(Legs{LAN: Options{MTUProbing: true}, WAN: Options{MTUProbing: true, UserTimeout: 10 * time.Second}, Side: WANAuto}, h, refuse, slog.New(slog.NewTextHandler(&log, nil)))

	// The first flow on any thread reports the lacks that depend on the path.
	dialed, _, _ := connectLocal(t, "127.0.0.1:0", nil)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			dialed.fd(t, func(fd int) {
				tunnel.sendAfter(fd, &tunnel.wan, time.Duration(63+i/8)*time.Millisecond)
				tunnel.receiveAfter(fd, &tunnel.wan, 63*time.Millisecond, 0)
			})
			tunnel.Lacks()
		})
	}
	wg.Wait()
	got := tunnel.Lacks()
	want := []Lack{
		{"path MTU probing on lan legs", "sysctl -w net.ipv4.tcp_mtu_probing=1"},
		{"congestion control bbr on wan legs (they use cubic)", "modprobe tcp_bbr"},
		{"a congestion window that outlives an idle second on wan legs, which use cubic", "sysctl -w net.ipv4.tcp_slow_start_after_idle=0"},
		{"a user timeout of 10s on wan legs that spares a peer which lives but does not read", "run Linux 6.15 or newer and set a user timeout of 15.4s or more"},
		{"send buffer 45.1 MiB for 1 Gb/s at 63 ms", "sysctl -w net.ipv4.tcp_wmem='4096 16384 134217728'"},
		{"receive buffer 30 MiB for 1 Gb/s at 63 ms", "sysctl -w net.ipv4.tcp_rmem='4096 131072 67108864'"},
	}
	if len(got) == len(want) && strings.HasPrefix(got[4].What, "receive") {
		got[4], got[5] = got[5], got[4] // in either order
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lacks (-want +got):\n%s", diff)
	}
	if lines := strings.Count(log.String(), "\n"); lines != len(want) {
		t.Errorf("%d log lines for %d lacks:\n%s", lines, len(want), log.String())
	}
}

// A tunnel without WAN legs reports no lacks about them.
func TestLacksOfUnusedLegs(t *testing.T) {
	h := host{defaultCC: "cubic", retries2: 15, slowStartAfterIdle: true}
	refuse := func(string) error { return unix.ENOENT }
	tunnel := newTunnel(Legs{WAN: Options{CongestionControl: "nosuch"}, Side: WANNone}, h, refuse, slog.New(slog.DiscardHandler))
	if lacks := tunnel.Lacks(); len(lacks) > 0 {
		t.Error(lacks)
	}
}

// Several threads set up legs at once.
func TestConcurrent(t *testing.T) {
	nettest.CheckLeaks(t)
	tunnel := newTestTunnel(t, Options{}, Options{}, WANBoth)
	dialed, accepted, _ := connectLocal(t, "127.0.0.1:0", tunnel)
	var wg sync.WaitGroup
	for range 4 {
		for _, l := range []leg{dialed, accepted} {
			wg.Go(func() {
				l.fd(t, func(fd int) {
					for range 100 {
						if side, degraded := tunnel.Established(fd, true); side != WAN || degraded != "" {
							t.Errorf("%s leg: %s", side, degraded)
							return
						}
					}
				})
			})
		}
	}
	wg.Wait()
}

func TestClosedSocket(t *testing.T) {
	// An old kernel needs none of the default's settings before the handshake.
	mss := Options{MSS: 1000}
	tunnel := newTestTunnel(t, mss, mss, WANAuto)
	if err := tunnel.Prepare(-1, true); err == nil {
		t.Error("a socket that is none was prepared")
	}
	if _, degraded := tunnel.Established(-1, true); degraded == "" {
		t.Error("a socket that is none was set up")
	}
}
