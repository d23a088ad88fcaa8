package cc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/ledger"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		os.Exit(child(role))
	}
	nettest.AtOnce(8) // most of them wait for the kernel
	nettest.Main(m)
}

// testHost is this machine with a BPF filesystem of the test's own, at whose
// end nothing may be left.
func testHost(t testing.TB) *Host {
	t.Helper()
	nettest.RequireRoot(t)
	nettest.RequireSandbox(t)
	requireStructOps(t)
	h := NewHost(testBy)
	h.BPFFS, h.Ledger, h.unregisterPatience = t.TempDir(), t.TempDir(), patience
	must(t, os.Chmod(filepath.Dir(h.BPFFS), 0o755)) // as /sys/fs is
	must(t, unix.Mount("bpf", h.BPFFS, "bpf", 0, ""))
	t.Cleanup(func() {
		if left, err := filepath.Glob(h.BPFFS + "/longhaul*"); err != nil || len(left) > 0 {
			t.Errorf("left on the BPF filesystem: %v, %v", left, err)
		}
		if left, err := filepath.Glob(h.Ledger + "/*"); err != nil || len(left) > 0 {
			t.Errorf("left to undo: %v, %v", left, err)
		}
		must(t, unix.Unmount(h.BPFFS, 0))
	})
	return h
}

// eachWay runs a test with both ways to register an algorithm, as far as this kernel
// has them.
func eachWay(t *testing.T, test func(t *testing.T, h *Host)) {
	t.Helper()
	for _, unlinked := range []bool{false, true} {
		name := "link"
		if unlinked {
			name = "no link"
		}
		t.Run(name, func(t *testing.T) {
			h := testHost(t)
			if types, err := readKernelTypes(); err == nil && !types.links && !unlinked {
				t.Skip("needs links of BPF struct_ops (Linux 6.4)")
			}
			h.unlinked = unlinked
			test(t, h)
		})
	}
}

// eachWayAtOnce is eachWay for a test that leaves the system's default alone.
func eachWayAtOnce(t *testing.T, test func(t *testing.T, h *Host)) {
	t.Helper()
	t.Parallel()
	eachWay(t, func(t *testing.T, h *Host) {
		t.Parallel()
		test(t, h)
	})
}

// otherHost is a host with another BPF filesystem and ledger, which registers as h
// does.
func otherHost(t *testing.T, h *Host) *Host {
	t.Helper()
	other := testHost(t)
	other.unlinked = h.unlinked
	return other
}

// testBy makes the claims of tests.
var testBy = ledger.By{Owner: "tester", Means: ledger.Command, Command: "a test"}

// testName is a name that nothing on this machine has. The kernel's table is
// one for all of it, so tests do not use the real names.
func testName() string { return fmt.Sprintf("t%08x", rand.Uint32()) }

// load loads an algorithm under a test's name, until the test ends.
func load(t testing.TB, h *Host, algorithm string) (name string) {
	t.Helper()
	requireAlgorithm(t, algorithm)
	name = testName()
	result, err := h.Load(context.Background(), algorithm, name)
	must(t, err)
	if result.Outcome != Loaded {
		t.Fatalf("%s: %s", name, result.Outcome)
	}
	t.Cleanup(func() {
		// Unless the test has done so.
		if _, err := h.Unload(context.Background(), name); err != nil && !errors.Is(err, ErrUnknown) {
			t.Error(err)
		}
	})
	return name
}

var must = nettest.Must

func isRegistered(t testing.TB, name string) bool {
	t.Helper()
	is, err := registered(name)
	must(t, err)
	return is
}

// describe finds an algorithm in the list.
func describe(t testing.TB, h *Host, name string) (Algorithm, bool) {
	t.Helper()
	all, err := h.List(false)
	must(t, err)
	i := slices.IndexFunc(all, func(a Algorithm) bool { return a.Name == name })
	if i < 0 {
		return Algorithm{}, false
	}
	return all[i], true
}

// withAlgorithm is a dialer's or listener's control function.
func withAlgorithm(name string, more ...func(fd int) error) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if raw := c.Control(func(fd uintptr) {
			if name != "" {
				err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
			}
			for _, f := range more {
				err = errors.Join(err, f(int(fd)))
			}
		}); raw != nil {
			return raw
		}
		return err
	}
}

// algorithmOf asks a connection.
func algorithmOf(t testing.TB, conn net.Conn) (name string) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) {
		name, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	}))
	must(t, err)
	return name
}

// patience is how long a test waits for what must come.
const patience = time.Minute

// listen opens a socket that takes everything in and counts it.
func listen(t testing.TB, address netip.Addr, control func(string, string, syscall.RawConn) error) (net.Listener, *atomic.Int64) {
	t.Helper()
	lc := net.ListenConfig{Control: control}
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), "tcp", netip.AddrPortFrom(address, 0).String())
	must(t, err)
	var got atomic.Int64
	stop := tcpserver.Serve(l, func(c net.Conn) {
		_, _ = io.Copy(counter{&got}, c) // an error ends the connection
	})
	t.Cleanup(stop)
	return l, &got
}

// counter counts what is written to it.
type counter struct{ n *atomic.Int64 }

func (c counter) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return len(b), nil
}

// dial connects on the calling goroutine's thread.
func dial(address string, control func(string, string, syscall.RawConn) error) (net.Conn, error) {
	d := net.Dialer{Control: control, Timeout: 20 * time.Second}
	d.SetMultipathTCP(false)
	return d.Dial("tcp", address)
}

// deliver sends n bytes and waits until the receiver has acknowledged them. (A
// receiver's counter would take what an earlier connection has left on the link
// for them.)
func deliver(t testing.TB, conn net.Conn, n int) {
	t.Helper()
	must(t, conn.SetWriteDeadline(time.Now().Add(patience)))
	_, err := conn.Write(make([]byte, n))
	must(t, err)
	raw, err := conn.(*net.TCPConn).SyscallConn()
	must(t, err)
	var left int
	nettest.Eventually(t, patience, func() bool {
		must(t, raw.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }))
		must(t, err)
		return left == 0
	}, func() string { return fmt.Sprintf("%d of %d bytes are not acknowledged", left, n) })
}

// infoOf is the kernel's TCP_INFO of a connection.
func infoOf(t testing.TB, conn net.Conn) (info *unix.TCPInfo) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}))
	must(t, err)
	return info
}
