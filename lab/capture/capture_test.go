package capture

import (
	"io"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// TestConnection captures a real connection on the loopback device.
func TestConnection(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	const segments = 500
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, 1000) }); err != nil {
		t.Fatal(err)
	}
	c, err := Start(lo.Attrs().Index, uint16(l.Addr().(*net.TCPAddr).Port))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		conn, err := net.Dial("tcp4", l.Addr().String())
		if err == nil {
			_, _ = conn.Write(make([]byte, 988*segments+7))
			conn.Close()
		}
	}()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, conn); err != nil || n != 988*segments+7 {
		t.Fatalf("received %d, %v", n, err)
	}
	conn.Close()
	seen := c.Stop()
	// The loopback device shows each packet twice, sent and received.
	if seen.MSSOfClient != 65495 || seen.MSSOfServer != 1000 || seen.Usual() != 988 || seen.Segments[988] < segments || seen.Missed != 0 {
		t.Errorf("seen: %+v", seen)
	}
}

func TestData(t *testing.T) {
	s := Seen{Segments: map[int]uint64{}}
	s.data(0, 0)
	s.data(100, 0)
	s.data(100, 1448)
	s.data(1448, 1448)
	s.data(10*1448+3, 1448)
	if diff := cmp.Diff(map[int]uint64{100: 2, 1448: 11, 3: 1}, s.Segments); diff != "" {
		t.Error(diff)
	}
	if s.Usual() != 1448 {
		t.Errorf("the usual size is %d", s.Usual())
	}
}

func FuzzPacket(f *testing.F) {
	f.Add(make([]byte, 100), 100)
	f.Add([]byte("\x00\x01\x00\x00\xa8\x05\x00\x00\x00\x00E\x00\x00\x2c\x00\x00\x00\x00\x40\x06\x00\x00\x7f\x00\x00\x01\x7f\x00\x00\x01\x00\x05\x00\x05\x00\x00\x00\x00\x00\x00\x00\x00\x60\x02\x00\x00\x00\x00\x00\x00\x02\x04\x05\xb4"), 54)
	f.Fuzz(func(_ *testing.T, head []byte, total int) {
		for _, linkHeader := range []int{0, 14} {
			s := Seen{Segments: map[int]uint64{}}
			s.packet(head, total, linkHeader, 5)
			s.Usual()
		}
	})
}
