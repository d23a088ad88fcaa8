package pair_test

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/pair"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

// silent6 is an IPv6 address that answers no handshake: the queue of its listener is full.
func silent6(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	nettest.Must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	nettest.Must(t, unix.Bind(fd, &unix.SockaddrInet6{Addr: netip.IPv6Loopback().As16()}))
	nettest.Must(t, unix.Listen(fd, 0))
	name, err := unix.Getsockname(fd)
	nettest.Must(t, err)
	at := netip.AddrPortFrom(netip.IPv6Loopback(), uint16(name.(*unix.SockaddrInet6).Port))
	c, err := net.Dial("tcp", at.String())
	nettest.Must(t, err)
	t.Cleanup(func() { c.Close() })
	return at
}

func listen6(t *testing.T) *net.TCPListener {
	t.Helper()
	l, err := net.ListenTCP("tcp6", &net.TCPAddr{IP: net.IPv6loopback})
	nettest.Must(t, err)
	return l
}

// TestSeveralAddresses: one of two addresses of the far relay is useless, and preferred. A session
// stands over the other one.
func TestSeveralAddresses(t *testing.T) {
	t.Parallel()
	for name, useless := range map[string]func(t *testing.T) netip.AddrPort{
		"silent": silent6,
		"refuses": func(t *testing.T) netip.AddrPort {
			l := listen6(t)
			defer l.Close()
			return addrOf(l)
		},
		"is no relay": func(t *testing.T) netip.AddrPort {
			l := listen6(t)
			t.Cleanup(tcpserver.Serve(l, func(net.Conn) {}))
			return addrOf(l)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad := useless(t)
			s := newStand(t, func(s *stand, _ *pair.Options, o *pair.LinkOptions) {
				o.Addresses = func(context.Context) ([]netip.AddrPort, error) { return []netip.AddrPort{bad, s.path.address}, nil }
			})
			s.begin("hello")
			if got := s.session().Remote; got.AddrPort != s.path.address {
				t.Errorf("the session leads to %v, want %v", got, s.path.address)
			}
		})
	}
}
