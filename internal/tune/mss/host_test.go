package mss

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/sys/ledger"
	"longhaul/lab/hosts"
	"longhaul/lab/linktest"
	"longhaul/test/nettest"
)

// testHost is this machine with a BPF filesystem of the test's own, at whose
// end nothing may be left.
func testHost(t testing.TB) *Host {
	t.Helper()
	nettest.RequireRoot(t)
	nettest.RequireSandbox(t)
	h := NewHost(ledger.By{Owner: "tester", Means: ledger.Command})
	h.BPFFS, h.Ledger = t.TempDir(), t.TempDir()
	must(t, os.Chmod(filepath.Dir(h.BPFFS), 0o755))
	must(t, unix.Mount("bpf", h.BPFFS, "bpf", 0, ""))
	t.Cleanup(func() {
		if left, err := filepath.Glob(h.BPFFS + "/longhaul*"); err != nil || len(left) > 0 {
			t.Errorf("left on the BPF filesystem: %v, %v", left, err)
		}
		if left, err := filepath.Glob(h.Ledger + "/*"); err != nil || len(left) > 0 {
			t.Errorf("left in the ledger: %v, %v", left, err)
		}
		must(t, unix.Unmount(h.BPFFS, 0))
	})
	return h
}

// site is three hosts in a row, of which the middle one has the rules.
type site struct{ linktest.Row }

func newSite(t testing.TB) site {
	t.Helper()
	return site{linktest.NewRow(t, 1500)}
}

// segments makes a connection from a to b and tells the MSS, less the room for
// timestamps, that each end may send with.
func (s site) segments(t testing.TB, address string) (fromA, fromB int) {
	t.Helper()
	var l net.Listener
	must(t, s.B.Do(func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", net.JoinHostPort(address, "0"))
		return err
	}))
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			close(accepted)
			return
		}
		accepted <- c
	}()
	var c net.Conn
	must(t, s.A.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", l.Addr().String(), patience)
		return err
	}))
	defer c.Close()
	far, ok := <-accepted
	if !ok {
		t.Fatal("nobody was accepted")
	}
	defer far.Close()
	return maxSegment(t, c), maxSegment(t, far)
}

func maxSegment(t testing.TB, c net.Conn) (mss int) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) {
		mss, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG)
	}))
	must(t, err)
	return mss
}

const timestampBytes = 12

// patience is how long a test waits for what must come.
const patience = time.Minute

// eachHook runs a test with links, and with filters in their place.
func eachHook(t *testing.T, f func(t *testing.T, h *Host, hook string)) {
	for _, hook := range []string{hookTCX, hookClsact} {
		t.Run(hook, func(t *testing.T) {
			h := testHost(t)
			if hook == hookTCX && !hasTCX(t) {
				t.Skip("this kernel has no tcx links")
			}
			h.Clsact = hook == hookClsact
			f(t, h, hook)
		})
	}
}

// hasTCX reports whether this kernel attaches programs by tcx links.
func hasTCX(t *testing.T) bool {
	t.Helper()
	p := testProgram(t, ethernetHeader)
	l, err := link.AttachTCX(link.TCXOptions{Interface: 1, Program: p.program, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return false
	}
	must(t, err)
	must(t, l.Close())
	return true
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// TestForwarded sets rules on the host in the middle, and connects through it.
func TestForwarded(t *testing.T) {
	eachHook(t, func(t *testing.T, h *Host, hook string) {
		s := newSite(t)
		ctx := context.Background()
		in := func(f func() error) { t.Helper(); must(t, s.R.Do(f)) }
		in(func() error {
			// The SYN from a bounds what b sends: data from b.
			_, err := h.Set(ctx, Rule{Device: "right", From: prefix("10.9.2.0/24"), Action: Clamp, MSS: 1000}, SetOptions{})
			return err
		})
		in(func() error {
			result, err := h.Set(ctx, Rule{Device: "left", To: prefix("fd09:2::2/128"), Action: Clamp, MSS: 1220}, SetOptions{})
			if result.Hook != hook || !result.Changed {
				t.Errorf("the result is %+v", result)
			}
			return err
		})
		if a, b := s.segments(t, "10.9.2.2"); a != 1460-timestampBytes || b != 1000-timestampBytes {
			t.Errorf("IPv4: a sends %d, b sends %d", a, b)
		}
		if a, b := s.segments(t, "fd09:2::2"); a != 1220-timestampBytes || b != 1440-timestampBytes {
			t.Errorf("IPv6: a sends %d, b sends %d", a, b)
		}
		var list []Status
		in(func() (err error) { list, err = h.List(); return err })
		if len(list) != 2 || list[0].Device != "left" || list[0].LastOld != 1440 || list[0].LastNew != 1220 || list[0].Rewritten != 1 ||
			list[1].LastOld != 1460 || list[1].LastNew != 1000 || list[1].Hook != hook || list[1].Problem != "" {
			t.Errorf("the rules are %+v", list)
		}
		in(func() error {
			cleared, err := h.Undo(ctx, func(k ledger.Key, _ ledger.Claim) bool {
				left, err := DeviceKey("left")
				return err == nil && k.Name == left
			})
			if len(cleared) != 1 || cleared[0].Rule.Device != "left" || cleared[0].Now != nil {
				t.Errorf("cleared %+v", cleared)
			}
			return err
		})
		if a, b := s.segments(t, "fd09:2::2"); a != 1440-timestampBytes || b != 1440-timestampBytes {
			t.Errorf("IPv6, cleared: a sends %d, b sends %d", a, b)
		}
		if _, b := s.segments(t, "10.9.2.2"); b != 1000-timestampBytes {
			t.Errorf("the other rule has gone as well: b sends %d", b)
		}
		in(func() error { _, err := h.Undo(ctx, ledger.AllClaims); return err })
		s.nothingAttached(t)
	})
}

// nothingAttached checks the devices of r.
func (s site) nothingAttached(t testing.TB) {
	t.Helper()
	must(t, s.R.Do(func() error {
		for _, name := range []string{"left", "right"} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if has, err := hasClsact(l.Attrs().Index); err != nil || has {
				t.Errorf("%s has a clsact qdisc left: %v", name, err)
			}
			if xdp := l.Attrs().Xdp; xdp != nil && xdp.Attached {
				t.Errorf("%s has a program left", name)
			}
		}
		return nil
	}))
	if a, b := s.segments(t, "10.9.2.2"); a != 1460-timestampBytes || b != 1460-timestampBytes {
		t.Errorf("a sends %d, b sends %d, and nothing should be in force", a, b)
	}
}

// TestClampToRoutes: the MTU comes from the route's metric, and from the device.
func TestClampToRoutes(t *testing.T) {
	eachHook(t, func(t *testing.T, h *Host, _ string) {
		s := newSite(t)
		ctx := context.Background()
		// The way to b is narrow, the way back is not.
		must(t, s.R.Route(hosts.Route{To: prefix("10.9.2.2/32"), Device: "right", TCP: hosts.Metrics{MTU: 1300, LockMTU: true}}))
		must(t, s.R.Route(hosts.Route{To: prefix("fd09:2::2/128"), Device: "right", TCP: hosts.Metrics{MTU: 1280, LockMTU: true}}))
		set := func(a Action) {
			t.Helper()
			must(t, s.R.Do(func() error { _, err := h.Set(ctx, Rule{Device: "left", Action: a}, SetOptions{}); return err }))
		}
		if !lookupReturnsMTU() {
			must(t, s.R.Do(func() error {
				var unsupported *kernel.ErrUnsupported
				if _, err := h.Set(ctx, Rule{Device: "left", Action: ClampToRoute}, SetOptions{}); !errors.As(err, &unsupported) {
					t.Errorf("the error is %v", err)
				}
				return nil
			}))
			t.Skip("this kernel does not tell BPF the MTU of a route")
		}
		set(ClampToRoute)
		if a, b := s.segments(t, "10.9.2.2"); a != 1260-timestampBytes || b != 1460-timestampBytes {
			t.Errorf("to the route: a sends %d, b sends %d", a, b)
		}
		if a, b := s.segments(t, "fd09:2::2"); a != 1220-timestampBytes || b != 1440-timestampBytes {
			t.Errorf("to the route, IPv6: a sends %d, b sends %d", a, b)
		}
		set(ClampToPMTU)
		if a, b := s.segments(t, "10.9.2.2"); a != 1260-timestampBytes || b != 1260-timestampBytes {
			t.Errorf("to the path MTU: a sends %d, b sends %d", a, b)
		}
		if a, b := s.segments(t, "fd09:2::2"); a != 1220-timestampBytes || b != 1220-timestampBytes {
			t.Errorf("to the path MTU, IPv6: a sends %d, b sends %d", a, b)
		}
		must(t, s.R.Do(func() error { _, err := h.Undo(ctx, ledger.AllClaims); return err }))
		s.nothingAttached(t)
	})
}

// TestDataSurvives sends data through a host that raised the MSS, with whatever
// the devices do about checksums and segmentation.
func TestDataSurvives(t *testing.T) {
	h := testHost(t)
	s := newSite(t)
	must(t, s.B.Route(hosts.Route{To: prefix("10.9.1.0/24"), Via: netip.MustParseAddr("10.9.2.1"), TCP: hosts.Metrics{AdvMSS: 460}}))
	must(t, s.R.Do(func() error {
		_, err := h.Set(context.Background(), Rule{Device: "right", To: prefix("10.9.2.0/24"), Action: Raise, MSS: 1460}, SetOptions{})
		return err
	}))
	var l net.Listener
	must(t, s.B.Do(func() (err error) { l, err = net.Listen("tcp4", "10.9.2.2:0"); return err }))
	defer l.Close()
	got := make(chan int64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- -1
			return
		}
		defer c.Close()
		n, _ := io.Copy(io.Discard, c)
		got <- n
	}()
	var c net.Conn
	must(t, s.A.Do(func() (err error) { c, err = net.Dial("tcp4", l.Addr().String()); return err }))
	if mss := maxSegment(t, c); mss != 1460-timestampBytes {
		t.Errorf("a sends %d", mss)
	}
	const size = 20 << 20
	_, err := c.Write(make([]byte, size))
	must(t, err)
	c.Close()
	if n := <-got; n != size {
		t.Errorf("%d bytes of %d arrived", n, size)
	}
	must(t, s.R.Do(func() error { _, err := h.Undo(context.Background(), ledger.AllClaims); return err }))
}

func TestReplace(t *testing.T) {
	h := testHost(t)
	s := newSite(t)
	ctx := context.Background()
	must(t, s.R.Do(func() error {
		rule := Rule{Device: "left", To: prefix("10.9.2.0/24"), Port: 80, Action: Clamp, MSS: 1000}
		if _, err := h.Set(ctx, rule, SetOptions{}); err != nil {
			return err
		}
		result, err := h.Set(ctx, rule, SetOptions{})
		if err != nil || result.Changed || result.Replaced != nil {
			t.Errorf("the same again: %+v, %v", result, err)
		}
		other := rule
		other.Action, other.MSS = Raise, 1400
		result, err = h.Set(ctx, other, SetOptions{})
		if err != nil || !result.Changed || result.Replaced == nil || *result.Replaced != rule {
			t.Errorf("another action: %+v, %v", result, err)
		}
		list, err := h.List()
		if err != nil || len(list) != 1 || list[0].Rule != other {
			t.Errorf("the rules are %+v, %v", list, err)
		}
		h.fill(t, "left")
		rule.Port = 9
		if _, err := h.Set(ctx, rule, SetOptions{}); !errors.Is(err, ErrFull) {
			t.Errorf("one rule too many: %v", err)
		}
		cleared, err := h.Undo(ctx, ledger.AllClaims)
		if len(cleared) != maxRules {
			t.Errorf("cleared %d rules", len(cleared))
		}
		return err
	}))
}

// fill adds rules to the table of a device until that is full, all at once.
func (h *Host) fill(t *testing.T, device string) {
	t.Helper()
	dirs, err := filepath.Glob(h.pins().Path("*"))
	must(t, err)
	if len(dirs) != 1 {
		t.Fatalf("pins of %d devices, want 1: %v", len(dirs), dirs)
	}
	p, err := openMaps(dirs[0])
	must(t, err)
	defer p.Close()
	rules, err := p.rules(device)
	must(t, err)
	for id := uint32(1000); len(rules) < maxRules; id++ {
		rules = append(rules, numbered{id: id, rule: Rule{Device: device, Port: uint16(id), Action: Clamp, MSS: 1000}})
	}
	must(t, p.put(rules))
}

func TestRefusals(t *testing.T) {
	h := testHost(t)
	s := newSite(t)
	for _, tt := range []struct {
		rule Rule
		want string
	}{
		{Rule{Device: "left", Action: Raise, MSS: 87}, "too small: the least for IPv4 is 88"},
		{Rule{Device: "left", Action: Clamp, MSS: -5}, "too small"},
		{Rule{Device: "left", Action: Clamp, MSS: 1219, To: prefix("fd00::/16")}, "the least for IPv6 is 1220"},
		{Rule{Device: "left", Action: Raise, MSS: 70000}, "too large"},
		{Rule{Device: "left", Action: Raise, MSS: 1461}, "does not fit the MTU of left, 1500: use at most 1460"},
		{Rule{Device: "left", Action: Raise, MSS: 1441, From: prefix("::/0")}, "use at most 1440"},
		{Rule{Device: "nowhere0", Action: Raise, MSS: 1000}, "no such device: nowhere0"},
		{Rule{Device: "left"}, "either raises or clamps"},
		{Rule{Device: "left", Action: ClampToPMTU, MSS: 1000}, "takes no value"},
		{Rule{Device: "left", Action: Raise, MSS: 1000, To: netip.PrefixFrom(netip.MustParseAddr("10.0.0.1"), 8)}, "bits set after its first 8"},
		{Rule{Device: "left", Action: Raise, MSS: 1000, To: prefix("::ffff:10.0.0.0/120")}, "is in IPv4-mapped form"},
		{Rule{Device: "left", Action: Raise, MSS: 1000, To: prefix("10.0.0.0/8"), From: prefix("fd00::/16")}, "use prefixes of one IP version"},
	} {
		must(t, s.R.Do(func() error {
			if _, err := h.Set(context.Background(), tt.rule, SetOptions{}); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%+v: the error is %v, want one with %q", tt.rule, err, tt.want)
			}
			return nil
		}))
	}
	if left, _ := filepath.Glob(h.BPFFS + "/longhaul*"); len(left) > 0 {
		t.Errorf("refused rules left %v", left)
	}
	// What is seen to arrive is not bounded by what the device sends.
	must(t, s.R.Do(func() error {
		_, err := h.Set(context.Background(), Rule{Device: "left", Action: Raise, MSS: 8960, From: prefix("10.9.1.0/24")}, SetOptions{Arrives: true})
		_, clearErr := h.Undo(context.Background(), ledger.AllClaims)
		return errors.Join(err, clearErr)
	}))
}

// TestInterrupted: what a crash leaves at any point is shown, completed by the
// next set, and removed by clear.
func TestInterrupted(t *testing.T) {
	rule := Rule{Device: "left", Action: Clamp, MSS: 1000}
	for _, tt := range []struct {
		name   string
		remove []string // pins with what they stand for, as if set had ended before making them
	}{
		{"after the directory", []string{"ingress", "egress", clsactPin, tablesName, countersName}},
		{"after one map", []string{"ingress", "egress", clsactPin, countersName}},
		{"after the maps", []string{"ingress", "egress", clsactPin}},
		{"after one direction", []string{"ingress"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachHook(t, func(t *testing.T, h *Host, hook string) { interrupted(t, h, hook, rule, tt.remove) })
		})
	}
}

func interrupted(t *testing.T, h *Host, hook string, rule Rule, remove []string) {
	s := newSite(t)
	ctx := context.Background()
	crash := func() {
		t.Helper()
		must(t, s.R.Do(func() error {
			if _, err := h.Set(ctx, rule, SetOptions{}); err != nil {
				return err
			}
			for _, name := range remove {
				if err := unmake(h, hook, name); err != nil {
					return fmt.Errorf("remove %s: %w", name, err)
				}
			}
			return nil
		}))
	}
	crash()
	must(t, s.R.Do(func() error {
		list, err := h.List()
		if err != nil || len(list) != 1 || list[0].Device != "left" || list[0].Problem == "" {
			t.Errorf("shown is %+v, %v", list, err)
		}
		_, err = h.Undo(ctx, ledger.AllClaims)
		return err
	}))
	s.nothingAttached(t)
	crash()
	must(t, s.R.Do(func() error {
		if _, err := h.Set(ctx, rule, SetOptions{}); err != nil {
			return err
		}
		list, err := h.List()
		if err != nil || len(list) != 1 || list[0].Problem != "" || list[0].Hook != hook {
			t.Errorf("set again, shown is %+v, %v", list, err)
		}
		return nil
	}))
	if a, b := s.segments(t, "10.9.2.2"); a != 1000-timestampBytes || b != 1000-timestampBytes {
		t.Errorf("set again: a sends %d, b sends %d", a, b)
	}
	must(t, s.R.Do(func() error { _, err := h.Undo(ctx, ledger.AllClaims); return err }))
	s.nothingAttached(t)
}

// unmake removes a pin of the device left, with what it stands for. A program that
// was never attached does not work for a while, as one does whose pin alone is removed.
func unmake(h *Host, hook, name string) error {
	found, err := filepath.Glob(h.pins().Path("*", name))
	if err != nil {
		return err
	}
	l, err := netlink.LinkByName("left")
	if err != nil {
		return err
	}
	at := slices.IndexFunc(directions, func(d direction) bool { return d.name == name })
	switch {
	case hook == hookClsact && at >= 0:
		ours, err := filters(l.Attrs().Index, directions[at])
		if err != nil || len(ours) != 1 {
			return fmt.Errorf("the filters are %v, %w", ours, err)
		}
		return netlink.FilterDel(ours[0])
	case hook == hookTCX && name == clsactPin:
		return nil // it makes no qdisc
	case len(found) != 1:
		return fmt.Errorf("the pins are %v", found)
	case at >= 0:
		return detachLink(found[0])
	case name == clsactPin:
		if err := netlink.QdiscDel(clsact(l.Attrs().Index)); err != nil {
			return err
		}
	}
	return os.Remove(found[0])
}

// TestDeviceGone: the pins of a device that was deleted, and of a namespace
// that has ended, are shown and cleared.
func TestDeviceGone(t *testing.T) {
	eachHook(t, func(t *testing.T, h *Host, _ string) {
		s := newSite(t)
		ctx := context.Background()
		must(t, s.R.Do(func() error {
			if _, err := h.Set(ctx, Rule{Device: "left", Action: Clamp, MSS: 1000}, SetOptions{}); err != nil {
				return err
			}
			l, err := netlink.LinkByName("left")
			if err != nil {
				return err
			}
			if err := netlink.LinkDel(l); err != nil {
				return err
			}
			list, err := h.List()
			if err != nil || len(list) != 1 || !strings.Contains(list[0].Problem, "deleted") {
				t.Errorf("shown is %+v, %v", list, err)
			}
			cleared, err := h.Undo(ctx, ledger.AllClaims)
			if len(cleared) != 1 {
				t.Errorf("cleared %+v", cleared)
			}
			return err
		}))
	})
}

// TestDeviceAnew: the kernel gives a deleted device's index to a new one, which
// must not inherit rules.
// At 1818be3 the next set on the new device brought the old rule back.
func TestDeviceAnew(t *testing.T) {
	eachHook(t, func(t *testing.T, h *Host, hook string) {
		s := newSite(t)
		ctx := context.Background()
		old := Rule{Device: "anew", Port: 80, Action: Clamp, MSS: 1000}
		rule := Rule{Device: "anew", Port: 443, Action: Clamp, MSS: 1200}
		device := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "anew", Index: 4711}, PeerName: "peer"}
		show := func(want ...Rule) error {
			list, err := h.List()
			var got []Rule
			for _, status := range list {
				got = append(got, status.Rule)
				if status.Hook != hook || status.Problem != "" {
					t.Errorf("%+v is not in force", status)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("the rules are %+v, want %+v", got, want)
			}
			return err
		}
		set := func(rule Rule, dropped ...Rule) error {
			result, err := h.Set(ctx, rule, SetOptions{})
			if !slices.Equal(result.Dropped, dropped) {
				t.Errorf("setting %+v dropped %+v, want %+v", rule, result.Dropped, dropped)
			}
			return err
		}
		steps := []func() error{
			func() error { return netlink.LinkAdd(device) },
			func() error { return set(old) },
			func() error { return netlink.LinkDel(device) },
			func() error { return netlink.LinkAdd(device) },
			// Somebody else's qdisc on the new device must stay.
			func() error { return netlink.QdiscAdd(clsact(device.Index)) },
			func() error {
				list, err := h.List()
				if len(list) != 1 || !strings.Contains(list[0].Problem, "recreated") {
					t.Errorf("after the device came back, shown is %+v", list)
				}
				return err
			},
			func() error { return set(rule, old) },
			func() error { return show(rule) },
			func() error { return set(old) },
			func() error { return show(rule, old) },
			func() error { _, err := h.Undo(ctx, ledger.AllClaims); return err },
			func() error {
				has, err := hasClsact(device.Index)
				if !has {
					t.Error("the qdisc of others has gone")
				}
				return err
			},
		}
		for i, step := range steps {
			if err := s.R.Do(step); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
		}
	})
}

func TestOtherNamespaces(t *testing.T) {
	h := testHost(t)
	s := newSite(t)
	ctx := context.Background()
	must(t, s.R.Do(func() error {
		_, err := h.Set(ctx, Rule{Device: "left", Action: Clamp, MSS: 1000}, SetOptions{})
		return err
	}))
	must(t, s.A.Do(func() error {
		if list, err := h.List(); err != nil || len(list) != 0 {
			t.Errorf("shown elsewhere is %+v, %v", list, err)
		}
		if undone, err := h.Undo(ctx, ledger.AllClaims); err != nil || len(undone) != 0 {
			t.Errorf("undone from elsewhere: %+v, %v", undone, err)
		}
		return nil
	}))
	must(t, s.R.Do(func() error { _, err := h.Undo(ctx, ledger.AllClaims); return err }))
	s.nothingAttached(t)
}

// TestOwners: of two owners' rules for the same data the last one is in force, and each
// takes back its own.
func TestOwners(t *testing.T) {
	eachHook(t, func(t *testing.T, h *Host, _ string) {
		s := newSite(t)
		ctx := context.Background()
		other := *h
		other.By.Owner = "other"
		set := func(h *Host, mss int) {
			t.Helper()
			must(t, s.R.Do(func() error {
				_, err := h.Set(ctx, Rule{Device: "left", Action: Clamp, MSS: mss}, SetOptions{})
				return err
			}))
		}
		undo := func(h *Host, now int, left int) {
			t.Helper()
			must(t, s.R.Do(func() error {
				undone, err := h.Undo(ctx, ledger.OwnClaims(h.By.Owner))
				if len(undone) != 1 || len(undone[0].Left) != left || now == 0 != (undone[0].Now == nil) || now != 0 && undone[0].Now.MSS != now {
					t.Errorf("%s has undone %+v, want %d", h.By.Owner, undone, now)
				}
				return err
			}))
		}
		inForce := func(want int) {
			t.Helper()
			if a, _ := s.segments(t, "10.9.2.2"); a != want-timestampBytes {
				t.Errorf("a sends %d, want %d", a, want-timestampBytes)
			}
		}
		set(h, 1000)
		set(&other, 1200)
		inForce(1200)
		undo(&other, 1000, 1)
		inForce(1000)
		set(&other, 1200)
		undo(h, 1200, 1)
		inForce(1200)
		undo(&other, 0, 0)
		s.nothingAttached(t)
	})
}

// TestCompleted: the next command completes a change that was interrupted between the
// record and the kernel.
func TestCompleted(t *testing.T) {
	h := testHost(t)
	s := newSite(t)
	ctx := context.Background()
	rule := Rule{Device: "left", Action: Clamp, MSS: 1000}
	later := rule
	later.MSS = 1200
	must(t, s.R.Do(func() error {
		if _, err := h.Set(ctx, rule, SetOptions{}); err != nil {
			return err
		}
		book, err := ledger.Open(h.Ledger, false)
		if err != nil {
			return err
		}
		e := book.Entries[0]
		e.Put(ledger.Claim{By: h.By, Value: value(&later), Text: later.actionText()})
		e.Pending = value(&rule)
		err = book.Save()
		book.Close()
		if err != nil {
			return err
		}
		_, err = h.Undo(ctx, ledger.OwnClaims("somebody"))
		return err
	}))
	if a, _ := s.segments(t, "10.9.2.2"); a != 1200-timestampBytes {
		t.Errorf("a sends %d", a)
	}
	// An undo that did not reach the kernel.
	must(t, s.R.Do(func() error {
		book, err := ledger.Open(h.Ledger, false)
		if err != nil {
			return err
		}
		book.Entries[0].Claims, book.Entries[0].Pending = nil, value(&later)
		err = book.Save()
		book.Close()
		if err != nil {
			return err
		}
		_, err = h.Undo(ctx, ledger.OwnClaims("somebody"))
		return err
	}))
	s.nothingAttached(t)
}

// TestUnrecorded: the owner of rules whose ledger was removed is unknown. An undo of
// everybody's rules takes them back.
func TestUnrecorded(t *testing.T) {
	h := testHost(t)
	s := newSite(t)
	ctx := context.Background()
	must(t, s.R.Do(func() error {
		if _, err := h.Set(ctx, Rule{Device: "left", Action: Clamp, MSS: 1000}, SetOptions{}); err != nil {
			return err
		}
		if err := os.RemoveAll(h.Ledger); err != nil {
			return err
		}
		undone, err := h.Undo(ctx, ledger.AllClaims)
		if len(undone) != 1 || undone[0].Taken[0].Owner != ledger.Unknown {
			t.Errorf("undone: %+v", undone)
		}
		return err
	}))
	s.nothingAttached(t)
}

// TestOthersFilters: a clsact qdisc that others made or use stays.
func TestOthersFilters(t *testing.T) {
	h := testHost(t)
	h.Clsact = true
	s := newSite(t)
	ctx := context.Background()
	must(t, s.R.Do(func() error {
		l, err := netlink.LinkByName("left")
		if err != nil {
			return err
		}
		index := l.Attrs().Index
		if err := netlink.QdiscAdd(clsact(index)); err != nil {
			return err
		}
		p := testProgram(t, ethernetHeader)
		other := &netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Protocol: unix.ETH_P_ALL},
			Fd:          p.program.FD(), Name: "somebody_else", DirectAction: true,
		}
		if err := netlink.FilterAdd(other); err != nil {
			return err
		}
		if _, err := h.Set(ctx, Rule{Device: "left", Action: Clamp, MSS: 1000}, SetOptions{}); err != nil {
			return err
		}
		if _, err := h.Undo(ctx, ledger.AllClaims); err != nil {
			return err
		}
		all, err := allFilters(index, directions[1])
		if err != nil || len(all) != 1 {
			t.Errorf("the filters are %v, %v", all, err)
		}
		if has, err := hasClsact(index); err != nil || !has {
			t.Errorf("the qdisc of others has gone: %v", err)
		}
		return nil
	}))
}

// TestConcurrently: several commands at once.
func TestConcurrently(t *testing.T) {
	h := testHost(t)
	s := newSite(t)
	ctx := context.Background()
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			err := s.R.Do(func() error {
				_, err := h.Set(ctx, Rule{Device: "left", Port: uint16(1 + i), Action: Clamp, MSS: 1000}, SetOptions{})
				if err == nil && i%2 == 1 {
					_, err = h.Undo(ctx, func(_ ledger.Key, c ledger.Claim) bool { return Rule{Port: uint16(1 + i)}.Selects(c) })
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	must(t, s.R.Do(func() error {
		list, err := h.List()
		if err != nil || len(list) != 4 {
			t.Errorf("shown is %+v, %v", list, err)
		}
		_, err = h.Undo(ctx, ledger.AllClaims)
		return err
	}))
}

// TestFastOpen: a SYN with data is changed, and its data stays.
func TestFastOpen(t *testing.T) {
	h := testHost(t)
	s := newSite(t)
	for _, x := range []*hosts.Host{s.A, s.B} {
		must(t, x.Sysctl("net.ipv4.tcp_fastopen", "1027")) // both roles, without a cookie
	}
	must(t, s.R.Do(func() error {
		_, err := h.Set(context.Background(), Rule{Device: "left", Action: Clamp, MSS: 1000}, SetOptions{})
		return err
	}))
	var l net.Listener
	must(t, s.B.Do(func() (err error) { l, err = net.Listen("tcp4", "10.9.2.2:0"); return err }))
	defer l.Close()
	to := l.Addr().(*net.TCPAddr).AddrPort()
	must(t, s.A.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, []byte("with the SYN"), unix.MSG_FASTOPEN, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	}))
	must(t, l.(*net.TCPListener).SetDeadline(time.Now().Add(patience)))
	c, err := l.Accept()
	must(t, err)
	defer c.Close()
	got, err := io.ReadAll(c)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) || string(got) != "with the SYN" {
		t.Errorf("received %q, %v", got, err)
	}
	if mss := maxSegment(t, c); mss != 1000-timestampBytes && mss != 1000 {
		t.Errorf("b sends %d", mss)
	}
	must(t, s.R.Do(func() error {
		list, err := h.List()
		if err == nil && (len(list) != 1 || list[0].Rewritten < 1) {
			err = fmt.Errorf("the rules are %+v", list)
		}
		_, clearErr := h.Undo(context.Background(), ledger.AllClaims)
		return errors.Join(err, clearErr)
	}))
}

// TestTagged puts connections into a VLAN over the device with the rule, whose
// tags lie beside the packet or in it as the device likes.
func TestTagged(t *testing.T) {
	h := testHost(t)
	s := newSite(t)
	ctx := context.Background()
	for _, end := range []struct {
		host           *hosts.Host
		device, prefix string
	}{{s.A, "eth0", "10.9.7.2/24"}, {s.R, "left", "10.9.7.1/24"}} {
		err := end.host.Do(func() error {
			lower, err := netlink.LinkByName(end.device)
			if err != nil {
				return err
			}
			vlan := &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "vlan7", ParentIndex: lower.Attrs().Index}, VlanId: 7}
			if err := netlink.LinkAdd(vlan); err != nil {
				return err
			}
			return netlink.LinkSetUp(vlan)
		})
		if errors.Is(err, unix.EOPNOTSUPP) {
			t.Skip("needs VLAN devices (kernel module 8021q)")
		}
		must(t, err)
		must(t, end.host.Address("vlan7", netip.MustParsePrefix(end.prefix)))
	}
	must(t, s.A.Route(hosts.Route{To: prefix("10.9.2.0/24"), Via: netip.MustParseAddr("10.9.7.1")}))
	must(t, s.R.Do(func() error {
		_, err := h.Set(ctx, Rule{Device: "left", Action: Clamp, MSS: 1000}, SetOptions{})
		return err
	}))
	if a, b := s.segments(t, "10.9.2.2"); a != 1000-timestampBytes || b != 1000-timestampBytes {
		t.Errorf("a sends %d, b sends %d", a, b)
	}
	must(t, s.R.Do(func() error {
		list, err := h.List()
		if err == nil && (len(list) != 1 || list[0].Rewritten < 2) {
			err = fmt.Errorf("the rules are %+v", list)
		}
		_, clearErr := h.Undo(ctx, ledger.AllClaims)
		return errors.Join(err, clearErr)
	}))
}
