package relay

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/relay/hops"
	"longhaul/test/nettest"
)

// TestListenWider holds that a change gives a tunnel a listening address that overlaps the one that it leaves:
// until the commit the former address serves, clients are refused only in the moment of the commit, flows go
// on, and no other program of this user gets the port, before and after.
func TestListenWider(t *testing.T) {
	nettest.CheckLeaks(t)
	g := fixed(t)
	port := g.addr.Port()
	everywhere := netip.AddrPortFrom(netip.IPv4Unspecified(), port)
	tunnel := func(at netip.AddrPort) []Tunnel {
		return []Tunnel{{Name: "t", Listen: []netip.AddrPort{at}, Forward: []hops.Target{targetOf(g.target)}}}
	}
	served := func(at netip.AddrPort) {
		t.Helper()
		c := dial(t, at)
		s := g.accept()
		write(t, c, []byte("x"))
		expect(t, s, []byte("x"))
		c.Close()
		s.Close()
	}
	alone := func() {
		t.Helper()
		for _, at := range []netip.AddrPort{g.addr, everywhere} {
			if errno := steal(t, at); errno != unix.EADDRINUSE {
				t.Errorf("another program binds %s: %v", at, errno)
			}
		}
	}
	flow := dial(t, g.addr)
	defer flow.Close()
	far := g.accept()
	defer far.Close()
	goesOn := func() {
		t.Helper()
		write(t, flow, []byte("y"))
		expect(t, far, []byte("y"))
	}
	c, err := g.relay.Prepare(tunnel(everywhere))
	nettest.Must(t, err)
	served(g.addr)
	alone()
	c.Abort()
	served(g.addr)
	alone()
	for _, at := range []netip.AddrPort{everywhere, netip.AddrPortFrom(netip.IPv6Unspecified(), port), g.addr, everywhere, g.addr} {
		nettest.Must(t, setTunnels(g.relay, tunnel(at)))
		served(g.addr)
		alone()
		goesOn()
	}
	// A narrower address does not listen before the commit, so an abort resets nobody.
	nettest.Must(t, setTunnels(g.relay, tunnel(everywhere)))
	c, err = g.relay.Prepare(tunnel(g.addr))
	nettest.Must(t, err)
	waiting := dial(t, g.addr)
	c.Abort()
	s := g.accept()
	write(t, waiting, []byte("z"))
	expect(t, s, []byte("z"))
	waiting.Close()
	s.Close()
	nettest.Must(t, setTunnels(g.relay, tunnel(g.addr)))
	other := nettest.ListenTCP(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.9"), port).String())
	defer other.Close()
	if err := setTunnels(g.relay, tunnel(everywhere)); err == nil {
		t.Error("a tunnel listens where another program does")
	}
	served(g.addr)
	alone()
	goesOn()
	other.Close()

	// What is bound and does not listen shows at the commit, which goes back.
	hidden := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.9"), port)
	fd := bound(t, hidden)
	c, err = g.relay.Prepare(tunnel(everywhere))
	nettest.Must(t, err)
	if err := c.Commit(); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a commit where another program has the port says %v", err)
	}
	served(g.addr)
	alone()
	goesOn()
	closeFD(fd)

	// Where another program has the former address by then too, the relay goes on trying.
	c, err = g.relay.Prepare(tunnel(everywhere))
	nettest.Must(t, err)
	l := g.relay.table.Load().listeners[listenKey{addr: g.addr}]
	g.relay.silence(l)
	setsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	thief := listening(t, everywhere)
	lost := g.relay.giveBack(nil, []*listener{l}, []*listener{l})
	if len(lost) != 1 || !errors.Is(lost[0], unix.EADDRINUSE) {
		t.Errorf("a lost listener is reported as %v", lost)
	}
	c.Abort()
	if changes, again := g.relay.LookAtListeners(); !again || len(changes) != 1 || changes[0].Err == nil {
		t.Errorf("a look at a listener that is lost: %v, %v", changes, again)
	}
	closeFD(thief)
	if changes, again := g.relay.LookAtListeners(); again || len(changes) != 1 || changes[0].Absent != "" {
		t.Errorf("a look at a listener that is found: %v, %v", changes, again)
	}
	served(g.addr)
	goesOn()
}

// socketAt is a socket with an option that is bound to an address, or the error of that.
func socketAt(t *testing.T, option int, at netip.AddrPort) (int, unix.Errno) {
	t.Helper()
	fd, errno := newSocket(family(at.Addr()))
	if errno != 0 {
		t.Fatal(errno)
	}
	if option != 0 {
		setsockoptInt(fd, unix.SOL_SOCKET, option, 1)
	}
	sa := toSockaddr(at, family(at.Addr()))
	return fd, bind(fd, &sa)
}

// steal binds an address as a program of this user that wants to share it.
func steal(t *testing.T, at netip.AddrPort) unix.Errno {
	t.Helper()
	fd, errno := socketAt(t, unix.SO_REUSEPORT, at)
	closeFD(fd)
	return errno
}

func bound(t *testing.T, at netip.AddrPort) int {
	t.Helper()
	fd, errno := socketAt(t, 0, at)
	if errno != 0 {
		t.Fatal(errno)
	}
	return fd
}

func listening(t *testing.T, at netip.AddrPort) int {
	t.Helper()
	fd, errno := socketAt(t, unix.SO_REUSEADDR, at)
	if errno != 0 {
		t.Fatal(errno)
	}
	nettest.Must(t, unix.Listen(fd, 1))
	return fd
}
