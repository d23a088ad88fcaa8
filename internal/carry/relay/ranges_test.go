package relay

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/hops"
	"longhaul/test/nettest"
)

// TestCarrierGetsTheOffset holds that a carrier gets the place of the port in the near tunnel's range, at
// each of its addresses.
func TestCarrierGetsTheOffset(t *testing.T) {
	nettest.CheckLeaks(t)
	base, _ := listenInARow(t)
	_, carrier := newNearRig(t, func(o *rigOptions) {
		o.Tunnels[0].Listen = nil
		for _, addr := range []string{"127.0.0.2", "127.0.0.3"} {
			for _, i := range []uint16{2, 0, 1} { // in any order
				o.Tunnels[0].Listen = append(o.Tunnels[0].Listen, netip.AddrPortFrom(netip.MustParseAddr(addr), base+i))
			}
		}
	})
	for _, addr := range []string{"127.0.0.2", "127.0.0.3"} {
		for offset := range uint16(3) {
			dial(t, netip.AddrPortFrom(netip.MustParseAddr(addr), base+offset))
			f := carrier.next(t)
			if f.client.Offset != offset {
				t.Errorf("%s:%d is at offset %d, want %d", addr, base+offset, f.client.Offset, offset)
			}
			f.end(report.End{Reason: report.EndClean})
		}
	}
}

// TestFarRange holds that a far tunnel leads each flow to the port of its offset, also after a reload and
// while it drains no more, and refuses one beyond its range in words that name both.
func TestFarRange(t *testing.T) {
	nettest.CheckLeaks(t)
	base, targets := listenInARow(t)
	var tunnels []Tunnel
	g := newRig(t, func(o *rigOptions) {
		farTunnel(o)
		o.Tunnels[0].Forward[0].Port, o.Tunnels[0].Forward[0].Ports = base, 2
		tunnels = o.Tunnels
	})
	expectTarget := func(offset uint16) *carriedFlow {
		t.Helper()
		o := atNear
		o.Offset = offset
		got, f, err := g.open(o)
		nettest.Must(t, err)
		g.target = targets[offset]
		g.accept()
		if got.To != addrOf(targets[offset]) {
			t.Errorf("offset %d leads to %v", offset, got.To)
		}
		return f
	}
	expectRefused := func(offset uint16, words string) {
		t.Helper()
		denied, before := g.relay.Snapshot().Tunnels[0].Denied, len(g.flows.all())
		o := atNear
		o.Offset = offset
		_, _, err := g.open(o)
		if reason := refusal(t, err); reason != report.EndDenied || !strings.Contains(err.Error(), words) {
			t.Errorf("offset %d is refused by %v, want %q", offset, err, words)
		}
		// A flow before may end meanwhile, and records come at the end of a turn of the loop.
		nettest.Eventually(t, patience, func() bool {
			return slices.ContainsFunc(g.flows.all()[before:], func(r report.Record) bool {
				return r.Reason == report.EndDenied && r.Client.AddrPort == atNear.Client
			})
		}, func() string { return fmt.Sprintf("no record of the refusal is among %+v", g.flows.all()[before:]) })
		if now := g.relay.Snapshot().Tunnels[0].Denied; now != denied+1 {
			t.Errorf("%d flows are denied, want %d", now, denied+1)
		}
	}
	stays := expectTarget(1)
	expectTarget(0).end(report.End{Reason: report.EndClean})
	const number = "the port is number 3 in the near relay's range, and forward of tunnel t, "
	expectRefused(2, number+tunnels[0].Forward[0].String()+", has 2 ports; make the ranges equally long")
	expectRefused(65535, "number 65536 in the near relay's range")

	reload := func(ports int) {
		t.Helper()
		tunnels[0].Forward = []hops.Target{tunnels[0].Forward[0]}
		tunnels[0].Forward[0].Ports = ports
		nettest.Must(t, setTunnels(g.relay, tunnels))
	}
	reload(3)
	expectTarget(2).end(report.End{Reason: report.EndClean})
	reload(1)
	expectRefused(1, "has 1 port;")
	expectTarget(0).end(report.End{Reason: report.EndClean})
	if s := g.relay.Snapshot(); len(s.Flows) != 1 || s.Flows[0].Target != addrOf(targets[1]) {
		t.Errorf("the flow of before has become %+v", s.Flows)
	}
	stays.end(report.End{Reason: report.EndClean})
}

// TestFarRangeHasHops holds that a flow goes to the same offset of the next hop if the first one refuses.
func TestFarRangeHasHops(t *testing.T) {
	nettest.CheckLeaks(t)
	base, targets := listenInARow(t)
	g := newRig(t, func(o *rigOptions) {
		farTunnel(o)
		o.Tunnels[0].Forward = []hops.Target{{Host: "127.0.0.9", Port: base, Ports: 3}, {Host: "127.0.0.1", Port: base, Ports: 3}}
	})
	o := atNear
	o.Offset = 2
	got, f, err := g.open(o)
	nettest.Must(t, err)
	g.target = targets[2]
	g.accept()
	if got.To != addrOf(targets[2]) {
		t.Errorf("offset 2 leads to %v", got.To)
	}
	f.end(report.End{Reason: report.EndClean})
}

// TestOlderFarRelayIsNoLoss holds that a flow goes to the next hop if the far relay of one cannot take it,
// and ends with the reason if no other can; the hop is not blamed, and the flow waits for nobody.
func TestOlderFarRelayIsNoLoss(t *testing.T) {
	nettest.CheckLeaks(t)
	g, first, second := newHopsRig(t, nil)
	older := report.End{Reason: report.EndDenied, Err: errors.New(report.OnePortWarning)}
	dial(t, g.addr)
	first.next(t).giveBack(older)
	two := second.next(t)
	two.set(report.Figures{State: report.StateOpen, Target: reached})
	client := dial(t, g.addr)
	first.next(t).giveBack(older)
	second.next(t).giveBack(older)
	expectReset(t, client)
	if r := g.expectReason(report.EndDenied); r.ByPeer || r.Err == nil || r.Err.Error() != report.OnePortWarning {
		t.Errorf("the record is %+v", r)
	}
	for _, h := range g.relay.Snapshot().Tunnels[0].Hops {
		if h.Failed != 0 {
			t.Errorf("the hop is %+v", h)
		}
	}
	two.end(report.End{Reason: report.EndClean, Target: reached})
}
