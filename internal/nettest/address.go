package nettest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
)

// The ports are below the kernel's ephemeral range (ip_local_port_range begins
// at 32768). An ephemeral port may be taken again before the test listens on
// it.
const firstPort, lastPort = 10000, 32000

var nextPort = func() *atomic.Uint32 {
	n := new(atomic.Uint32)
	n.Store(rand.Uint32N(lastPort - firstPort))
	return n
}()

// FreePort returns a port of the host's address without a listener. It returns
// each port once.
func FreePort(host netip.Addr) (uint16, error) {
	for range lastPort - firstPort {
		port := uint16(firstPort + nextPort.Add(1)%(lastPort-firstPort))
		var lc net.ListenConfig
		lc.SetMultipathTCP(false)
		l, err := lc.Listen(context.Background(), "tcp", netip.AddrPortFrom(host, port).String())
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no port of %v is free", host)
}

// FreeAddress is FreePort as "host:port".
func FreeAddress(t testing.TB, host string) string {
	t.Helper()
	addr, err := netip.ParseAddr(host)
	if err != nil {
		t.Fatal(err)
	}
	port, err := FreePort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(addr, port).String()
}
