package intercept

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/words/portrange"
	"longhaul/lab/linktest"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) {
	if order := os.Getenv(childOrder); order != "" {
		runtime.LockOSThread()
		if err := obey(order, os.Getenv(childLedger)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	nettest.Main(m)
}

var must = nettest.Must

// patience is how long a test waits for what must come.
const patience = time.Minute

// The addresses of the target, see [linktest.Row].
var targets = []string{"10.9.2.2", "fd09:2::2"}

// site is three hosts in a row. The middle one intercepts what comes from the left.
type site struct {
	linktest.Row
	t    testing.TB
	host *Host
	// relayed counts the connections that the relay took.
	relayed atomic.Int64
}

func newSite(t testing.TB) *site {
	t.Helper()
	nettest.RequireSandbox(t)
	s := &site{Row: linktest.NewRow(t, 1500), t: t, host: testHost(filepath.Join(t.TempDir(), "ledger"))}
	for _, name := range []string{"all", "left", "right"} {
		must(t, s.R.Sysctl("net.ipv4.conf."+name+".rp_filter", "1"))
	}
	s.serve()
	return s
}

func testHost(dir string) *Host {
	return &Host{Ledger: dir, By: ledger.By{Owner: "relay test", Means: ledger.Relay, Process: ledger.ThisProcess()}}
}

// options intercept both families, ports 5000 and 5002 to 5003.
func options() Options {
	return Options{Relay: "test", AnswerPorts: true, Tunnels: []Tunnel{{
		Name: "to-b", Interface: "left",
		From:  prefixes("10.9.1.0/24", "fd09:1::/64"),
		To:    prefixes("10.9.2.0/24", "10.9.3.0/24", "fd09:2::/64"),
		Ports: []portrange.Range{{First: 5000, Last: 5000}, {First: 5002, Last: 5003}}, ListenPort: 7000, ListenPort6: 7006,
	}}}
}

// dialer dials from the client's address what options intercept.
func dialer() Dialer {
	t := options().Tunnels[0]
	return Dialer{Name: "from-a", From: t.From, To: t.To, Ports: t.Ports}
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// on runs f in the namespace of the router.
func (s *site) on(f func(h *Host) error) error {
	return s.R.Do(func() error { return f(s.host) })
}

func (s *site) set(o Options) {
	s.t.Helper()
	must(s.t, s.on(func(h *Host) error { return h.Set(o, &Standing{}) }))
}

// run runs a shell command on the router and returns its output.
func (s *site) run(command string, arguments ...string) string {
	s.t.Helper()
	return linktest.Shell(s.t, s.R, command, arguments...)
}

// nft loads rules into the router.
func (s *site) nft(rules string) {
	s.t.Helper()
	nettest.RequireProgram(s.t, "nft", "nftables")
	s.run(`printf %s "$1" | nft -f -`, rules)
}

// needsNFT skips the test on a kernel that does not take these rules, which need a feature. It looks at them
// and sets none.
func (s *site) needsNFT(feature, rules string) {
	s.t.Helper()
	nettest.RequireProgram(s.t, "nft", "nftables")
	switch said := s.run(`printf %s "$1" | nft -c -f - 2>&1 || true`, rules); {
	case strings.Contains(said, "Could not process rule"): // the kernel's word
		s.t.Skipf("the nftables of kernel %s has no %s: %s", kernel.Release(), feature, said)
	case said != "":
		s.t.Fatal(said)
	}
}

// state is everything on the router that interception could change. Link-local addresses
// come late, and differ.
func (s *site) state() string {
	s.t.Helper()
	nettest.RequireProgram(s.t, "nft", "nftables")
	nettest.RequireProgram(s.t, "ip", "iproute2")
	return s.run("nft list ruleset; for f in -4 -6; do ip $f rule; ip $f route show table all; done | grep -vE 'fe80|ff00'")
}

// sysctls are the settings of the router's network. The lists of congestion controls are
// the whole machine's, and other tests load some.
func (s *site) sysctls() string {
	s.t.Helper()
	machineWide := []string{"tcp_available_congestion_control", "tcp_allowed_congestion_control"}
	var b strings.Builder
	must(s.t, s.R.Do(func() error {
		return filepath.WalkDir("/proc/sys/net", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || slices.Contains(machineWide, d.Name()) {
				return err
			}
			if value, err := os.ReadFile(path); err == nil { // some can only be written
				fmt.Fprintf(&b, "%s %s", path, value)
			}
			return nil
		})
	}))
	return b.String()
}

// serve has the target tell each client its address, and send its bytes back, by TCP on
// ports 5000 and 5001 and by UDP on port 5000.
func (s *site) serve() {
	listen := func(network, address string) net.Listener {
		var l net.Listener
		must(s.t, s.B.Do(func() (err error) {
			var lc net.ListenConfig
			lc.SetMultipathTCP(false)
			l, err = lc.Listen(context.Background(), network, address)
			return err
		}))
		return l
	}
	for _, port := range []string{"5000", "5001"} {
		for _, l := range []net.Listener{listen("tcp4", "0.0.0.0:"+port), listen("tcp6", "[::]:"+port)} {
			s.accept(l, func(c *net.TCPConn) {
				fmt.Fprintf(c, "%s\n", c.RemoteAddr())
				_, _ = io.Copy(c, c) // the client sees what is missing
			})
		}
	}
	for _, network := range []string{"udp4", "udp6"} {
		var p net.PacketConn
		must(s.t, s.B.Do(func() (err error) {
			p, err = net.ListenPacket(network, ":5000")
			return err
		}))
		s.t.Cleanup(func() { p.Close() })
		go func() {
			b := make([]byte, 1<<16)
			for {
				n, from, err := p.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = p.WriteTo(b[:n], from)
			}
		}()
	}
}

// accept serves connections until the listener or the test ends.
func (s *site) accept(l net.Listener, serve func(*net.TCPConn)) {
	var group sync.WaitGroup
	group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer c.Close()
				serve(c.(*net.TCPConn))
			})
		}
	})
	s.t.Cleanup(func() { l.Close(); group.Wait() })
}

func transparent(fd int, six bool) error {
	if six {
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
	}
	return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
}

func controlled(f func(fd int) error) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = f(int(fd)) }), err)
	}
}

// relay runs a relay with transparent listeners that keeps the client's address, until
// stop.
func (s *site) relay(t Tunnel) (stop func()) {
	s.t.Helper()
	var listeners []net.Listener
	for _, address := range []string{fmt.Sprintf("127.0.0.1:%d", t.ListenPort), fmt.Sprintf("[::1]:%d", t.ListenPort6)} {
		six := strings.HasPrefix(address, "[")
		lc := net.ListenConfig{Control: controlled(func(fd int) error { return transparent(fd, six) })}
		lc.SetMultipathTCP(false)
		must(s.t, s.R.Do(func() error {
			l, err := lc.Listen(context.Background(), "tcp", address)
			if err == nil {
				listeners = append(listeners, l)
			}
			return err
		}))
	}
	for _, l := range listeners {
		s.accept(l, func(c *net.TCPConn) {
			s.relayed.Add(1)
			out, err := s.dialAsClient(c)
			if err != nil {
				_ = c.SetLinger(0) // a reset
				return
			}
			defer out.Close()
			var back sync.WaitGroup
			back.Go(func() {
				_, _ = io.Copy(c, out)
				_ = c.CloseWrite()
			})
			_, _ = io.Copy(out, c)
			_ = out.CloseWrite()
			back.Wait()
		})
	}
	return func() {
		for _, l := range listeners {
			l.Close()
		}
	}
}

// dialAsClient dials the address that a client dialed, from the client's address.
func (s *site) dialAsClient(c *net.TCPConn) (out *net.TCPConn, err error) {
	return s.dialFrom(c.RemoteAddr().(*net.TCPAddr), c.LocalAddr().String(), patience)
}

// dialFrom dials on the router, from an address of the client.
func (s *site) dialFrom(client *net.TCPAddr, target string, within time.Duration) (out *net.TCPConn, err error) {
	d := net.Dialer{Timeout: within, LocalAddr: client, Control: controlled(func(fd int) error {
		return errors.Join(transparent(fd, client.IP.To4() == nil), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	})}
	d.SetMultipathTCP(false)
	err = s.R.Do(func() error {
		conn, err := d.Dial("tcp", target)
		if err == nil {
			out = conn.(*net.TCPConn)
		}
		return err
	})
	return out, err
}

// exchange connects the client to the target and sends bytes both ways. peer is the
// client as the target sees it.
func (s *site) exchange(target string, port, size int) (local, peer string, err error) {
	conn, err := s.A.DialTCP(s.t.Context(), netip.AddrPortFrom(netip.MustParseAddr(target), uint16(port)), 20*time.Second)
	if err != nil {
		return "", "", err
	}
	defer conn.Close()
	must(s.t, conn.SetDeadline(time.Now().Add(patience)))
	r := bufio.NewReader(conn)
	if peer, err = r.ReadString('\n'); err != nil {
		return "", "", err
	}
	sent := bytes.Repeat([]byte("longhaul"), size/8)
	go func() {
		_, _ = conn.Write(sent)
		_ = conn.CloseWrite()
	}()
	back, err := io.ReadAll(r)
	if err == nil && !bytes.Equal(back, sent) {
		err = fmt.Errorf("%d of %d bytes came back", len(back), len(sent))
	}
	return conn.LocalAddr().String(), strings.TrimSpace(peer), err
}

// way is how a connection must go.
type way bool

const (
	direct  way = false
	byRelay way = true
)

// expect makes a connection for each family, and checks that it goes that way and that
// the target sees the client.
func (s *site) expect(want way, port int) {
	s.t.Helper()
	for _, target := range targets {
		before := s.relayed.Load()
		local, peer, err := s.exchange(target, port, 1<<20)
		if err != nil {
			s.t.Errorf("to %s port %d: %v\n%s", target, port, err, s.run("nft list ruleset; nstat -az 2>/dev/null | grep -iE 'filter|martian|InAddr' || true"))
			continue
		}
		if peer != local {
			s.t.Errorf("the target sees %s, want %s", peer, local)
		}
		if got := way(s.relayed.Load() > before); got != want {
			s.t.Errorf("to %s port %d: by the relay: %v, want %v", target, port, got, want)
		}
	}
}
