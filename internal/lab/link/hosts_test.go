package link

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"longhaul/internal/nettest"
)

// host is a network namespace with one end of the link under test.
type host struct {
	ns      netns.NsHandle
	v4, v6  net.IP
	ifName  string
	ifIndex int
}

// inNamespace runs f on a thread of its own inside the namespace. The thread
// ends with it.
func inNamespace(ns netns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := netns.Set(ns); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

func (h *host) do(t testing.TB, f func() error) {
	t.Helper()
	if err := inNamespace(h.ns, f); err != nil {
		t.Fatal(err)
	}
}

func newNamespace(t testing.TB) netns.NsHandle {
	t.Helper()
	type result struct {
		ns  netns.NsHandle
		err error
	}
	made := make(chan result, 1)
	go func() {
		runtime.LockOSThread()
		ns, err := netns.New()
		made <- result{ns, err}
	}()
	r := <-made
	if r.err != nil {
		t.Fatal("make a network namespace:", r.err)
	}
	t.Cleanup(func() { r.ns.Close() })
	return r.ns
}

// portKinds are the ways to open ports, for tests that must hold for each.
var portKinds = []struct {
	name string
	open func(t testing.TB, h *host, mtu int) Port
}{
	{"tun", openTUN},
	{"veth", openVeth},
}

func openTUN(t testing.TB, h *host, mtu int) Port {
	t.Helper()
	var p Port
	err := inNamespace(h.ns, func() (err error) {
		p, err = OpenTUN("wan0", mtu)
		return err
	})
	if os.IsPermission(err) || os.IsNotExist(err) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// newHosts makes two hosts, 10.9.0.1 and 10.9.0.2 (fd09::1 and fd09::2), with
// a running link between them.
func newHosts(t testing.TB, open func(testing.TB, *host, int) Port, mtu int, ab, ba Settings) (a, b *host, l *Link) {
	t.Helper()
	nettest.RequireSandbox(t)
	hosts := [2]*host{}
	ports := [2]Port{}
	for i := range hosts {
		h := &host{
			ns: newNamespace(t),
			v4: net.IPv4(10, 9, 0, byte(i+1)),
			v6: net.ParseIP(fmt.Sprintf("fd09::%d", i+1)),
		}
		hosts[i] = h
		ports[i] = open(t, h, mtu)
		h.ifName, h.ifIndex = ports[i].Name(), ports[i].Index()
		h.do(t, func() error { return h.configure() })
	}
	l, err := New(ports[0], ports[1], ab, ba)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error("close the link:", err)
		}
	})
	l.Start()
	return hosts[0], hosts[1], l
}

func (h *host) configure() error {
	for _, name := range []string{"lo", h.ifName} {
		device, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(device); err != nil {
			return err
		}
		if name == "lo" {
			continue
		}
		if err := netlink.AddrAdd(device, &netlink.Addr{IPNet: &net.IPNet{IP: h.v4, Mask: net.CIDRMask(24, 32)}}); err != nil {
			return err
		}
		v6 := &netlink.Addr{IPNet: &net.IPNet{IP: h.v6, Mask: net.CIDRMask(64, 128)}, Flags: 0x02 /* IFA_F_NODAD */}
		if err := netlink.AddrAdd(device, v6); err != nil {
			return err
		}
	}
	return nil
}

// sysctl sets a network setting of the namespace.
func (h *host) sysctl(t testing.TB, name, value string) {
	t.Helper()
	h.do(t, func() error {
		return os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0)
	})
}

func (h *host) listen(t testing.TB, address net.IP) net.Listener {
	t.Helper()
	var listener net.Listener
	h.do(t, func() (err error) {
		config := net.ListenConfig{}
		config.SetMultipathTCP(false)
		listener, err = config.Listen(context.Background(), "tcp", net.JoinHostPort(address.String(), "0"))
		return err
	})
	t.Cleanup(func() { listener.Close() })
	return listener
}

func (h *host) dial(t testing.TB, address string) net.Conn {
	t.Helper()
	var c net.Conn
	h.do(t, func() (err error) {
		dialer := net.Dialer{Timeout: 5 * time.Second}
		dialer.SetMultipathTCP(false)
		c, err = dialer.Dial("tcp", address)
		return err
	})
	t.Cleanup(func() { c.Close() })
	return c
}

func openVeth(t testing.TB, h *host, mtu int) Port {
	t.Helper()
	ns := newNamespace(t)
	var p Port
	err := inNamespace(ns, func() (err error) {
		p, err = OpenVeth(fmt.Sprintf("near%d", h.v4[15]), "wan0", int(h.ns), mtu)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
