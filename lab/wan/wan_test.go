package wan

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/lab"
	"longhaul/lab/link"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

const port = 6000

func everything(*tcpinfo.Connection) bool { return true }

// build makes a path with an echo at its far end.
func build(t *testing.T) (p *Path, dial func() *net.TCPConn) {
	t.Helper()
	nettest.RequireSandbox(t)
	near, far := netip.MustParsePrefix("10.1.0.1/24"), netip.MustParsePrefix("10.1.0.2/24")
	perfect := link.Settings{MTU: 1500}
	router := []lab.Sysctl{{Name: "net.ipv4.ip_forward", Value: "1"}}
	built, err := lab.Build(lab.Topology{
		Hosts: []lab.HostSpec{{Name: "near", Address: near.Addr(), Sysctls: router}, {Name: "far", Address: far.Addr(), Sysctls: router}},
		Links: []lab.LinkSpec{{
			Name: "wan",
			A:    lab.Endpoint{Host: "near", Device: "wan", Addresses: []netip.Prefix{near}},
			B:    lab.Endpoint{Host: "far", Device: "wan", Addresses: []netip.Prefix{far}},
			AB:   perfect, BA: perfect,
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { built.Close() })
	l, err := built.Host("far").ListenTCP(t.Context(), port)
	nettest.Must(t, err)
	t.Cleanup(tcpserver.Serve(l, tcpserver.Echo))
	p = &Path{Near: built.Host("near"), Far: built.Host("far"), Link: built.Link("wan"), Serves: func(n uint16) bool { return n == port }}
	return p, func() *net.TCPConn {
		conn, err := p.Near.DialTCP(t.Context(), netip.AddrPortFrom(far.Addr(), port), time.Minute)
		nettest.Must(t, err)
		t.Cleanup(func() { conn.Close() })
		return conn
	}
}

func say(t *testing.T, conn net.Conn) {
	t.Helper()
	_, err := conn.Write([]byte{1})
	nettest.Must(t, err)
}

// hears waits for the echo of a byte.
func hears(conn net.Conn, within time.Duration) error {
	_ = conn.SetReadDeadline(time.Now().Add(within))
	_, err := io.ReadFull(conn, make([]byte, 1))
	return err
}

func connectionOf(conn *net.TCPConn) Connection {
	return Connection{conn.LocalAddr().(*net.TCPAddr).AddrPort(), conn.RemoteAddr().(*net.TCPAddr).AddrPort()}
}

func TestForgetAndRemember(t *testing.T) {
	p, dial := build(t)
	one, other := dial(), dial()
	all, err := p.Connections(everything)
	if err != nil || len(all) != 2 {
		t.Fatalf("%v: %v", all, err)
	}
	for range 2 { // again changes nothing
		nettest.Must(t, p.Forget(connectionOf(one)))
	}
	say(t, one)
	say(t, other)
	nettest.Must(t, hears(other, time.Minute))
	if err := hears(one, 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("an echo over a forgotten connection: %v", err)
	}
	for range 2 {
		nettest.Must(t, p.Remember(connectionOf(one)))
	}
	nettest.Must(t, hears(one, time.Minute))
}

func TestReset(t *testing.T) {
	p, dial := build(t)
	for _, tt := range []struct {
		atFar bool
		want  error
	}{{false, syscall.ECONNABORTED}, {true, syscall.ECONNRESET}} {
		conn := dial()
		say(t, conn)
		nettest.Must(t, hears(conn, time.Minute))
		for range 2 { // it is gone at the second time
			nettest.Must(t, p.Reset(connectionOf(conn), tt.atFar))
		}
		if err := hears(conn, time.Minute); !errors.Is(err, tt.want) {
			t.Errorf("reset at the far host %t: %v, want %v", tt.atFar, err, tt.want)
		}
	}
	conn := dial() // the listener is none of the connections
	say(t, conn)
	nettest.Must(t, hears(conn, time.Minute))
}

func TestCut(t *testing.T) {
	p, dial := build(t)
	conn := dial()
	nettest.Must(t, p.Cut(true, link.BToA))
	say(t, conn)
	if err := hears(conn, 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("an echo through an outage: %v", err)
	}
	nettest.Must(t, p.Cut(false, BothWays...))
	nettest.Must(t, hears(conn, time.Minute))
}
