package route

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var everyMetric = map[Metric]Value{
	MTU: {Number: 1400, Locked: true}, AdvMSS: {Number: 1460}, CongestionControl: {Name: "reno"},
	InitCwnd: {Number: 40}, InitRwnd: {Number: 50}, Window: {Number: 100_000}, QuickACK: {Number: 1},
	RTOMin: {Number: 300, Locked: true},
}

// TestEveryMetric: each is set with the others, seen in the kernel's own words,
// and undone, on routes that have some already and on those that are made.
func TestEveryMetric(t *testing.T) {
	for _, prefix := range []string{"0.0.0.0/0", "198.51.100.0/24", "192.0.2.0/24", "198.51.100.7/32", "203.0.113.0/24", "fd99::/16", "fd99:1::/32"} {
		t.Run(strings.ReplaceAll(prefix, "/", "-"), func(t *testing.T) {
			table := lan(t)
			before := routes(t)
			p := netip.MustParsePrefix(prefix)
			result, err := table.Set(Change{Prefix: p, Metrics: everyMetric})
			must(t, err)
			if !result.Changed || !result.Effective {
				t.Errorf("changed %v, effective %v", result.Changed, result.Effective)
			}
			m, _ := find(t, prefix)
			for name, want := range everyMetric {
				if got := m.metric(name); got != want {
					t.Errorf("%s is %+v, want %+v", name, got, want)
				}
			}
			if result, err = table.Set(Change{Prefix: p, Metrics: everyMetric}); err != nil || result.Changed {
				t.Errorf("the same again: %+v, %v", result, err)
			}
			_, err = table.Set(Change{Prefix: p, Metrics: map[Metric]Value{AdvMSS: {Number: 1300}}})
			must(t, err)
			m, _ = find(t, prefix)
			if got := m.metric(InitCwnd); m.metric(AdvMSS).Number != 1300 || got.Number != 40 {
				t.Errorf("after another advmss: %+v, initcwnd %+v", m.metric(AdvMSS), got)
			}
			settings, err := table.Settings()
			if err != nil || len(settings) != 1 || len(settings[0].Metrics) != len(everyMetric) {
				t.Errorf("settings: %+v, %v", settings, err)
			}
			// cc undo takes its own away, and the rest stays.
			_, err = table.undo(p, CongestionControl)
			must(t, err)
			m, _ = find(t, prefix)
			if m.metric(CongestionControl).Name == "reno" || m.metric(AdvMSS).Number != 1300 {
				t.Errorf("after undoing congctl: %+v, %+v", m.metric(CongestionControl), m.metric(AdvMSS))
			}
			_, err = table.undo(p)
			must(t, err)
			if diff := cmp.Diff(before, routes(t)); diff != "" {
				t.Errorf("not as before:\n%s", diff)
			}
		})
	}
}

// TestQuickACKOff: a metric can be taken away, and comes back.
func TestQuickACKOff(t *testing.T) {
	table := lan(t)
	veth, err := netlink.LinkByName("lan0")
	must(t, err)
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: veth.Attrs().Index, Dst: ipNet("198.18.0.0/15"), Gw: net.ParseIP("10.77.0.2"), QuickACK: 1}))
	before := routes(t)
	p := netip.MustParsePrefix("198.18.0.0/15")
	_, err = table.Set(Change{Prefix: p, Metrics: map[Metric]Value{QuickACK: {}}})
	must(t, err)
	if m, _ := find(t, "198.18.0.0/15"); m.metric(QuickACK).Number != 0 {
		t.Errorf("quickack is %+v", m.metric(QuickACK))
	}
	_, err = table.undo(p)
	must(t, err)
	if diff := cmp.Diff(before, routes(t)); diff != "" {
		t.Errorf("not as before:\n%s", diff)
	}
}

// TestNextHop: a route is made over the one that is given.
func TestNextHop(t *testing.T) {
	table := lan(t)
	before := routes(t)
	small := map[Metric]Value{MTU: {Number: 1400}}
	for _, c := range []Change{
		{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Via: netip.MustParseAddr("10.77.0.7"), Metrics: small},
		{Prefix: netip.MustParsePrefix("203.0.114.0/24"), Device: "lan0", Metrics: small},
		{Prefix: netip.MustParsePrefix("2001:db8::/32"), Via: netip.MustParseAddr("fd77::7"), Device: "lan0", Metrics: small},
		{Prefix: netip.MustParsePrefix("2001:db9::/32"), Device: "lan0", Metrics: small},
	} {
		result, err := table.Set(c)
		if err != nil || !result.Made || !result.Effective {
			t.Errorf("%s: %+v, %v", c.Prefix, result, err)
			continue
		}
		m, _ := find(t, c.Prefix.String())
		if c.Via.IsValid() && string(m.get(unix.RTA_GATEWAY)) != string(c.Via.AsSlice()) {
			t.Errorf("%s goes via %v", c.Prefix, m.get(unix.RTA_GATEWAY))
		}
		_, err = table.undo(c.Prefix)
		must(t, err)
	}
	_, err := table.Set(Change{Prefix: netip.MustParsePrefix("198.51.100.0/24"), Via: netip.MustParseAddr("10.77.0.9"), Metrics: small})
	if !errors.Is(err, ErrOtherHop) {
		t.Errorf("another next hop: %v", err)
	}
	if _, err := table.Set(Change{Prefix: netip.MustParsePrefix("198.51.100.0/24"), Via: netip.MustParseAddr("10.77.0.2"), Metrics: small}); err != nil {
		t.Errorf("the same next hop: %v", err)
	}
	_, err = table.undo(netip.MustParsePrefix("198.51.100.0/24"))
	must(t, err)
	if diff := cmp.Diff(before, routes(t)); diff != "" {
		t.Errorf("not as before:\n%s", diff)
	}
}

func TestBadValues(t *testing.T) {
	table := lan(t)
	before := routes(t)
	number := func(m Metric, n uint32) map[Metric]Value { return map[Metric]Value{m: {Number: n}} }
	for _, tt := range []struct {
		change Change
		want   string
	}{
		{Change{Prefix: netip.MustParsePrefix("203.0.113.0/24")}, "missing metric"},
		{Change{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Metrics: number(AdvMSS, 87)}, "advmss is 87, and must be from 88 to 65495"},
		{Change{Prefix: netip.MustParsePrefix("fd99::/16"), Metrics: number(AdvMSS, 1219)}, "must be from 1220"},
		{Change{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Metrics: number(MTU, 67)}, "must be from 68"},
		{Change{Prefix: netip.MustParsePrefix("fd99::/16"), Metrics: number(MTU, 1279)}, "must be from 1280"},
		{Change{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Metrics: number(MTU, 1501)}, "mtu is 1501, and lan0 carries 1500"},
		{Change{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Metrics: number(InitCwnd, 0)}, "initcwnd is 0"},
		{Change{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Metrics: number(RTOMin, 120_001)}, "must be from 1ms to 2m0s"},
		{Change{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Metrics: number("hoplimit", 3)}, "no metric"},
		{Change{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Metrics: number(CongestionControl, 3)},
			"missing name"},
		{Change{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Device: "nowhere0", Metrics: number(MTU, 1400)}, "no such device: nowhere0"},
		{Change{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Via: netip.MustParseAddr("fd77::2"), Metrics: number(MTU, 1400)}, "different IP versions"},
		{Change{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Via: netip.MustParseAddr("172.16.9.9"),
			Metrics: number(MTU, 1400)}, "set the route"},
	} {
		if _, err := table.Set(tt.change); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.change, err, tt.want)
		}
	}
	if diff := cmp.Diff(before, routes(t)); diff != "" {
		t.Errorf("a refusal changed routes:\n%s", diff)
	}
}

// TestAdvMSSOfSockets: a raised advmss is what the peer may send.
func TestAdvMSSOfSockets(t *testing.T) {
	table := lan(t)
	far := otherNamespace(t)
	veth, err := netlink.LinkByName("lan0")
	must(t, err)
	must(t, netlink.LinkSetMTU(veth, 500))
	listener := far.listen(t, "10.77.0.9:0")
	defer listener.Close()
	segment := func() (mss int) {
		c, err := net.Dial("tcp4", listener.Addr().String())
		must(t, err)
		defer c.Close()
		peer, err := listener.Accept()
		must(t, err)
		defer peer.Close()
		raw, err := peer.(*net.TCPConn).SyscallConn()
		must(t, err)
		must(t, raw.Control(func(fd uintptr) { mss, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG) }))
		must(t, err)
		return mss
	}
	if got := segment(); got > 460 {
		t.Fatalf("the peer may send %d before", got)
	}
	_, err = table.Set(Change{Prefix: netip.MustParsePrefix("10.77.0.9/32"), Metrics: map[Metric]Value{AdvMSS: {Number: 1460}}})
	must(t, err)
	if got := segment(); got != 1448 {
		t.Errorf("the peer may send %d", got)
	}
	_, err = table.undo(netip.MustParsePrefix("10.77.0.9/32"))
	must(t, err)
	if got := segment(); got > 460 {
		t.Errorf("the peer may send %d after", got)
	}
}
