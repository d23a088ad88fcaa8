package relay

import (
	"net"
	"testing"
	"time"

	report "longhaul/internal/carry/flow"
	"longhaul/test/nettest"
)

func TestTraceNamed(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	c, s := g.pair()
	name := g.theOne("the flow is not open", func(s *report.Sample) bool { return s.State == "open" }).Name
	traced := func() Traced {
		t.Helper()
		all := g.relay.TraceNamed(report.NamePrefix(prefixOf(name)), 2)
		if len(all) != 1 || all[0].Name != name {
			t.Fatalf("found %+v", all)
		}
		return all[0]
	}
	write(t, c, pattern(5000))
	expect(t, s, pattern(5000))
	var last Traced
	nettest.Eventually(t, patience, func() bool {
		last = traced()
		return last.Part.BytesUp == 5000 && last.Part.Legs[target].BytesSent == 5000 && last.Part.Legs[target].Unacknowledged == 0
	}, func() string { return "the bytes are not counted" })
	part := last.Part
	from := c.LocalAddr().(*net.TCPAddr).AddrPort()
	if part.Tunnel != "t" || part.State != "open" || part.Client.AddrPort != from || part.Listen.AddrPort != g.addr || part.Target.AddrPort != addrOf(g.target) ||
		part.Legs[client].Remote.AddrPort != from || part.Legs[client].Local.AddrPort != g.addr || part.Legs[target].Remote.AddrPort != addrOf(g.target) ||
		part.Legs[target].CongestionWindow <= 0 || part.Legs[target].PeerWindow <= 0 || part.Legs[target].RTT <= 0 {
		t.Errorf("the flow is traced as %+v", part)
	}
	if last.Before != nil || last.Behind != nil || part.Legs[client].Lane || part.Legs[target].Lane {
		t.Error("a flow without a pair has other relays")
	}
	// The monitor has not seen it since: a trace does not make it look quiet.
	if now := g.sampled()[last.ID]; now.Unchanged || !now.TargetLeg.Known {
		t.Errorf("the next sample is %+v", now)
	}
	g.theOne("it does not fall quiet", func(s *report.Sample) bool { return s.Unchanged })
	if leg := traced().Part.Legs[target]; leg.BytesSent != 5000 {
		t.Errorf("of a quiet flow the trace is %+v", leg)
	}
	if now := g.sampled(); len(now) != 0 {
		t.Errorf("a trace has woken a quiet flow: %+v", now)
	}

	other, _ := g.pair()
	if all := g.relay.TraceNamed("", 5); len(all) != 2 {
		t.Errorf("of two flows %d are found", len(all))
	}
	if all := g.relay.TraceNamed("", 1); len(all) != 1 {
		t.Errorf("%d flows are found, want one at most", len(all))
	}
	reset(t, other)
	reset(t, c)
	g.relay.Close()
	if all := g.relay.TraceNamed("", 5); len(all) > 0 {
		t.Errorf("a closed relay has %+v", all)
	}
}

func prefixOf(n report.Name) string { return n.String()[:8] }

// TestTraceOfAFlowOfAPair holds that a change which a trace is the first to see ends the flow's rest.
func TestTraceOfAFlowOfAPair(t *testing.T) {
	nettest.CheckLeaks(t)
	g, carrier := newNearRig(t, nil)
	dial(t, g.addr)
	f := carrier.next(t)
	f.set(report.Figures{State: report.StateParked, Peer: "c", Idle: time.Hour})
	nettest.Eventually(t, patience, func() bool { return len(g.sampled()) == 0 }, func() string { return "it does not fall quiet" })
	f.set(report.Figures{State: report.StateParked, Peer: "c", BytesUp: 1000, Idle: time.Hour})
	if all := g.relay.TraceNamed("", 2); len(all) != 1 || all[0].Part.BytesUp != 1000 {
		t.Fatalf("it is traced as %+v", all)
	}
	if s := g.theOne("it is not visited", func(*report.Sample) bool { return true }); s.Unchanged || s.BytesUp != 1000 || !s.ClientLeg.Known {
		t.Errorf("the next sample is %+v", s)
	}
	f.end(report.End{Reason: report.EndClean, Peer: "c", BytesUp: 1000})
	g.expectReason(report.EndClean)
}

// TestTraceCarried holds that a flow is found by each of its carriers for as long as that carries it, and by
// none that gave it back or after its end, and that no other flow is looked at.
func TestTraceCarried(t *testing.T) {
	second := newCarrier()
	h := newHubRig(t, func(o *rigOptions) {
		other := o.Tunnels[0].Forward[0]
		other.Port++
		other.Carrier = second
		o.Tunnels[0].Forward = append(o.Tunnels[0].Forward, other)
	})
	traced := func(c report.Carried) bool {
		one, running := h.relay.TraceCarried(c)
		if running && one.Before != c && one.Behind != c {
			t.Errorf("another flow is found: %+v", one)
		}
		return running
	}
	far := h.ask(atNear, patience)
	first := h.next.next(t)
	h.turn()
	if !traced(far.carriedFlow) || !traced(first) {
		t.Error("a flow that is offered is not found")
	}
	first.giveBack(report.End{Reason: report.EndTargetRefused, ByPeer: true})
	near := second.next(t)
	h.turn()
	if !traced(far.carriedFlow) || traced(first) || !traced(near) {
		t.Error("a flow that was given back is found by the carrier that gave it back, or by no other")
	}
	near.open()
	nettest.Must(t, h.result(far))
	owner := near.Owner()
	near.setOwner(nil)
	if traced(near) {
		t.Error("a carrier without an owner is found: all flows were looked at")
	}
	near.setOwner(owner)
	far.close()
	far.ended(report.End{Reason: report.EndClean})
	near.close()
	near.ended(report.End{Reason: report.EndClean})
	h.flows.one(t)
	if traced(far.carriedFlow) || traced(near) {
		t.Error("a flow that has ended is found")
	}
}
