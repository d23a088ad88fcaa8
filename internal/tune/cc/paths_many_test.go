package cc

import (
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"longhaul/internal/sys/kernel"
)

// maxPaths is the bound of the map in bpf/haul.bpf.c.
const maxPaths = 4096

// countPaths counts the entries of the map of paths, and tells whether it has a destination.
func countPaths(t *testing.T, m *ebpf.Map, to netip.Addr) (n int, has bool) {
	t.Helper()
	var key pathKey
	value := make([]byte, m.ValueSize())
	all := m.Iterate()
	for all.Next(&key, &value) {
		n++
		has = has || netip.AddrFrom16(key.Address) == netip.AddrFrom16(to.As16())
	}
	must(t, all.Err())
	return n, has
}

// Destinations beyond those that haul remembers: the map does not grow, and new connections work
// and leave their paths behind. (Which are forgotten is the kernel's choice, of those that were
// not in use lately.)
func TestPathsOfManyDestinations(t *testing.T) {
	t.Parallel()
	h := testHost(t)
	name := load(t, h, "haul")
	p, err := h.Paths(name)
	must(t, err)
	defer p.Close()
	if kind, n := p.paths.Type(), p.paths.MaxEntries(); kind != ebpf.LRUHash || n != maxPaths {
		t.Fatalf("the map of paths is a %v of %d entries", kind, n)
	}
	l, _ := listen(t, netip.IPv4Unspecified(), nil)
	port := l.Addr().(*net.TCPAddr).Port
	visit := func(to netip.Addr) {
		t.Helper()
		conn, err := dial(netip.AddrPortFrom(to, uint16(port)).String(), withAlgorithm(name))
		if err != nil {
			t.Fatalf("connection to %v: %v", to, err)
		}
		defer conn.Close()
		must(t, conn.(*net.TCPConn).SetLinger(0))
		for range 3 { // several round trips, of which each may end an epoch
			deliver(t, conn, 16<<10)
		}
	}
	destination := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}) }
	first := destination(0)
	visit(first)
	if n, has := countPaths(t, p.paths, first); n != 1 || !has {
		t.Fatalf("after one connection there are %d paths, that one among them: %v", n, has)
	}
	const more, real = maxPaths + maxPaths/4, 64
	cookie, err := kernel.NetNSCookie()
	must(t, err)
	for i := range more {
		if i < more-real {
			key := pathKey{NetNS: [2]uint32{uint32(cookie >> 32), uint32(cookie)}, Address: destination(i + 1).As16()}
			putPath(t, p, key, carriedRecord{BytesPerSecond: 1})
			continue
		}
		visit(destination(i + 1))
	}
	n, has := countPaths(t, p.paths, destination(more))
	t.Logf("%d paths after %d destinations", n, more+1)
	if n > maxPaths || n < maxPaths/2 {
		t.Errorf("%d paths are remembered", n)
	}
	if !has {
		t.Error("the latest path is not among them")
	}
}
