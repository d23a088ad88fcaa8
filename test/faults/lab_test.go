package faults

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"longhaul/lab"
	"longhaul/lab/link"
	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// patience is after how long a test gives up waiting for what has to happen. A test
// that passes never waits for it.
const patience = time.Minute

func init() {
	if os.Getenv(launchRole) != "" {
		runtime.LockOSThread() // to the first thread, which is the one that is traced
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(launchRole) != "" {
		fmt.Fprintln(os.Stderr, "launch:", launch())
		os.Exit(1)
	}
	if os.Getenv(attackRole) != "" {
		if err := attacker(); err != nil {
			fmt.Fprintln(os.Stderr, "attack:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if item, is := strings.CutPrefix(filepath.Base(os.Args[0]), withholding); is {
		if err := withhold(item); err != nil {
			fmt.Fprintln(os.Stderr, "withhold:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	nettest.AtOnce(8) // most of them wait for timers
	nettest.Main(m)
}

// path is a client, a relay and a target, each a host of its own, on links
// that can be cut:
//
//	client ══near══ relay ══far══ target
type path struct {
	*lab.Lab
	t     *testing.T
	cutAt time.Time // when a link was cut
}

// The path's addresses.
var (
	clientAddress = netip.MustParseAddr("10.1.0.1")
	relayNear     = netip.MustParseAddr("10.1.0.2")
	relayFar      = netip.MustParseAddr("10.2.0.1")
	targetAddress = netip.MustParseAddr("10.2.0.2")
)

const (
	listenPort = 6000
	targetPort = 5000
)

// The largest queues that autotuning gives a socket on the path, in bytes.
const (
	mostReceived = 6 << 20
	mostSent     = 4 << 20
)

var buffers = []lab.Sysctl{
	{Name: "net.ipv4.tcp_rmem", Value: fmt.Sprintf("4096 131072 %d", mostReceived)},
	{Name: "net.ipv4.tcp_wmem", Value: fmt.Sprintf("4096 16384 %d", mostSent)},
}

// newPath builds the hosts and links, which are perfect until they are cut.
func newPath(t *testing.T) *path {
	t.Helper()
	nettest.RequireSandbox(t)
	end := func(host, device string, a netip.Addr) lab.Endpoint {
		return lab.Endpoint{Host: host, Device: device, Addresses: []netip.Prefix{netip.PrefixFrom(a, 24)}}
	}
	perfect := link.Settings{MTU: 1500}
	built, err := lab.Build(lab.Topology{
		Hosts: []lab.HostSpec{
			{Name: "client", Address: clientAddress, Sysctls: buffers},
			{Name: "relay", Address: relayNear, Sysctls: buffers},
			{Name: "target", Address: targetAddress, Sysctls: buffers},
		},
		Links: []lab.LinkSpec{
			{Name: "near", A: end("client", "near", clientAddress), B: end("relay", "near", relayNear), AB: perfect, BA: perfect},
			{Name: "far", A: end("relay", "far", relayFar), B: end("target", "far", targetAddress), AB: perfect, BA: perfect},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { built.Close() })
	return &path{Lab: built, t: t}
}

// cut makes a link a black hole: no packet passes, and nobody learns of it.
func (p *path) cut(name string) {
	p.t.Helper()
	p.cutAt = time.Now()
	for _, dir := range []link.Direction{link.AToB, link.BToA} {
		s := p.Link(name).Settings(dir)
		s.Down = true
		if err := p.Link(name).Set(dir, s); err != nil {
			p.t.Error(err)
		}
	}
}

// config is a relay with one tunnel from the client to the target; more are
// further settings of that tunnel.
func (p *path) config(more string) string {
	return fmt.Sprintf(`control_socket: SOCKET
memory_limit: 1GiB
tunnels:
  - name: main
    listen: %s:%d
    forward: %s:%d
    %s
`, relayNear, listenPort, targetAddress, targetPort, more)
}

// relay starts the relay of the path.
func (p *path) relay(config string) *daemon {
	p.t.Helper()
	return startDaemon(p.t, p.Host("relay"), unsupervised, config)
}

// run runs a script between the client and the target. "does cut-near" and
// "does cut-far" cut a link.
func (p *path) run(script string) {
	p.t.Helper()
	env := tcpscript.Env{
		Dial: func(ctx context.Context) (net.Conn, error) {
			return p.dial(ctx, netip.AddrPortFrom(relayNear, listenPort))
		},
		Listen: func(ctx context.Context) (l net.Listener, err error) {
			err = p.Host("target").Do(func() error {
				l, err = tcpscript.ListenOn(netip.AddrPortFrom(targetAddress, targetPort).String())(ctx)
				return err
			})
			return l, err
		},
		Do: map[string]func() error{
			"cut-near": func() error { p.cut("near"); return nil },
			"cut-far":  func() error { p.cut("far"); return nil },
		},
		Within: patience,
	}
	if err := tcpscript.MustParse(script).Run(p.t.Context(), env); err != nil {
		p.t.Fatal(err)
	}
}

func (p *path) dial(ctx context.Context, to netip.AddrPort) (c net.Conn, err error) {
	err = p.Host("client").Do(func() error {
		c, err = tcpscript.DialTo(to.String())(ctx)
		return err
	})
	return c, err
}

// connect opens a flow through the relay and returns its two ends.
func (p *path) connect() (client, target *net.TCPConn) {
	p.t.Helper()
	var l net.Listener
	err := p.Host("target").Do(func() (err error) {
		l, err = tcpscript.ListenOn(netip.AddrPortFrom(targetAddress, targetPort).String())(p.t.Context())
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	defer l.Close()
	c, err := p.dial(p.t.Context(), netip.AddrPortFrom(relayNear, listenPort))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Close() })
	l.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
	a, err := l.Accept()
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { a.Close() })
	return c.(*net.TCPConn), a.(*net.TCPConn)
}
