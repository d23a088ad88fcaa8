package relay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/proxyproto"
	"longhaul/internal/carry/relay/hops"
	"longhaul/test/nettest"
)

// newHopsRig starts a relay with two far relays, whose loops see time pass only by g.pass.
func newHopsRig(t *testing.T, change func(*rigOptions)) (g *rig, first, second *carrier) {
	first, second = newCarrier(), newCarrier()
	return newStoppedRig(t, func(o *rigOptions) {
		o.Tunnels[0].Forward = farRelays(first, second)
		if change != nil {
			change(o)
		}
	}), first, second
}

// farRelays are hops of these carriers.
func farRelays(all ...*carrier) (forward []hops.Target) {
	for i, c := range all {
		forward = append(forward, hops.Target{Host: "127.0.0.1", Port: uint16(i + 1), Carrier: c})
	}
	return forward
}

var (
	reached     = netip.MustParseAddrPort("198.51.100.1:22")
	lost        = report.End{Reason: report.EndWANLost, Err: errors.New("the session is suspect")}
	peerRefused = report.End{Reason: report.EndTargetRefused, Err: errors.New("connection refused"), ByPeer: true}
)

// waiting waits until the only flow waits for a hop.
func (g *rig) waiting() {
	g.t.Helper()
	g.flowIs("waits", func(f *flow) bool { return f.phase == phaseWaiting })
}

// A client that a hop gives back goes to the next one as it came, and counts once.
func TestGivenBackClientGoesToTheNextHop(t *testing.T) {
	nettest.CheckLeaks(t)
	g, first, second := newHopsRig(t, func(o *rigOptions) {
		o.Tunnels[0].ProxyIn = ProxyIn{Required: true}
		o.Tunnels[0].MaxFlows, o.Tunnels[0].MaxFlowsPerSource = 2, 1
	})
	from, to := netip.MustParseAddrPort("192.0.2.1:1234"), netip.MustParseAddrPort("192.0.2.2:80")
	client := dial(t, g.addr)
	write(t, client, append(proxyproto.AppendHeader(nil, 2, proxyproto.Header{Source: from, Destination: to}), "early"...))
	one := first.next(t)
	if !one.client.Others || one.client.Deadline != DefaultConnectTimeout {
		t.Errorf("the first carrier got %+v", one.client)
	}
	write(t, client, []byte(" and late"))
	nettest.Must(t, client.CloseWrite())
	one.giveBack(lost)
	two := second.next(t)
	if c := two.client; c.From != from || c.Listen != to || string(c.Early) != "early" || !c.Others || c.Name != one.client.Name || c.Name.IsZero() {
		t.Errorf("the second carrier got %+v", c)
	}
	far := connOf(t, two.client.FD)
	expect(t, far, []byte(" and late"))
	expectEnd(t, far)
	far.Close()
	s := g.relay.Snapshot()
	if h := s.Tunnels[0].Hops; s.FlowsNow != 1 || s.Tunnels[0].FlowsTotal != 1 || h[0].FlowsNow != 0 || h[1].FlowsNow != 1 || h[0].Failed != 1 || h[1].Failed != 0 {
		t.Errorf("%d flows, hops %+v", s.FlowsNow, h)
	}
	two.set(report.Figures{State: report.StateOpen, Target: reached})
	if s := g.relay.Snapshot(); s.Flows[0].Target != reached || s.Tunnels[0].Hops[1].FlowsTotal != 1 {
		t.Errorf("the flow is %+v", s.Flows[0])
	}
	g.flowIs("has left its opening behind", func(f *flow) bool { return f.opening == nil })
	two.end(report.End{Reason: report.EndClean, Target: reached})
	if r := g.expectReason(report.EndClean); r.Hop != "127.0.0.1:2" || r.Client.AddrPort != from {
		t.Errorf("the record is %+v", r)
	}
	if s := g.relay.Snapshot(); s.FlowsNow != 0 || s.Tunnels[0].Hops[0].FlowsNow+s.Tunnels[0].Hops[1].FlowsNow != 0 {
		t.Errorf("afterwards status has %+v", s)
	}
}

// A flow that each far relay refuses ends with the last one's reason, and that does not count against
// them.
func TestEachFarRelayRefuses(t *testing.T) {
	nettest.CheckLeaks(t)
	g, first, second := newHopsRig(t, nil)
	client := dial(t, g.addr)
	first.next(t).giveBack(report.End{Reason: report.EndDenied, ByPeer: true})
	second.next(t).giveBack(peerRefused)
	expectReset(t, client)
	if r := g.expectReason(report.EndTargetRefused); !r.ByPeer || r.Hop != "127.0.0.1:2" {
		t.Errorf("the record is %+v", r)
	}
	for _, h := range g.relay.Snapshot().Tunnels[0].Hops {
		if h.Failed != 0 || h.FlowsNow != 0 {
			t.Errorf("the hop is %+v", h)
		}
	}
}

// A hop that takes too long is asked for the client, and the last one is not.
func TestHopsShareTheTime(t *testing.T) {
	nettest.CheckLeaks(t)
	g, first, second := newHopsRig(t, nil)
	dial(t, g.addr)
	one := first.next(t)
	asked := func(f *carriedFlow) int { f.mu.Lock(); defer f.mu.Unlock(); return f.asked }
	g.pass(DefaultConnectTimeout/2 - 1)
	if n := asked(one); n != 0 {
		t.Errorf("the first hop was asked %d times before its share was over", n)
	}
	g.pass(1)
	if n := asked(one); n != 1 {
		t.Fatalf("the first hop was asked %d times", n)
	}
	one.giveBack(report.End{Reason: report.EndTargetUnreached})
	two := second.next(t)
	if two.client.Deadline != DefaultConnectTimeout/2 {
		t.Errorf("the second hop has %v", two.client.Deadline)
	}
	g.pass(DefaultConnectTimeout)
	if n := asked(two); n != 0 {
		t.Errorf("the last hop was asked %d times", n)
	}
	two.giveBack(report.End{Reason: report.EndTargetUnreached, ByPeer: true})
	g.expectReason(report.EndTargetUnreached)
}

// A flow waits while no hop takes flows, and goes to the first that does, with all that its client
// has sent and its end.
func TestFlowWaitsForAHop(t *testing.T) {
	nettest.CheckLeaks(t)
	for _, told := range []bool{true, false} {
		g, first, second := newHopsRig(t, func(o *rigOptions) { o.Tunnels[0].ProxyIn = ProxyIn{Required: true} })
		first.down.Store(true)
		second.down.Store(true)
		client := dial(t, g.addr)
		write(t, client, proxyproto.AppendHeader(nil, 2, proxyproto.Header{Source: client.LocalAddr().(*net.TCPAddr).AddrPort(), Destination: g.addr}))
		g.waiting()
		write(t, client, []byte("request"))
		nettest.Must(t, client.CloseWrite())
		if s := g.relay.Snapshot(); s.Flows[0].State != report.StateDialing || s.Flows[0].Hop != "" {
			t.Errorf("the flow is %+v", s.Flows[0])
		}
		g.pass(headerTimeout)
		g.waiting()
		second.down.Store(false)
		if told {
			g.relay.HopsChanged()
		} else {
			g.pass(hopsLook)
		}
		f := second.next(t)
		if f.client.Deadline != DefaultConnectTimeout {
			t.Errorf("the hop has %v", f.client.Deadline)
		}
		far := connOf(t, f.client.FD)
		expect(t, far, []byte("request"))
		expectEnd(t, far)
		far.Close()
		f.end(report.End{Reason: report.EndClean, Target: reached})
		g.expectReason(report.EndClean)
		g.relay.Close()
	}
}

// A flow waits no longer than for a connect, or if a pair has stood for resume.
func TestFlowWaitsInVain(t *testing.T) {
	nettest.CheckLeaks(t)
	for _, stood := range []bool{false, true} {
		g, first, second := newHopsRig(t, func(o *rigOptions) { o.Tunnels[0].Resume = time.Minute })
		first.down.Store(true)
		second.down.Store(true)
		second.stood.Store(stood)
		patience := DefaultConnectTimeout
		if stood {
			patience = time.Minute
		}
		client := dial(t, g.addr)
		g.waiting()
		g.pass(patience - time.Millisecond)
		g.waiting()
		g.pass(time.Millisecond)
		expectReset(t, client)
		if r := g.expectReason(report.EndPairDown); r.Err == nil || r.Hop != "" {
			t.Errorf("the record is %+v, %v", r, r.Err)
		}
		g.relay.Close()
	}
}

// A lost hop is asked again once its session stands, also if it is the only one left. Losses count
// against it.
func TestLostHopIsAskedAgain(t *testing.T) {
	nettest.CheckLeaks(t)
	g, first, second := newHopsRig(t, func(o *rigOptions) { o.Tunnels[0].Health.EjectAfter = 1 })
	second.down.Store(true)
	dial(t, g.addr)
	f := first.next(t)
	first.down.Store(true)
	f.giveBack(lost)
	g.waiting()
	if h := g.relay.Snapshot().Tunnels[0].Hops[0]; h.Failed != 1 {
		t.Errorf("the lost hop is %+v", h)
	}
	first.down.Store(false)
	g.relay.HopsChanged()
	f = first.next(t) // ejected, and there is no better one
	f.giveBack(report.End{Reason: report.EndDrain})
	g.waiting() // its session stands: it is asked again a moment later
	g.pass(offerPause)
	f = first.next(t)
	f.end(report.End{Reason: report.EndClean, Target: reached})
	g.expectReason(report.EndClean)
	if h := g.relay.Snapshot().Tunnels[0].Hops[0]; h.Failed != 1 || h.State != report.HopUp {
		t.Errorf("the hop is %+v", h)
	}
}

// The client of a flow that waits may reset.
func TestWaitingClientResets(t *testing.T) {
	nettest.CheckLeaks(t)
	g, first, second := newHopsRig(t, nil)
	second.down.Store(true)
	client := dial(t, g.addr)
	write(t, client, []byte("request"))
	f := first.next(t)
	first.down.Store(true)
	f.giveBack(lost)
	g.waiting()
	reset(t, client)
	g.expectReason(report.EndClientReset)
	if n := g.relay.Flows(); n != 0 {
		t.Errorf("%d flows are left", n)
	}
}

// A client that comes back after its flow has ended is reset.
func TestClientComesBackTooLate(t *testing.T) {
	nettest.CheckLeaks(t)
	g, first, _ := newHopsRig(t, nil)
	client := dial(t, g.addr)
	f := first.next(t)
	ctx, end := context.WithCancel(t.Context())
	done := g.drain(ctx)
	end()
	<-done
	f.expectResets(t, report.EndDrain)
	f.giveBack(lost)
	expectReset(t, client)
	g.expectReason(report.EndDrain)
	g.relay.Close()

	g, first, _ = newHopsRig(t, nil)
	client = dial(t, g.addr)
	f = first.next(t)
	g.relay.Close()
	f.giveBack(lost)
	expectReset(t, client)
}

// The end of the process resets a flow that waits.
func TestWaitingFlowEndsWithTheDrain(t *testing.T) {
	nettest.CheckLeaks(t)
	g, first, second := newHopsRig(t, nil)
	first.down.Store(true)
	second.down.Store(true)
	client := dial(t, g.addr)
	write(t, client, []byte("request"))
	g.waiting()
	ctx, end := context.WithCancel(t.Context())
	done := g.drain(ctx)
	end()
	if d := <-done; len(d.left) != 1 || d.left[0].ToTargetBytes != int64(len("request")) {
		t.Errorf("left over are %+v", d.left)
	}
	expectReset(t, client)
	g.expectReason(report.EndDrain)
}

// An operator may drain hops: those are not asked, and without another the flow ends.
func TestDrainedFarRelays(t *testing.T) {
	nettest.CheckLeaks(t)
	g, first, second := newHopsRig(t, nil)
	drain := func(hop string) {
		_, err := g.relay.DrainHop("t", hop, true)
		nettest.Must(t, err)
	}
	drain("127.0.0.1:1")
	dial(t, g.addr)
	f := second.next(t)
	second.down.Store(true)
	f.giveBack(lost)
	g.waiting()
	drain("127.0.0.1:2")
	g.expectReason(report.EndNoHop)
	if len(first.flows) > 0 {
		t.Error("a drained hop got the flow")
	}
}

// A flow that waits goes on with the tunnel as a reload has left it.
func TestReloadOfFarRelays(t *testing.T) {
	nettest.CheckLeaks(t)
	g, first, second := newHopsRig(t, nil)
	first.down.Store(true)
	second.down.Store(true)
	third := newCarrier()
	tunnel := Tunnel{Name: "t", Listen: []netip.AddrPort{freePort}}
	dial(t, g.addr)
	g.waiting()
	tunnel.Forward = append(farRelays(first), hops.Target{Host: "127.0.0.1", Port: 3, Carrier: third})
	nettest.Must(t, setTunnels(g.relay, []Tunnel{tunnel}))
	f := third.next(t)
	if h := g.relay.Snapshot().Tunnels[0].Hops; len(h) != 2 || h[1].FlowsNow != 1 {
		t.Errorf("the hops are %+v", h)
	}

	// One at a hop that the reload removes stays, and goes to the present ones when that gives it back.
	first.down.Store(false)
	tunnel.Forward = farRelays(first, second)
	nettest.Must(t, setTunnels(g.relay, []Tunnel{tunnel}))
	f.giveBack(lost)
	f = first.next(t)
	f.giveBack(peerRefused)
	g.expectReason(report.EndTargetRefused)

	first.down.Store(true)
	client := dial(t, g.addr)
	g.waiting()
	nettest.Must(t, setTunnels(g.relay, nil))
	expectReset(t, client)
}

// While each far relay would refuse a client, the relay asks them, and the client learns at once that none serves it.
func TestTroubleIsToldAtOnce(t *testing.T) {
	nettest.CheckLeaks(t)
	g, first, second := newHopsRig(t, func(o *rigOptions) { o.Tunnels[0].Resume = time.Hour })
	first.trouble.Store(true)
	second.trouble.Store(true)
	client := dial(t, g.addr)
	refused := report.End{Reason: report.EndNoHop, ByPeer: true}
	first.next(t).giveBack(refused)
	second.next(t).giveBack(refused)
	expectReset(t, client)
	g.expectReason(report.EndNoHop)
}
