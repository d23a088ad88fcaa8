package transport

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"longhaul/lab/link"
	"longhaul/test/nettest"
)

// site is a network namespace at one end of an emulated path.
type site struct {
	ns      netns.NsHandle
	address net.IP
}

// patience bounds every wait.
const patience = time.Minute

// newPath makes two sites with a link of the given settings between them.
func newPath(t *testing.T, s link.Settings) (a, b *site, l *link.Link) {
	t.Helper()
	nettest.RequireSandbox(t)
	var sites [2]*site
	var ports [2]link.Port
	for i := range sites {
		sites[i] = newSite(t, byte(i+1))
		// A third namespace contains the link's ends of the device pairs.
		newSite(t, 0).do(t, func() (err error) {
			ports[i], err = link.OpenVeth("near", "wan0", int(sites[i].ns), 1500)
			return err
		})
		sites[i].do(t, func() error { return configure(ports[i].Name(), sites[i].address) })
	}
	l, err := link.New(ports[0], ports[1], s, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	l.Start()
	return sites[0], sites[1], l
}

func newSite(t *testing.T, number byte) *site {
	t.Helper()
	s := &site{address: net.IPv4(10, 9, 0, number)}
	made := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		var err error
		s.ns, err = netns.New()
		made <- err
	}()
	if err := <-made; err != nil {
		t.Fatal("make a network namespace:", err)
	}
	t.Cleanup(func() { s.ns.Close() })
	return s
}

func configure(device string, address net.IP) error {
	for _, name := range []string{"lo", device} {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if name != "lo" {
			if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: address, Mask: net.CIDRMask(24, 32)}}); err != nil {
				return err
			}
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
	}
	return nil
}

// do runs f on a separate thread in the site's namespace.
func (s *site) do(t *testing.T, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := netns.Set(s.ns); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func (s *site) sysctl(t *testing.T, name, value string) {
	t.Helper()
	s.do(t, func() error { return os.WriteFile(filepath.Join("/proc/sys/net/ipv4", name), []byte(value), 0) })
}

func (s *site) tunnel(t *testing.T, lan, wan Options, side WANSide) (tunnel *Tunnel) {
	t.Helper()
	return s.tunnelOf(t, Legs{LAN: lan, WAN: wan, Side: side})
}

func (s *site) tunnelOf(t *testing.T, l Legs) (tunnel *Tunnel) {
	t.Helper()
	s.do(t, func() (err error) {
		tunnel, err = New(l, nil)
		return err
	})
	return tunnel
}

// control turns Prepare into a hook of net. A nil tunnel leaves sockets
// unchanged.
func control(tunnel *Tunnel, dialed bool) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) (err error) {
		if tunnel == nil {
			return nil
		}
		if e := c.Control(func(fd uintptr) { err = tunnel.Prepare(int(fd), dialed) }); e != nil {
			return e
		}
		return err
	}
}

// leg is one end of a connection, set up by a tunnel.
type leg struct {
	*net.TCPConn
	side, degraded string
}

func newLeg(t *testing.T, c net.Conn, tunnel *Tunnel, dialed bool) leg {
	t.Helper()
	l := leg{TCPConn: c.(*net.TCPConn)}
	t.Cleanup(func() { c.Close() })
	if tunnel != nil {
		l.fd(t, func(fd int) {
			l.side, l.degraded = tunnel.Established(fd, dialed)
			if dialed {
				if err := tunnel.Lasting(fd, l.side); err != nil {
					t.Error(err)
				}
			}
		})
	}
	return l
}

func (l leg) fd(t *testing.T, f func(fd int)) {
	t.Helper()
	raw, err := l.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { f(int(fd)) }); err != nil {
		t.Fatal(err)
	}
}

// connect dials from one site to another. Both ends are set up by the tunnels.
func connect(t *testing.T, from, to *site, dialing, accepting *Tunnel) (dialed, accepted leg) {
	t.Helper()
	var l net.Listener
	to.do(t, func() (err error) {
		lc := net.ListenConfig{Control: control(accepting, false), KeepAlive: -1} // net would set its own
		lc.SetMultipathTCP(false)
		l, err = lc.Listen(context.Background(), "tcp4", net.JoinHostPort(to.address.String(), "0"))
		return err
	})
	defer l.Close()
	var c net.Conn
	from.do(t, func() (err error) {
		d := net.Dialer{Control: control(dialing, true), KeepAlive: -1, Timeout: patience}
		d.SetMultipathTCP(false)
		c, err = d.Dial("tcp4", l.Addr().String())
		return err
	})
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return newLeg(t, c, dialing, true), newLeg(t, s, accepting, false)
}

// onlyReader hides other methods, so that io.Copy only reads.
type onlyReader struct{ io.Reader }
