package route

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/ledger"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// patience is how long a test waits for what must come.
const patience = time.Minute

// lan gives the sandbox's namespace a network: two devices, and routes of
// several kinds. Every test makes it anew.
func lan(t *testing.T) *Table {
	t.Helper()
	nettest.RequireSandbox(t)
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lan0"}, PeerName: "lan1"}
	must(t, netlink.LinkAdd(veth))
	t.Cleanup(func() { must(t, netlink.LinkDel(veth)) })
	for _, name := range []string{"lan0", "lan1"} {
		l, err := netlink.LinkByName(name)
		must(t, err)
		// Without duplicate address detection the address counts at once.
		must(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/accept_dad", []byte("0"), 0))
		// The link-local address would come, with a route, at any time.
		must(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/addr_gen_mode", []byte("1"), 0))
		must(t, netlink.LinkSetUp(l))
	}
	for _, address := range []string{"10.77.0.1/24", "fd77::1/64"} {
		a, err := netlink.ParseAddr(address)
		must(t, err)
		a.Flags = unix.IFA_F_NODAD
		must(t, netlink.AddrAdd(veth, a))
		nettest.Eventually(t, patience, func() bool {
			own, err := lookup(netip.MustParsePrefix(address).Addr())
			return err == nil && own.header.Type == unix.RTN_LOCAL
		}, func() string { return address + " is not this host's" })
	}
	via := func(gateway string) []*netlink.NexthopInfo {
		return []*netlink.NexthopInfo{
			{LinkIndex: veth.Index, Gw: net.ParseIP(gateway)},
			{LinkIndex: veth.Index, Gw: net.ParseIP(gateway + "1"), Hops: 2},
		}
	}
	for _, r := range []netlink.Route{
		{Dst: ipNet("0.0.0.0/0"), Gw: net.ParseIP("10.77.0.2"), Priority: 100},
		{Dst: ipNet("0.0.0.0/0"), Gw: net.ParseIP("10.77.0.3"), Priority: 200},
		{Dst: ipNet("198.51.100.0/24"), Gw: net.ParseIP("10.77.0.2"), MTU: 1400, MTULock: true, AdvMSS: 1300, InitCwnd: 33, Protocol: 42, Src: net.ParseIP("10.77.0.1")},
		{Dst: ipNet("198.51.101.0/24"), MultiPath: via("10.77.0.2")},
		{Dst: ipNet("192.0.2.0/24"), Gw: net.ParseIP("10.77.0.2"), Congctl: "cubic"},
		{Dst: ipNet("fd99::/16"), Gw: net.ParseIP("fd77::2"), MTU: 1400, Priority: 7},
		{Dst: ipNet("fd98::/16"), MultiPath: via("fd77::2")},
	} {
		if r.MultiPath == nil {
			r.LinkIndex = veth.Index
		}
		if err := netlink.RouteAdd(&r); err != nil {
			t.Fatalf("add %v: %v", r.Dst, err)
		}
	}
	return &Table{Ledger: t.TempDir(), By: ledger.By{Owner: "tester", Means: ledger.Command}}
}

var must = nettest.Must

// use sets and locks an algorithm.
func (t *Table) use(prefix netip.Prefix, algorithm string) (Result, error) {
	return t.Set(Change{Prefix: prefix, Metrics: map[Metric]Value{CongestionControl: {Name: algorithm, Locked: true}}})
}

var errNothing = errors.New("nothing to undo")

// undo takes back the table's own claims on metrics of a prefix, on all if none is named.
func (t *Table) undo(prefix netip.Prefix, names ...Metric) (Undone, error) {
	book, err := ledger.Open(t.Ledger, t.DryRun)
	if err != nil {
		return Undone{}, err
	}
	defer book.Close()
	undone, err := t.UndoIn(book, func(k ledger.Key, c ledger.Claim) bool {
		return k.Name == prefix.String() && c.Same(t.By) && (len(names) == 0 || slices.Contains(names, Metric(k.Part)))
	})
	if err != nil || len(undone) == 0 {
		return Undone{}, errors.Join(err, errNothing)
	}
	return undone[0], nil
}

func ipNet(s string) *net.IPNet {
	p := netip.MustParsePrefix(s)
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// routes are all routes of both families as the kernel tells them, less what
// it counts.
func routes(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		list, err := dump(family)
		must(t, err)
		for _, m := range list {
			m = m.clone()
			m.set(unix.RTA_CACHEINFO, nil)
			all = append(all, string(m.Serialize()))
		}
	}
	slices.Sort(all)
	return all
}

// find is the route to a prefix with the least metric.
func find(t *testing.T, prefix string) (found message, ok bool) {
	t.Helper()
	p := netip.MustParsePrefix(prefix)
	list, err := dump(familyOf(p))
	must(t, err)
	for _, m := range list {
		if dst, _ := m.destination(); dst == p && (!ok || m.priority() < found.priority()) {
			found, ok = m, true
		}
	}
	return found, ok
}

func TestUseAndUndo(t *testing.T) {
	for _, test := range []struct {
		prefix string
		made   bool
	}{
		{"0.0.0.0/0", false},
		{"198.51.100.0/24", false},
		{"198.51.101.0/24", false}, // two next hops
		{"192.0.2.0/24", false},    // has another algorithm already
		{"10.77.0.0/24", false},    // on the link
		{"198.51.100.64/26", true}, // within a route with metrics
		{"198.51.101.7/32", true},  // within two next hops
		{"203.0.113.0/24", true},   // by the default route
		{"fd99::/16", false},
		{"fd98::/16", false},
		{"fd77::/64", false},
		{"fd99:1::/32", true},
		{"fd98:1::1/128", true},
	} {
		t.Run(strings.ReplaceAll(test.prefix, "/", "-"), func(t *testing.T) {
			table := lan(t)
			before := routes(t)
			prefix := netip.MustParsePrefix(test.prefix)
			old, _ := find(t, test.prefix)

			result, err := table.use(prefix, "reno")
			must(t, err)
			if result.Made != test.made || !result.Changed || !result.Effective {
				t.Errorf("made %v, changed %v, effective %v", result.Made, result.Changed, result.Effective)
			}
			m, ok := find(t, test.prefix)
			if name, locked := m.congctl(); !ok || name != "reno" || !locked {
				t.Fatalf("the route has %q, locked %v", name, locked)
			}
			if !test.made {
				// Nothing else has changed.
				name, locked := old.congctl()
				must(t, m.setCongctl(name, locked))
				m.set(unix.RTA_CACHEINFO, nil)
				old.set(unix.RTA_CACHEINFO, nil)
				if !sameAttributes(m, old) {
					t.Errorf("the route changed beyond its algorithm:\n%+v\n%+v", old, m)
				}
			}
			// A second time changes nothing, a second algorithm is undone with the first.
			if result, err = table.use(prefix, "reno"); err != nil || result.Changed {
				t.Errorf("again: changed %v, %v", result.Changed, err)
			}
			if result, err = table.use(prefix, "cubic"); err != nil || !result.Changed {
				t.Errorf("another: changed %v, %v", result.Changed, err)
			}
			settings, err := table.Settings()
			must(t, err)
			if len(settings) != 1 {
				t.Fatalf("settings: %+v", settings)
			}
			if use, ok := settings[0].Use(); !ok || use.Algorithm != "cubic" || use.Prefix != prefix || !slices.Equal(use.Owners, []string{"tester"}) {
				t.Errorf("use: %+v", use)
			}
			if _, err := table.undo(prefix, CongestionControl); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, routes(t)); diff != "" {
				t.Errorf("not as before:\n%s", diff)
			}
			if left, _ := filepath.Glob(table.Ledger + "/*"); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			if _, err := table.undo(prefix, CongestionControl); !errors.Is(err, errNothing) {
				t.Errorf("a second undo: %v", err)
			}
		})
	}
}

// sameAttributes compares but for the order.
func sameAttributes(a, b message) bool {
	order := func(x, y attribute) int { return int(x.kind) - int(y.kind) }
	sorted := func(m message) message {
		slices.SortFunc(m.attributes, order)
		metrics, err := parseAttributes(m.get(unix.RTA_METRICS))
		if err != nil {
			return m
		}
		slices.SortFunc(metrics, order)
		if len(metrics) > 0 {
			m.set(unix.RTA_METRICS, appendAttributes(nil, metrics))
		}
		return m
	}
	a, b = sorted(a.clone()), sorted(b.clone())
	return string(a.Serialize()) == string(b.Serialize())
}

// TestSockets holds that connections get what the route says, and nothing else.
func TestSockets(t *testing.T) {
	table := lan(t)
	for _, test := range []struct{ prefix, server string }{
		{"10.77.0.1/32", "10.77.0.1:0"},
		{"fd77::1/128", "[fd77::1]:0"},
	} {
		// Routes to the host itself are in the table "local", and come first.
		prefix := netip.MustParsePrefix(test.prefix)
		if result, err := table.use(prefix, "reno"); err != nil || result.Effective {
			t.Errorf("%s is this host's own, and said to be effective: %+v, %v", prefix, result, err)
		}
		if _, err := table.undo(prefix, CongestionControl); err != nil {
			t.Error(err)
		}
	}
	// Another namespace is the other end.
	far := otherNamespace(t)
	for _, test := range []struct{ prefix, server string }{
		{"10.77.0.0/24", "10.77.0.9:0"},
		{"10.77.0.9/32", "10.77.0.9:0"},
		{"fd77::/64", "[fd77::9]:0"},
		{"fd77::9/128", "[fd77::9]:0"},
	} {
		listener := far.listen(t, test.server)
		if got := congestionTowards(t, listener.Addr().String(), ""); got == "reno" {
			t.Fatalf("the default is reno: the test shows nothing")
		}
		if _, err := table.use(netip.MustParsePrefix(test.prefix), "reno"); err != nil {
			t.Fatal(err)
		}
		if got := congestionTowards(t, listener.Addr().String(), ""); got != "reno" {
			t.Errorf("a socket to %s has %s", test.prefix, got)
		}
		if got := congestionTowards(t, listener.Addr().String(), "cubic"); got != "EPERM" {
			t.Errorf("a socket to %s could choose: %s", test.prefix, got)
		}
		if _, err := table.undo(netip.MustParsePrefix(test.prefix), CongestionControl); err != nil {
			t.Fatal(err)
		}
		if got := congestionTowards(t, listener.Addr().String(), ""); got == "reno" {
			t.Errorf("a socket to %s has %s after the undo", test.prefix, got)
		}
		listener.Close()
	}
}

// congestionTowards connects and tells the algorithm, after asking for another
// one if that is named.
func congestionTowards(t *testing.T, address, ask string) (name string) {
	t.Helper()
	var d net.Dialer
	d.SetMultipathTCP(false)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := d.DialContext(ctx, "tcp", address)
	must(t, err)
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) {
		if ask != "" {
			if errors.Is(unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, ask), unix.EPERM) {
				name = "EPERM"
				return
			}
		}
		name, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	}))
	must(t, err)
	return name
}

// congctl is the algorithm of a route.
func (m message) congctl() (name string, locked bool) {
	v := m.metric(CongestionControl)
	return v.Name, v.Locked
}

func (m *message) setCongctl(name string, locked bool) error {
	return m.setMetric(CongestionControl, Value{Name: name, Locked: locked})
}

// namespace is another network namespace, entered by a thread that dies with it.
type namespace struct{ run chan func() }

func otherNamespace(t *testing.T) namespace {
	t.Helper()
	n := namespace{make(chan func())}
	ready := make(chan int)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread is spoilt
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			close(ready)
			return
		}
		ready <- unix.Gettid()
		for f := range n.run {
			f()
		}
	}()
	tid, ok := <-ready
	if !ok {
		t.Fatal("cannot make a network namespace")
	}
	t.Cleanup(func() { close(n.run) })
	peer, err := netlink.LinkByName("lan1")
	must(t, err)
	must(t, netlink.LinkSetNsPid(peer, tid))
	// The namespace would delete the devices some time after its thread has ended,
	// while the test deletes them as well.
	t.Cleanup(func() { n.do(func() { must(t, netlink.LinkSetNsPid(peer, os.Getpid())) }) })
	n.do(func() {
		for _, address := range []string{"10.77.0.9/24", "fd77::9/64"} {
			a, err := netlink.ParseAddr(address)
			must(t, err)
			a.Flags = unix.IFA_F_NODAD
			must(t, netlink.AddrAdd(peer, a))
		}
		must(t, netlink.LinkSetUp(peer))
	})
	return n
}

func (n namespace) do(f func()) {
	done := make(chan struct{})
	n.run <- func() { defer close(done); f() }
	<-done
}

func (n namespace) listen(t *testing.T, address string) (l net.Listener) {
	t.Helper()
	var err error
	n.do(func() {
		var lc net.ListenConfig
		lc.SetMultipathTCP(false)
		l, err = lc.Listen(context.Background(), "tcp", address)
	})
	must(t, err)
	return l
}

func TestRefusals(t *testing.T) {
	table := lan(t)
	veth, err := netlink.LinkByName("lan0")
	must(t, err)
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: veth.Attrs().Index, Dst: ipNet("fd50::/16"), Gw: net.ParseIP("fd77::2"), Protocol: unix.RTPROT_RA}))
	before := routes(t)
	for _, test := range []struct {
		prefix    netip.Prefix
		algorithm string
		want      string
		is        error
	}{
		{netip.Prefix{}, "reno", "missing prefix", nil},
		{netip.MustParsePrefix("10.1.2.3/8"), "reno", "bits set after its first 8", nil},
		{netip.MustParsePrefix("::ffff:10.0.0.0/120"), "reno", "is in IPv4-mapped form", nil},
		{netip.MustParsePrefix("2001:db8::/32"), "reno", "no route to 2001:db8::/32 in the main table", ErrNoRoute},
		{netip.MustParsePrefix("fd50::/16"), "reno", "fd50::/16: the route comes from router advertisements", ErrExpires},
		{netip.MustParsePrefix("203.0.113.0/24"), "nonesuch", "set the route to 203.0.113.0/24", unix.EINVAL},
	} {
		_, err := table.use(test.prefix, test.algorithm)
		if err == nil || !strings.Contains(err.Error(), test.want) || test.is != nil && !errors.Is(err, test.is) {
			t.Errorf("%s: %v, want %q", test.prefix, err, test.want)
		}
	}
	if diff := cmp.Diff(before, routes(t)); diff != "" {
		t.Errorf("a refusal changed routes:\n%s", diff)
	}
	// Within a route that expires one can be made that does not.
	result, err := table.use(netip.MustParsePrefix("fd50:1::/32"), "reno")
	if err != nil || !result.Made {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestElsewhere(t *testing.T) {
	table := lan(t)
	result, err := table.use(netip.MustParsePrefix("198.51.100.0/23"), "reno")
	must(t, err)
	want := []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("198.51.101.0/24")}
	if !slices.Equal(result.Elsewhere, want) {
		t.Errorf("elsewhere: %v", result.Elsewhere)
	}
}

// TestOthersChange holds that an undo respects what others did meanwhile.
func TestOthersChange(t *testing.T) {
	table := lan(t)
	veth, err := netlink.LinkByName("lan0")
	must(t, err)
	replace := func(r netlink.Route) {
		t.Helper()
		r.LinkIndex = veth.Attrs().Index
		must(t, netlink.RouteReplace(&r))
	}
	use := func(prefix string) {
		t.Helper()
		_, err := table.use(netip.MustParsePrefix(prefix), "reno")
		must(t, err)
	}
	undo := func(prefix string) {
		t.Helper()
		_, err := table.undo(netip.MustParsePrefix(prefix), CongestionControl)
		must(t, err)
	}

	// A new gateway stays.
	use("198.51.100.0/24")
	replace(netlink.Route{Dst: ipNet("198.51.100.0/24"), Gw: net.ParseIP("10.77.0.5"), Congctl: "reno", MTU: 1234})
	undo("198.51.100.0/24")
	m, _ := find(t, "198.51.100.0/24")
	if name, _ := m.congctl(); name != "" || !slices.Equal(m.get(unix.RTA_GATEWAY), []byte{10, 77, 0, 5}) {
		t.Errorf("after a new gateway: %q, %v", name, m.get(unix.RTA_GATEWAY))
	}
	// So does another algorithm.
	use("192.0.2.0/24")
	replace(netlink.Route{Dst: ipNet("192.0.2.0/24"), Gw: net.ParseIP("10.77.0.2"), Congctl: "bbr"})
	undo("192.0.2.0/24")
	m, _ = find(t, "192.0.2.0/24")
	if name, _ := m.congctl(); name != "bbr" {
		t.Errorf("somebody else's algorithm was replaced by %q", name)
	}
	// A route of ours that is gone stays away.
	use("203.0.113.0/24")
	must(t, netlink.RouteDel(&netlink.Route{Dst: ipNet("203.0.113.0/24"), LinkIndex: veth.Attrs().Index}))
	undo("203.0.113.0/24")
	if _, ok := find(t, "203.0.113.0/24"); ok {
		t.Error("the route came back")
	}
	// One of somebody else in its place is not removed.
	use("203.0.113.0/24")
	must(t, netlink.RouteDel(&netlink.Route{Dst: ipNet("203.0.113.0/24"), LinkIndex: veth.Attrs().Index}))
	replace(netlink.Route{Dst: ipNet("203.0.113.0/24"), Gw: net.ParseIP("10.77.0.6")})
	undo("203.0.113.0/24")
	if _, ok := find(t, "203.0.113.0/24"); !ok {
		t.Error("somebody else's route was removed")
	}
}

// TestInterrupted holds that the next command completes a change that was interrupted
// between the record and the kernel, and that a route without its record can be undone.
func TestInterrupted(t *testing.T) {
	table := lan(t)
	before := routes(t)
	netns, err := ledger.Here()
	must(t, err)
	reno, cubic := Value{Name: "reno", Locked: true}, Value{Name: "cubic"}
	claim := ledger.Claim{By: table.By, Value: ledger.Encode(reno)}
	entry := func(prefix string, detail routeDetail, former, pending Value, claims ...ledger.Claim) *ledger.Entry {
		return &ledger.Entry{
			Key: key(netns, netip.MustParsePrefix(prefix), CongestionControl), Detail: ledger.Encode(detail),
			Former: ledger.Encode(former), Pending: ledger.Encode(pending), Claims: claims,
		}
	}
	write := func(entries ...*ledger.Entry) {
		t.Helper()
		book, err := ledger.Open(table.Ledger, false)
		must(t, err)
		defer book.Close()
		book.Entries = entries
		must(t, book.Save())
	}
	write(
		entry("203.0.113.0/24", routeDetail{Made: true}, Value{}, Value{}, claim), // to be made
		entry("198.51.100.0/24", routeDetail{}, Value{}, Value{}, claim),          // to be set
		entry("192.0.2.0/24", routeDetail{}, cubic, reno),                         // undone already
	)
	// Any change in the namespace completes them.
	_, err = table.use(netip.MustParsePrefix("198.51.101.0/24"), "reno")
	must(t, err)
	if m, _ := find(t, "198.51.100.0/24"); m.metric(CongestionControl) != reno {
		t.Errorf("the set was not completed: %+v", m.metric(CongestionControl))
	}
	for _, prefix := range []string{"198.51.100.0/24", "198.51.101.0/24"} {
		_, err := table.undo(netip.MustParsePrefix(prefix))
		must(t, err)
	}
	for _, prefix := range []string{"203.0.113.0/24", "192.0.2.0/24"} {
		if u, err := table.undo(netip.MustParsePrefix(prefix)); !errors.Is(err, errNothing) {
			t.Errorf("%s is still recorded: %+v, %v", prefix, u, err)
		}
	}
	if diff := cmp.Diff(before, routes(t)); diff != "" {
		t.Errorf("not as before:\n%s", diff)
	}
	// An undo that did not reach the kernel.
	_, err = table.use(netip.MustParsePrefix("198.51.100.0/24"), "reno")
	must(t, err)
	write(entry("198.51.100.0/24", routeDetail{}, Value{}, reno))
	if _, err := table.undo(netip.MustParsePrefix("198.51.100.0/24")); !errors.Is(err, errNothing) {
		t.Errorf("undo after an interrupted undo: %v", err)
	}
	if diff := cmp.Diff(before, routes(t)); diff != "" {
		t.Errorf("not as before:\n%s", diff)
	}

	_, err = table.use(netip.MustParsePrefix("203.0.113.0/24"), "reno")
	must(t, err)
	other := &Table{Ledger: t.TempDir(), By: table.By} // the record is lost
	if result, err := other.use(netip.MustParsePrefix("203.0.113.0/24"), "reno"); err != nil || !result.Made || result.Changed {
		t.Errorf("%+v, %v", result, err)
	}
	_, err = other.undo(netip.MustParsePrefix("203.0.113.0/24"), CongestionControl)
	must(t, err)
	if diff := cmp.Diff(before, routes(t)); diff != "" {
		t.Errorf("not as before:\n%s", diff)
	}
}

func TestConcurrently(t *testing.T) {
	table := lan(t)
	before := routes(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), 32)
			for range 20 {
				if _, err := table.use(prefix, "reno"); err != nil {
					t.Error(err)
				}
				if _, err := table.undo(prefix, CongestionControl); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if diff := cmp.Diff(before, routes(t)); diff != "" {
		t.Errorf("not as before:\n%s", diff)
	}
}

func FuzzMessage(f *testing.F) {
	m := message{header: unix.RtMsg{Family: unix.AF_INET, Dst_len: 24, Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST}}
	m.setDestination(netip.MustParsePrefix("192.0.2.0/24"))
	m.set(unix.RTA_MULTIPATH, make([]byte, unix.SizeofRtNexthop))
	if err := m.setCongctl("reno", true); err != nil {
		f.Fatal(err)
	}
	f.Add(m.Serialize())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMessage(b)
		if err != nil {
			return
		}
		m.destination()
		m.expires()
		again, err := parseMessage(m.Serialize())
		if err != nil || !sameAttributes(m, again) {
			t.Fatalf("a message does not survive: %v\n%+v\n%+v", err, m, again)
		}
		m.forKernel()
		if err := m.setCongctl("reno", true); err != nil {
			return
		}
		if name, locked := m.congctl(); name != "reno" || !locked {
			t.Fatalf("%q, locked %v, in %+v", name, locked, m)
		}
		must(t, m.setCongctl("", false))
		if name, locked := m.congctl(); name != "" || locked {
			t.Fatalf("%q, locked %v, in %+v", name, locked, m)
		}
	})
}
