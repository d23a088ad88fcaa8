// Package linktest makes hosts with a link, or a router, between them, for tests of
// the emulator with the kernel's own protocols.
package linktest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"longhaul/lab/hosts"
	"longhaul/lab/link"
	"longhaul/test/nettest"
)

// Host is a network namespace with one end of a link.
type Host struct {
	V4, V6 netip.Addr
	Port   link.Port
	ns     netns.NsHandle
}

// Kind is a kind of port.
type Kind struct {
	Name string
	open func(t testing.TB, h *Host, mtu int) link.Port
}

// Kinds are all kinds, for tests of each.
var Kinds = []Kind{{"tun", openTUN}, {"veth", openVeth}}

// New makes two hosts, 10.9.0.1 and 10.9.0.2 (fd09::1 and fd09::2), with a
// running link between them. The end of the test removes them. New skips the test if
// the kind is not available.
func New(t testing.TB, kind Kind, mtu int, ab, ba link.Settings) (a, b *Host, l *link.Link) {
	t.Helper()
	nettest.RequireSandbox(t)
	var hosts [2]*Host
	for i := range hosts {
		h := &Host{
			V4: netip.AddrFrom4([4]byte{10, 9, 0, byte(i + 1)}),
			V6: netip.MustParseAddr(fmt.Sprintf("fd09::%d", i+1)),
			ns: newNamespace(t),
		}
		hosts[i] = h
		h.Port = kind.open(t, h, mtu)
		h.Do(t, h.configure)
	}
	a, b = hosts[0], hosts[1]
	l, err := link.New(a.Port, b.Port, ab, ba)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error("close the link:", err)
		}
	})
	l.Start()
	return a, b, l
}

// Run runs f on a new thread inside the host's namespace. Sockets that f opens stay
// there.
func (h *Host) Run(f func() error) error { return runIn(h.ns, f) }

// Do is like Run, and fails the test on an error.
func (h *Host) Do(t testing.TB, f func() error) {
	t.Helper()
	if err := h.Run(f); err != nil {
		t.Fatal(err)
	}
}

func runIn(ns netns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := netns.Set(ns); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

func newNamespace(t testing.TB) netns.NsHandle {
	t.Helper()
	var ns netns.NsHandle
	made := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		var err error
		ns, err = netns.New()
		made <- err
	}()
	if err := <-made; err != nil {
		t.Fatal("make a network namespace:", err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

func openTUN(t testing.TB, h *Host, mtu int) (p link.Port) {
	t.Helper()
	err := h.Run(func() (err error) {
		p, err = link.OpenTUN("wan0", mtu)
		return err
	})
	if errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func openVeth(t testing.TB, h *Host, mtu int) (p link.Port) {
	t.Helper()
	err := runIn(newNamespace(t), func() (err error) {
		p, err = link.OpenVeth("near0", "wan0", int(h.ns), mtu)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (h *Host) configure() error {
	for _, name := range []string{"lo", h.Port.Name()} {
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
		if device.Attrs().Index != h.Port.Index() {
			return fmt.Errorf("device %s has index %d, the port says %d", name, device.Attrs().Index, h.Port.Index())
		}
		for _, address := range []*netlink.Addr{
			{IPNet: &net.IPNet{IP: h.V4.AsSlice(), Mask: net.CIDRMask(24, 32)}},
			// No duplicate address detection: the test would count its packets.
			{IPNet: &net.IPNet{IP: h.V6.AsSlice(), Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD},
		} {
			if err := netlink.AddrAdd(device, address); err != nil {
				return err
			}
		}
		if err := hosts.AwaitSolicited(device, h.V6); err != nil {
			return err
		}
	}
	return nil
}

// Sysctl sets a network setting of the host, such as "ipv4/tcp_rmem".
func (h *Host) Sysctl(t testing.TB, name, value string) {
	t.Helper()
	h.Do(t, func() error { return os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0) })
}

// Connect opens a TCP connection from one host to another.
func Connect(t testing.TB, from, to *Host, address netip.Addr) (dialed, accepted net.Conn) {
	t.Helper()
	var listener net.Listener
	to.Do(t, func() (err error) {
		config := net.ListenConfig{}
		config.SetMultipathTCP(false)
		listener, err = config.Listen(context.Background(), "tcp", netip.AddrPortFrom(address, 0).String())
		return err
	})
	defer listener.Close()
	from.Do(t, func() (err error) {
		dialer := net.Dialer{Timeout: time.Minute}
		dialer.SetMultipathTCP(false)
		dialed, err = dialer.Dial("tcp", listener.Addr().String())
		return err
	})
	t.Cleanup(func() { dialed.Close() })
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { accepted.Close() })
	return dialed, accepted
}
