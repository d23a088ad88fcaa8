package relay

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/relay/hops"
	"longhaul/test/nettest"
)

// expectRefused checks that the kernel refuses connections to an address.
func expectRefused(t testing.TB, addr netip.AddrPort, when string) {
	t.Helper()
	c, err := tryDial(addr)
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%s: dialing %v gave %v", when, addr, err)
	}
}

func (g *rig) state(name string) string {
	for _, t := range g.relay.Snapshot().Tunnels {
		if t.Name == name {
			return t.State
		}
	}
	return "gone"
}

func TestDrainTunnel(t *testing.T) {
	nettest.CheckLeaks(t)
	g := fixed(t)
	c, s := g.pair()
	alive := func(when string) {
		t.Helper()
		write(t, c, []byte(when))
		expect(t, s, []byte(when))
	}
	for range 3 {
		for range 2 { // the second time changes nothing
			if err := g.relay.DrainTunnel("t"); err != nil {
				t.Fatal(err)
			}
		}
		expectRefused(t, g.addr, "drained")
		if state := g.state("t"); state != "drained" || !slices.Equal(g.relay.Drained(), []string{"t"}) {
			t.Errorf("the tunnel is %s, drained are %v", state, g.relay.Drained())
		}
		if n := g.relay.FlowsByTunnel()["t"]; n != 1 {
			t.Errorf("%d flows", n)
		}
		alive("drained")
		// No other socket gets the address meanwhile, and a reload changes
		// nothing.
		if fd, err := bindTo(g.addr); !errors.Is(err, unix.EADDRINUSE) {
			unix.Close(fd)
			t.Errorf("another one could bind the address: %v", err)
		}
		if err := g.reload(func(tu *Tunnel) { tu.MaxFlows = 5 }); err != nil {
			t.Fatal(err)
		}
		expectRefused(t, g.addr, "drained and reloaded")
		for range 2 {
			if err := g.relay.ResumeTunnel("t"); err != nil {
				t.Fatal(err)
			}
		}
		c2, s2 := g.pair()
		write(t, c2, []byte("new"))
		expect(t, s2, []byte("new"))
		reset(t, c2)
		expectReset(t, s2)
		s2.Close()
		if state := g.state("t"); state != "listening" || len(g.relay.Drained()) > 0 {
			t.Errorf("the tunnel is %s, drained are %v", state, g.relay.Drained())
		}
		alive("resumed")
	}
	for _, f := range []func(string) error{g.relay.DrainTunnel, g.relay.ResumeTunnel} {
		if err := f("x"); !errors.Is(err, ErrNoTunnel) {
			t.Errorf("an unknown name gave %v", err)
		}
	}
	g.relay.Close()
	if err := g.relay.DrainTunnel("t"); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed relay gave %v", err)
	}
}

// bindTo binds a socket with SO_REUSEADDR.
func bindTo(addr netip.AddrPort) (int, error) {
	fd, errno := newSocket(unix.AF_INET)
	if errno != 0 {
		return -1, errno
	}
	setsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	sa := toSockaddr(addr, unix.AF_INET)
	if errno := bind(fd, &sa); errno != 0 {
		unix.Close(fd)
		return -1, errno
	}
	return fd, nil
}

// TestDrainServesWhatWaits: connections in the accept queue are served.
func TestDrainServesWhatWaits(t *testing.T) {
	nettest.CheckLeaks(t)
	g := fixed(t)
	g.echo()
	release := make(chan struct{})
	for _, w := range g.relay.workers {
		w.post(func() { <-release })
	}
	var waiting []*net.TCPConn
	for range 50 {
		waiting = append(waiting, dial(t, g.addr))
	}
	drained := make(chan error, 1)
	go func() { drained <- g.relay.DrainTunnel("t") }()
	close(release)
	if err := <-drained; err != nil {
		t.Fatal(err)
	}
	expectRefused(t, g.addr, "drained")
	for i, c := range waiting {
		write(t, c, []byte("hello"))
		got := make([]byte, 5)
		if _, err := io.ReadFull(c, got); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		c.Close()
	}
}

// TestDrainedTunnelsAndReloads moves addresses between a drained tunnel and
// another one. The state follows the tunnel's name.
func TestDrainedTunnelsAndReloads(t *testing.T) {
	nettest.CheckLeaks(t)
	g := fixed(t)
	second := nobody(t)
	served := func(addr netip.AddrPort, when string) {
		t.Helper()
		c := dial(t, addr)
		s := g.accept()
		write(t, c, []byte(when))
		expect(t, s, []byte(when))
		reset(t, c)
		s.Close()
	}
	tunnel := func(name string, listen ...netip.AddrPort) Tunnel {
		return Tunnel{Name: name, Listen: listen, Forward: []hops.Target{targetOf(g.target)}}
	}
	reload := func(tunnels ...Tunnel) {
		t.Helper()
		if err := setTunnels(g.relay, tunnels); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.relay.DrainTunnel("t"); err != nil {
		t.Fatal(err)
	}
	reload(tunnel("t", g.addr, second))
	expectRefused(t, g.addr, "the old address of a drained tunnel")
	expectRefused(t, second, "the new address of a drained tunnel")
	reload(tunnel("t", second), tunnel("u", g.addr))
	expectRefused(t, second, "what the drained tunnel has left")
	served(g.addr, "what another tunnel has got from a drained one")
	reload(tunnel("t", g.addr), tunnel("u", second))
	expectRefused(t, g.addr, "what a drained tunnel has got from another one")
	served(second, "what a drained tunnel gave away")

	// A failed reload leaves both unchanged.
	taken := listen(t)
	err := setTunnels(g.relay, []Tunnel{tunnel("t", second), tunnel("u", g.addr), tunnel("v", addrOf(taken))})
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("got %v", err)
	}
	expectRefused(t, g.addr, "after a reload that failed")
	served(second, "after a reload that failed")

	if err := g.relay.ResumeTunnel("t"); err != nil {
		t.Fatal(err)
	}
	served(g.addr, "resumed")
	// A tunnel that is removed and added again is a new one.
	if err := g.relay.DrainTunnel("t"); err != nil {
		t.Fatal(err)
	}
	reload(tunnel("u", second))
	reload(tunnel("u", second), tunnel("t", g.addr))
	served(g.addr, "a tunnel that was removed and added")
}

// TestResumeThatCannotBe: a failed resume leaves the tunnel drained. A process
// with full rights to the socket can take its address.
func TestResumeThatCannotBe(t *testing.T) {
	nettest.CheckLeaks(t)
	g := fixed(t)
	if err := g.relay.DrainTunnel("t"); err != nil {
		t.Fatal(err)
	}
	l := g.relay.table.Load().tunnels[0].listeners[0]
	setsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	thief, err := bindTo(g.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { unix.Close(thief) }()
	if err := unix.Listen(thief, 1); err != nil {
		t.Fatal(err)
	}
	if err := g.relay.ResumeTunnel("t"); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "stop what listens there") {
		t.Errorf("got %v", err)
	}
	if state := g.state("t"); state != "drained" {
		t.Errorf("the tunnel is %s", state)
	}
	unix.Close(thief)
	thief = -1
	if err := g.relay.ResumeTunnel("t"); err != nil {
		t.Fatal(err)
	}
	g.pair()
}

// TestDrainedSocketOfAServiceManager: the socket listens again after the relay
// ends. If the relay was killed before, the next relay restores it.
func TestDrainedSocketOfAServiceManager(t *testing.T) {
	nettest.CheckLeaks(t)
	addr := nobody(t) // asked for by its number, as a manager does
	fd, err := bindTo(addr)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "manager's")
	defer f.Close()
	if err := unix.Listen(fd, 10); err != nil {
		t.Fatal(err)
	}
	inherits := func() *rig {
		return newRig(t, func(o *rigOptions) {
			o.Tunnels[0].Listen = []netip.AddrPort{addr}
			o.Tunnels[0].Inherited = []*os.File{f}
		})
	}
	g := inherits()
	if err := g.relay.DrainTunnel("t"); err != nil {
		t.Fatal(err)
	}
	expectRefused(t, addr, "drained")
	g.relay.Close()
	dial(t, addr).Close() // the manager's socket takes it

	if err := unix.Shutdown(int(f.Fd()), unix.SHUT_RDWR); err != nil {
		t.Fatal(err)
	}
	inherits().pair()
}

// TestDrainUnderLoad drains and resumes while clients connect: each is served
// completely or refused.
func TestDrainUnderLoad(t *testing.T) {
	nettest.CheckLeaks(t)
	g := fixed(t)
	g.echo()
	stop := make(chan struct{})
	var clients sync.WaitGroup
	var served, refused sync.Map
	for i := range 4 {
		clients.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				err := exchange(g.addr, uint64(i), 5_000)
				switch {
				case err == nil:
					served.Store([2]int{i, n}, nil)
				case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
					refused.Store([2]int{i, n}, nil)
				default:
					t.Errorf("a client got %v", err)
					return
				}
			}
		})
	}
	for range 40 {
		if err := g.relay.DrainTunnel("t"); err != nil {
			t.Fatal(err)
		}
		expectRefused(t, g.addr, "drained")
		if err := g.relay.ResumeTunnel("t"); err != nil {
			t.Fatal(err)
		}
		if err := exchange(g.addr, 9, 1000); err != nil {
			t.Fatalf("resumed: %v", err)
		}
	}
	close(stop)
	clients.Wait()
	count := func(m *sync.Map) (n int) {
		m.Range(func(any, any) bool { n++; return true })
		return n
	}
	if count(&served) == 0 {
		t.Errorf("%d served, %d refused", count(&served), count(&refused))
	}
}
