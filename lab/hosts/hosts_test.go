package hosts

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

// cabled returns two hosts with an Ethernet between their devices eth0.
func cabled(t *testing.T) (ends [2]*Host) {
	t.Helper()
	for i, name := range []string{"a", "b"} {
		host, err := New(name)
		must(t, err)
		t.Cleanup(host.Close)
		ends[i] = host
	}
	must(t, Cable(ends[0], "eth0", ends[1], "eth0", 1500))
	return ends
}

// TestAddressFound checks that neighbours find a host's new IPv6 address with their
// first solicitation.
func TestAddressFound(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	for range 20 {
		ends := cabled(t)
		for _, address := range []string{"10.9.0.1/24", "fd09::7:1234/64"} {
			must(t, ends[0].Address("eth0", netip.MustParsePrefix(address)))
		}
		must(t, ends[0].Address("lo", netip.MustParsePrefix("fd09::8/128")))
		var groups []byte
		must(t, ends[0].Do(func() (err error) {
			groups, err = os.ReadFile("/proc/thread-self/net/igmp6")
			return err
		}))
		if !strings.Contains(string(groups), "ff0200000000000000000001ff071234") {
			t.Fatalf("the host does not listen for neighbours that look for it, only at:\n%s", groups)
		}
	}
}

// A host drops the TCP packets of a connection, and no others.
func TestDropTCP(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	ends := cabled(t)
	must(t, ends[0].Address("eth0", netip.MustParsePrefix("10.9.0.1/24")))
	must(t, ends[1].Address("eth0", netip.MustParsePrefix("10.9.0.2/24")))
	l, err := ends[1].ListenTCP(t.Context(), 5000)
	must(t, err)
	t.Cleanup(func() { l.Close() })
	connect := func() (near, far net.Conn) {
		near, err := ends[0].DialTCP(t.Context(), netip.MustParseAddrPort("10.9.0.2:5000"), time.Minute)
		must(t, err)
		t.Cleanup(func() { near.Close() })
		far, err = l.Accept()
		must(t, err)
		t.Cleanup(func() { far.Close() })
		return near, far
	}
	dropped, droppedFar := connect()
	other, otherFar := connect()
	must(t, ends[1].Sysctl("net.ipv4.ip_forward", "1"))
	for range 2 {
		must(t, ends[1].DropTCP(dropped.LocalAddr().(*net.TCPAddr).AddrPort().Port(), 5000))
	}
	for _, conn := range []net.Conn{dropped, other} {
		_, err = conn.Write([]byte{1})
		must(t, err)
	}
	must(t, otherFar.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err = otherFar.Read(make([]byte, 1))
	must(t, err)
	must(t, droppedFar.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	if _, err := droppedFar.Read(make([]byte, 1)); err == nil {
		t.Error("a dropped byte arrived")
	}
	// The sender waits for an acknowledgement, as after any loss.
	raw, err := dropped.(*net.TCPConn).SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO)
		must(t, err)
		if info.Unacked != 1 || info.State != unix.BPF_TCP_ESTABLISHED {
			t.Errorf("%d packets unacknowledged in state %d, want 1 of an established connection", info.Unacked, info.State)
		}
	}))
}
