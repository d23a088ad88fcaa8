package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/proxyproto"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/carry/relay/names"
	"longhaul/internal/words/units"
	"longhaul/test/nettest"
)

// carriedFlow is a flow that the test carries.
type carriedFlow struct {
	client report.Client
	leg    int // descriptor; -1: closed

	mu      sync.Mutex
	owner   report.Owner
	figures report.Figures
	resets  []report.EndReason
	waits   bool // for the path
	asked   int  // for the client
}

func (f *carriedFlow) Figures() report.Figures {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.figures
}

func (f *carriedFlow) Owner() report.Owner {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.owner
}

func (f *carriedFlow) setOwner(o report.Owner) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.owner = o
}

// ended reports the flow's end.
func (f *carriedFlow) ended(e report.End) { f.Owner().Ended(e) }

func (f *carriedFlow) set(figures report.Figures) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.figures = figures
}

func (f *carriedFlow) Inspect(look func(leg, lane int, add report.Counters)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	look(f.leg, -1, report.Counters{})
}

func (f *carriedFlow) WaitsForPath() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waits
}

func (f *carriedFlow) EachLane() []report.Lane { return nil }

func (f *carriedFlow) GiveBack() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
}

func (f *carriedFlow) Reset(reason report.EndReason, _ error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resets = append(f.resets, reason)
}

// expectResets checks what the relay asked of the carrier.
func (f *carriedFlow) expectResets(t *testing.T, want ...report.EndReason) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.resets) != len(want) || len(want) > 0 && f.resets[0] != want[0] {
		t.Errorf("the carrier was told to reset for %v, want %v", f.resets, want)
	}
}

// end ends the flow as its carrier.
func (f *carriedFlow) end(e report.End) {
	f.mu.Lock()
	if fd := f.leg; fd >= 0 {
		f.owner.Closing(fd)
		unix.Close(fd)
		f.leg = -1
	}
	f.mu.Unlock()
	f.ended(e)
}

// giveBack gives the client back as its carrier.
func (f *carriedFlow) giveBack(e report.End) {
	f.mu.Lock()
	back := f.client
	back.FD, f.leg = f.leg, -1
	f.mu.Unlock()
	e.Back = &back
	f.ended(e)
}

// carrier is a Carrier that hands its flows to the test.
type carrier struct {
	flows   chan *carriedFlow
	down    atomic.Bool // it takes no flows
	trouble atomic.Bool // the far tunnel would refuse them
	stood   atomic.Bool
}

func (c *carrier) Carry(client report.Client, o report.Owner) report.Carried {
	f := &carriedFlow{client: client, owner: o, leg: client.FD}
	c.flows <- f
	return f
}

func (c *carrier) Taking() report.Taking {
	taking := report.Taking{Peer: "site-b", Takes: !c.down.Load(), Stood: c.stood.Load(), Problem: report.PairPathDown}
	if c.trouble.Load() {
		taking.Trouble = "has no hop"
	}
	return taking
}

func (c *carrier) next(t *testing.T) *carriedFlow {
	t.Helper()
	select {
	case f := <-c.flows:
		t.Cleanup(func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.leg >= 0 {
				unix.Close(f.leg)
			}
		})
		return f
	case <-time.After(patience):
		t.Fatal("the relay gave no flow away")
		return nil
	}
}

func newCarrier() *carrier { return &carrier{flows: make(chan *carriedFlow, 8)} }

func newNearRig(t *testing.T, change func(*rigOptions)) (*rig, *carrier) {
	c := newCarrier()
	return newRig(t, func(o *rigOptions) {
		o.Tunnels[0].Forward[0].Carrier = c
		if change != nil {
			change(o)
		}
	}), c
}

func TestPairingGetsAdmittedClients(t *testing.T) {
	nettest.CheckLeaks(t)
	g, carrier := newNearRig(t, func(o *rigOptions) {
		o.Tunnels[0].ProxyIn = ProxyIn{Required: true}
		o.Tunnels[0].MaxFlows = 1
		o.Tunnels[0].ConnectTimeout = 3 * time.Second
	})
	from, to := netip.MustParseAddrPort("192.0.2.1:1234"), netip.MustParseAddrPort("192.0.2.2:80")
	client := dial(t, g.addr)
	write(t, client, append(proxyproto.AppendHeader(nil, 2, proxyproto.Header{Source: from, Destination: to}), "early"...))
	f := carrier.next(t)
	if c := f.client; c.From != from || c.Listen != to || string(c.Early) != "early" || c.Deadline != 3*time.Second ||
		c.Legs.ResetDrain != DefaultResetDrainTimeout {
		t.Errorf("the carrier got %+v", c)
	}
	expectResetOf(t, g.addr) // max_flows

	far := netip.MustParseAddrPort("198.51.100.1:22")
	f.set(report.Figures{State: report.StateResuming, BytesUp: 10, BytesDown: 20, Retained: 5, Target: far, Resumes: 2, Outage: units.Seconds(time.Second), RTT: units.Seconds(time.Millisecond)})
	s := g.relay.Snapshot()
	if len(s.Flows) != 1 || s.FlowsNow != 1 || s.Tunnels[0].Limited != 1 {
		t.Fatalf("status has flows %+v of %d, limited %d", s.Flows, s.FlowsNow, s.Tunnels[0].Limited)
	}
	if hop := s.Tunnels[0].Hops[0]; hop.FlowsTotal != 1 || hop.State != report.HopUp {
		t.Errorf("the hop of a flow that has begun is %+v", hop)
	}
	if one := s.Flows[0]; one.State != report.StateResuming || one.BytesUp != 10 || one.BytesDown != 20 || one.Client != from || one.Target != far ||
		one.Hop == "" || one.Pair == nil || one.Pair.Retained != 5 || one.Pair.Resumes != 2 || one.Pair.Outage.Seconds() != 1 || one.Pair.RTT.Seconds() != 0.001 {
		t.Errorf("status has the flow %+v, %+v", one, one.Pair)
	}
	f.set(report.Figures{State: report.StateResuming, BytesUp: 10, BytesDown: 20, Retained: 5, Target: far, Peer: "site-b"})
	if all := g.relay.TraceNamed("", 2); len(all) != 1 || all[0].Part.HeldUp != 5 || all[0].Part.Legs[0].Lane || all[0].Part.Legs[0].Peer != "" ||
		!all[0].Part.Legs[1].Lane || all[0].Part.Legs[1].Peer != "site-b" {
		t.Errorf("the flow is traced as %+v", all)
	}
	f.set(report.Figures{State: report.StateResuming, BytesUp: 10, BytesDown: 20, Retained: 5, Target: far, Resumes: 2, Outage: units.Seconds(time.Second), RTT: units.Seconds(time.Millisecond)})
	var sampled int
	nettest.Must(t, g.relay.eachFlow(func(s *report.Sample) {
		sampled++
		if s.BytesUp != 10 || !s.ClientLeg.Known || s.TargetLeg.Known || s.TargetLeg.Side != "wan" {
			t.Errorf("the sample is %+v", s)
		}
	}))
	if sampled != 1 {
		t.Errorf("%d samples", sampled)
	}

	f.end(report.End{Reason: report.EndWANLost, Err: errors.New("no path"), BytesUp: 11, BytesDown: 21, Target: far, Resumes: 3, Outage: units.Seconds(2 * time.Second),
		Lanes: report.Counters{BytesSent: 100, BytesRetransmitted: 10, Retransmits: 1}, CongestionControl: "haul"})
	nettest.Eventually(t, patience, func() bool { return len(g.flows.all()) == 2 }, func() string { return "no record" })
	r := g.flows.all()[1]
	if r.Reason != report.EndWANLost || r.Err == nil || r.BytesUp != 11 || r.BytesDown != 21 || r.Target.AddrPort != far || r.Client.AddrPort != from ||
		r.Resumes != 3 || r.Outage.Duration() != 2*time.Second || r.ClientLeg.RTT == 0 ||
		r.TargetLeg.Side != "wan" || r.TargetLeg.BytesSent != 100 || r.TargetLeg.Retransmits != 1 || r.TargetLeg.CongestionControl != "haul" {
		t.Errorf("the record is %+v", r)
	}
	if s := g.relay.Snapshot(); s.FlowsNow != 0 || len(s.Flows) != 0 || s.Tunnels[0].Hops[0].FlowsNow != 0 || s.Tunnels[0].Hops[0].FlowsTotal != 1 || s.Tunnels[0].Errors != 1 {
		t.Errorf("afterwards status has %+v", s)
	}
	f.expectResets(t)
}

// TestParkedFlowsAreUnchanged holds that the kernel is not asked again and again about a flow
// that is parked: it has no lane. One whose bytes wait for a lane is no such flow.
func TestParkedFlowsAreUnchanged(t *testing.T) {
	nettest.CheckLeaks(t)
	g, carrier := newNearRig(t, nil)
	dial(t, g.addr)
	f := carrier.next(t)
	f.set(report.Figures{State: report.StateResuming, Retained: 5, Idle: time.Hour})
	for range 3 {
		g.theOne("a flow whose bytes wait is quiet", func(s *report.Sample) bool { return !s.Unchanged && s.ClientLeg.Known })
	}
	f.set(report.Figures{State: "parked", Idle: time.Hour})
	g.theOne("it does not fall quiet", func(s *report.Sample) bool { return s.Unchanged && !s.ClientLeg.Known })
	f.end(report.End{Reason: report.EndClean})
	g.expectReason(report.EndClean)
}

// TestBytesOverPeers holds that what flows of pairs move counts for their tunnel and its peers, also what came before
// the peer was known, with each Sample and at the end; and that a Sample visits such a flow only once it has changed.
func TestBytesOverPeers(t *testing.T) {
	nettest.CheckLeaks(t)
	g, carrier := newNearRig(t, nil)
	dial(t, g.addr)
	f := carrier.next(t)
	counted := func(bytes int64, peer report.PeerBytes) {
		t.Helper()
		nettest.Eventually(t, patience, func() bool { // at rest
			return len(g.sampled()) == 0
		}, func() string { return "a flow at rest is visited" })
		sum := g.relay.Overview().Tunnels[0]
		if sum.BytesUp+sum.BytesDown != bytes || sum.Peers["c"] != peer {
			t.Errorf("the tunnel has moved %d and %d bytes, %+v over its peers; want %d, %+v", sum.BytesUp, sum.BytesDown, sum.Peers, bytes, peer)
		}
	}
	for _, step := range []struct {
		figures report.Figures
		bytes   int64
		peer    report.PeerBytes
	}{
		{report.Figures{State: "parked", BytesUp: 100, Idle: time.Hour}, 100, report.PeerBytes{}},
		{report.Figures{State: "parked", BytesUp: 100, Peer: "c", Idle: time.Hour}, 100, report.PeerBytes{Up: 100}},
		{report.Figures{State: "parked", BytesUp: 150, BytesDown: 7, Peer: "c", Idle: time.Hour}, 157, report.PeerBytes{Up: 150, Down: 7}},
	} {
		f.set(step.figures)
		counted(step.bytes, step.peer)
	}
	f.end(report.End{Reason: report.EndClean, Peer: "c", BytesUp: 160, BytesDown: 8})
	g.expectReason(report.EndClean)
	counted(168, report.PeerBytes{Up: 160, Down: 8})
	st := &tunnelState{}
	st.movedOver("a > c", report.PeerBytes{Up: 5, Down: 3})
	st.movedOver("a", report.PeerBytes{Up: 1})
	st.movedOver("", report.PeerBytes{Up: 9})
	if want := map[string]report.PeerBytes{"a": {Up: 6, Down: 3}, "c": {Up: 5, Down: 3}}; !maps.Equal(st.overPeers(), want) {
		t.Errorf("of a flow over two pairs: %+v, want %+v", st.overPeers(), want)
	}
}

// TestPeerSumsAreBounded holds that a tunnel counts apart what moves over some peers, those that moved data lately, and
// that the sum is of all.
func TestPeerSumsAreBounded(t *testing.T) {
	st := &tunnelState{}
	const all = 5 * maxPeerSums
	for i := range all {
		st.movedOver(fmt.Sprint("site-", i), report.PeerBytes{Up: 2, Down: 1})
		st.movedOver("busy > relay", report.PeerBytes{Up: 1})
	}
	peers := st.overPeers()
	var sum report.PeerBytes
	for _, p := range peers {
		sum.Up, sum.Down = sum.Up+p.Up, sum.Down+p.Down
	}
	if want := (report.PeerBytes{Up: 4 * all, Down: all}); sum != want || len(peers) > maxPeerSums || len(peers) < maxPeerSums/2 {
		t.Errorf("%d peers with %+v, want %d at most, with %+v", len(peers), sum, maxPeerSums, want)
	}
	lately := peers[fmt.Sprint("site-", all-1)]
	if want := (report.PeerBytes{Up: all}); peers["busy"] != want || peers["relay"] != want || lately.Up != 2 {
		t.Errorf("those that move data lately have %+v, %+v and %+v", peers["busy"], peers["relay"], lately)
	}
}

func TestPairedFlowsEndWithTheDrain(t *testing.T) {
	nettest.CheckLeaks(t)
	g, carrier := newNearRig(t, nil)
	dial(t, g.addr)
	f := carrier.next(t)
	f.set(report.Figures{State: "open", Retained: 7})
	ctx, end := context.WithCancel(t.Context())
	done := g.drain(ctx)
	end()
	d := <-done
	if len(d.left) != 1 || d.left[0].ToTargetBytes != 7 || d.left[0].Delivering {
		t.Errorf("left over are %+v", d.left)
	}
	f.expectResets(t, report.EndDrain)
	g.expectReason(report.EndDrain)
	f.end(report.End{Reason: report.EndDrain}) // told late
	if n := len(g.flows.all()); n != 1 {
		t.Errorf("%d records of one flow", n)
	}
}

func TestMemoryOfPairedFlows(t *testing.T) {
	nettest.CheckLeaks(t)
	g, carrier := newNearRig(t, func(o *rigOptions) { o.MemoryLimitBytes = 8 << 20 })
	dial(t, g.addr)
	f := carrier.next(t)
	f.set(report.Figures{State: report.StateResuming, Retained: 7 << 20})
	g.relay.SetMemoryLimit(8 << 20)
	nettest.Eventually(t, patience, func() bool {
		g.turn()
		s := g.relay.Snapshot()
		return s.Memory.UsedBytes >= 7<<20 && s.Memory.Short
	}, func() string { return "the relay does not count what the carrier retains" })
	f.set(report.Figures{State: "open"})
	nettest.Eventually(t, patience, func() bool {
		g.relay.SetMemoryLimit(8 << 20)
		g.turn()
		return !g.relay.Snapshot().Memory.Short
	}, func() string { return "memory stays short" })
	f.end(report.End{Reason: report.EndClean})
	g.expectReason(report.EndClean)
}

// TestStalledPairedFlows holds that a flow that waits for the path is not reset while memory is
// short, and one whose other end does not read is.
func TestStalledPairedFlows(t *testing.T) {
	nettest.CheckLeaks(t)
	carrier := newCarrier()
	g := newStoppedRig(t, func(o *rigOptions) {
		o.Tunnels[0].Forward[0].Carrier = carrier
		o.MemoryLimitBytes = 8 * mib
	})
	dial(t, g.addr)
	f := carrier.next(t)
	f.waits = true
	f.set(report.Figures{State: "open", Retained: 9 * mib})
	g.look()
	nettest.Eventually(t, patience, func() bool { g.look(); return g.relay.Snapshot().Memory.Short }, func() string { return "memory is not short" })
	for range 3 {
		g.pass(DefaultStallTimeout)
		g.look()
	}
	f.expectResets(t)
	f.mu.Lock()
	f.waits = false
	f.mu.Unlock()
	for range 2 {
		g.pass(DefaultStallTimeout)
		g.look()
	}
	f.expectResets(t, report.EndStalled)
	f.end(report.End{Reason: report.EndStalled})
	g.expectReason(report.EndStalled)
}

// farServer is a PairServer whose preface is "pair!".
type farServer struct {
	served chan int
	waited atomic.Int64 // of the latest
}

const farPreface = "pair!"

func (s *farServer) Recognize(first []byte) Recognition {
	n := min(len(first), len(farPreface))
	switch {
	case string(first[:n]) != farPreface[:n]:
		return NoHello
	case n < len(farPreface):
		return MaybeHello
	}
	return IsHello
}

func (s *farServer) Serve(fd int, waited time.Duration) {
	s.waited.Store(int64(waited))
	s.served <- fd
}

func (s *farServer) next(t *testing.T) *net.TCPConn {
	t.Helper()
	select {
	case fd := <-s.served:
		return connOf(t, fd)
	case <-time.After(patience):
		t.Fatal("no connection was served")
		return nil
	}
}

func connOf(t *testing.T, fd int) *net.TCPConn {
	t.Helper()
	file := os.NewFile(uintptr(fd), "socket")
	defer file.Close()
	c, err := net.FileConn(file)
	nettest.Must(t, err)
	t.Cleanup(func() { c.Close() })
	nettest.Must(t, c.SetDeadline(time.Now().Add(6*patience)))
	return c.(*net.TCPConn)
}

func farTunnel(o *rigOptions) *farServer {
	s := &farServer{served: make(chan int, 8)}
	o.Tunnels[0].PairServer = s
	return s
}

func TestFarTunnelTakesOnlyPrefaces(t *testing.T) {
	nettest.CheckLeaks(t)
	var server *farServer
	g := newStoppedRig(t, func(o *rigOptions) {
		server = farTunnel(o)
		o.Tunnels[0].MaxFlows = 1
	})
	for _, first := range []string{"SSH-2.0-x\r\n", "pai\n"} {
		c := dial(t, g.addr)
		write(t, c, []byte(first))
		expectReset(t, c)
	}
	ends := dial(t, g.addr)
	write(t, ends, []byte("pa"))
	nettest.Must(t, ends.CloseWrite())
	expectReset(t, ends)

	for _, reset := range []bool{false, true} { // without a word, which is no refusal
		c := dial(t, g.addr)
		if reset {
			nettest.Must(t, c.SetLinger(0))
		}
		c.Close()
	}
	silent := dial(t, g.addr)
	var lanes []*net.TCPConn
	for range 3 { // more than max_flows
		c := dial(t, g.addr)
		write(t, c, []byte(farPreface[:2]))
		g.turn()
		write(t, c, []byte(farPreface[2:]+"lane"))
		far := server.next(t)
		expect(t, far, []byte(farPreface+"lane"))
		write(t, far, []byte("answer"))
		expect(t, c, []byte("answer"))
		lanes = append(lanes, c)
	}
	g.pass(prefaceTimeout)
	expectReset(t, silent)
	for _, c := range lanes {
		write(t, c, []byte("more"))
	}
	if s := g.relay.Snapshot(); s.FlowsNow != 0 || s.Tunnels[0].FlowsTotal != 0 || s.Tunnels[0].Denied != 4 {
		t.Errorf("%d flows, %d in total, %d denied; want 0, 0, 4", s.FlowsNow, s.Tunnels[0].FlowsTotal, s.Tunnels[0].Denied)
	}
	for _, r := range g.flows.all() {
		if r.Reason != report.EndDenied || r.Err == nil {
			t.Errorf("a connection was refused for %s, %v", r.Reason, r.Err)
		}
	}
	waiting := dial(t, g.addr)
	g.turn()
	g.relay.Close()
	expectReset(t, waiting)
}

// TestServeKnowsTheWait holds that who takes a connection over knows how long ago it was
// accepted, and bounds it from then on.
func TestServeKnowsTheWait(t *testing.T) {
	nettest.CheckLeaks(t)
	var server *farServer
	g := newStoppedRig(t, func(o *rigOptions) { server = farTunnel(o) })
	c := dial(t, g.addr)
	write(t, c, []byte(farPreface[:2]))
	nettest.Eventually(t, patience, func() bool {
		return g.relay.table.Load().tunnels[0].state.prefaces.Load() == 1
	}, func() string { return "the connection is not accepted" })
	const wait = 7 * time.Second
	g.pass(wait)
	write(t, c, []byte(farPreface[2:]))
	far := server.next(t)
	defer far.Close()
	if waited := time.Duration(server.waited.Load()); waited < wait || waited >= prefaceTimeout {
		t.Errorf("it has waited for %v, want %v or a little more", waited, wait)
	}
}

// TestStrangersAreBounded holds that of many silent connections the oldest gives way: a
// paired relay's is not refused for them.
func TestStrangersAreBounded(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, func(o *rigOptions) {
		farTunnel(o)
		o.Workers = 1 // each has its own oldest
	})
	await := func(n int64) {
		nettest.Eventually(t, patience, func() bool {
			return g.relay.table.Load().tunnels[0].state.prefaces.Load() == n
		}, func() string { return "not all are accepted" })
	}
	oldest := dial(t, g.addr)
	await(1)
	for range maxPrefaces - 1 {
		dial(t, g.addr)
	}
	await(maxPrefaces)
	dial(t, g.addr)
	expectReset(t, oldest)
	if n := g.relay.table.Load().tunnels[0].state.prefaces.Load(); n != maxPrefaces {
		t.Errorf("%d connections wait, want %d", n, maxPrefaces)
	}
}

var atNear = report.Open{Tunnel: "t", Client: netip.MustParseAddrPort("192.0.2.1:1234"), Listen: netip.MustParseAddrPort("192.0.2.2:80")}

// open asks for a flow's target.
func (g *rig) open(o report.Open) (report.Target, *carriedFlow, error) {
	f := &carriedFlow{leg: -1}
	o.Carried = f
	target, err := g.relay.OpenPaired(g.t.Context(), o)
	if err != nil {
		return target, nil, err
	}
	f.leg, f.owner, f.client.Legs = target.FD, target.Owner, target.Legs
	return target, f, nil
}

// refusal is the reason of an error of OpenPaired.
func refusal(t *testing.T, err error) report.EndReason {
	t.Helper()
	var r *report.Refusal
	if !errors.As(err, &r) {
		t.Fatalf("%v is no refusal", err)
	}
	return r.Reason
}

func TestFarFlows(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, func(o *rigOptions) {
		farTunnel(o)
		o.Tunnels[0].ProxyOut = ProxyV2
		o.Tunnels[0].MaxFlows = 1
	})
	got, f, err := g.open(atNear)
	nettest.Must(t, err)
	target := g.accept()
	expectHeader(t, target, proxyproto.Header{Source: atNear.Client, Destination: atNear.Listen})
	if got.To != addrOf(g.target) || got.Reset != nil {
		t.Errorf("the target is %+v", got)
	}
	if n, err := unix.Write(got.FD, []byte("up")); n != 2 {
		t.Fatal(err)
	}
	expect(t, target, []byte("up"))
	f.set(report.Figures{State: "open", BytesUp: 2})
	if s := g.relay.Snapshot(); len(s.Flows) != 1 || s.Flows[0].Client != atNear.Client || s.Flows[0].Listen != atNear.Listen ||
		s.Flows[0].Target != addrOf(g.target) || s.Flows[0].BytesUp != 2 || s.Tunnels[0].Hops[0].FlowsNow != 1 {
		t.Errorf("status has %+v", s.Flows)
	}
	_, _, err = g.open(atNear)
	if reason := refusal(t, err); reason != report.EndFlowLimit {
		t.Errorf("a second flow is refused for %s", reason)
	}
	f.end(report.End{Reason: report.EndClean, BytesUp: 2})
	expectReset(t, target) // the test closes it with zero linger
	nettest.Eventually(t, patience, func() bool { return len(g.flows.all()) == 2 }, func() string { return "no record" })
	records := g.flows.all() // of two loops, in any order
	if records[1].Flow == 0 {
		slices.Reverse(records)
	}
	if r := records[1]; r.Reason != report.EndClean || r.BytesUp != 2 || r.Client.AddrPort != atNear.Client || r.TargetLeg.RTT == 0 || r.ClientLeg.Side != "wan" {
		t.Errorf("the record is %+v", r)
	}

	nettest.Must(t, g.relay.DrainTunnel("t"))
	_, _, err = g.open(atNear)
	if reason := refusal(t, err); reason != report.EndNoHop {
		t.Errorf("a drained tunnel refuses for %s", reason)
	}
	dial(t, g.addr) // lanes of flows that exist get in
	nettest.Must(t, g.relay.ResumeTunnel("t"))
	_, _, err = g.open(report.Open{Tunnel: "other", Client: atNear.Client, Listen: atNear.Listen})
	if reason := refusal(t, err); reason != report.EndDenied {
		t.Errorf("an unknown tunnel refuses for %s", reason)
	}
	g.target.Close()
	_, _, err = g.open(atNear)
	if reason := refusal(t, err); reason != report.EndTargetRefused {
		t.Errorf("a target that refuses gives %s", reason)
	}
}

// TestPeersShare holds that of several peers none takes what is left for the others, whatever
// clients it names, and that the limits of a source are its clients'.
func TestPeersShare(t *testing.T) {
	nettest.CheckLeaks(t)
	const max = 27
	g := newRig(t, func(o *rigOptions) {
		farTunnel(o)
		o.Tunnels[0].MaxFlows = max
	})
	ask := func(peer string, client int) (*carriedFlow, error) {
		o := atNear
		o.Share, o.Client = peer, netip.AddrPortFrom(sourceNumber(client), 1234)
		_, f, err := g.open(o)
		return f, err
	}
	var flows []*carriedFlow
	for client := range max {
		f, err := ask("greedy", client)
		if err != nil {
			if reason := refusal(t, err); reason != report.EndFlowLimit {
				t.Errorf("refused for %s", reason)
			}
			break
		}
		flows = append(flows, f)
	}
	if n := len(flows); n != max*shareOfFree/(shareOfFree+1) {
		t.Errorf("one peer gets %d of %d flows", n, max)
	}
	f, err := ask("honest", 0)
	nettest.Must(t, err)
	for _, f := range append(flows, f) {
		f.end(report.End{Reason: report.EndClean})
	}
	nettest.Eventually(t, patience, func() bool { return g.relay.FlowsNow() == 0 }, func() string { return "flows are left" })
	g.relay.sources.mu.Lock()
	defer g.relay.sources.mu.Unlock()
	for key, src := range g.relay.sources.all {
		if n := src.flows.Load(); n != 0 {
			t.Errorf("%+v has %d flows in the end", key, n)
		}
	}
}

// TestPeersShareRates holds the same of the rate of new flows, whether their clients have a limit
// or not.
func TestPeersShareRates(t *testing.T) {
	for _, limit := range []float64{0, 5} {
		tun := &Tunnel{NewFlowsPerSecond: 50, NewFlowsPerSecondPerSource: limit}
		var s sources
		st := &tunnelState{}
		now := time.Second
		ask := func(peer string, client int) bool {
			e := entry{s.of(sourceKey{tunnel: st, peer: peer}, now), s.of(sourceKey{tunnel: st, from: sourceNumber(client)}, now)}
			return s.rateAllows(tun, st, e, now)
		}
		greedy := 0
		for client := range 200 {
			if ask("greedy", client) {
				greedy++
			}
		}
		if most := 50 * shareOfFree / (shareOfFree + 1); greedy > most+2 || greedy < most-2 {
			t.Errorf("with a limit of %v a peer gets %d of 50", limit, greedy)
		}
		for client := range 3 {
			if !ask("honest", 100+client) {
				t.Errorf("with a limit of %v another peer gets none", limit)
			}
		}
		for range 10 {
			ask("third", 0)
		}
		if limit > 0 && ask("third", 0) {
			t.Errorf("a client has no limit of %v", limit)
		}
	}
}

func TestFarFlowIsGivenUpWhileItConnects(t *testing.T) {
	nettest.CheckLeaks(t)
	asked := make(chan struct{}, 1)
	g := newRig(t, func(o *rigOptions) {
		farTunnel(o)
		o.Tunnels[0].Forward = []hops.Target{{Host: "slow.example", Port: 1}}
		o.Resolve = func(ctx context.Context, _ string) (names.Answer, error) {
			asked <- struct{}{}
			<-ctx.Done()
			return names.Answer{}, ctx.Err()
		}
	})
	ctx, giveUp := context.WithCancel(t.Context())
	go func() {
		<-asked
		giveUp()
	}()
	o := atNear
	o.Carried = &carriedFlow{leg: -1}
	_, err := g.relay.OpenPaired(ctx, o)
	if reason := refusal(t, err); reason != report.EndClientReset {
		t.Errorf("the reason is %s", reason)
	}
	g.expectReason(report.EndClientReset)
	if n := g.relay.FlowsNow(); n != 0 {
		t.Errorf("%d flows are left", n)
	}
}

func TestDrainingRelayKeepsTheWayOfLanes(t *testing.T) {
	nettest.CheckLeaks(t)
	var server *farServer
	g := newRig(t, func(o *rigOptions) { server = farTunnel(o) })
	_, f, err := g.open(atNear)
	nettest.Must(t, err)
	g.accept()
	done := g.drain(t.Context())
	c := dial(t, g.addr)
	write(t, c, []byte(farPreface))
	server.next(t)
	_, _, err = g.open(atNear)
	if reason := refusal(t, err); reason != report.EndDrain {
		t.Errorf("a draining relay refuses for %s", reason)
	}
	f.end(report.End{Reason: report.EndClean})
	if d := <-done; d.err != nil || len(d.left) > 0 {
		t.Errorf("the drain ends with %+v", d)
	}
	g.relay.Close()
	expectRefused(t, g.addr, "closed")
}

// TestTargetThatResetsAtOnce: the relay takes the error of a target that accepts
// and resets, so the carrier must learn of it.
func TestTargetThatResetsAtOnce(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, func(o *rigOptions) { farTunnel(o) })
	go func() {
		for {
			c, err := g.target.AcceptTCP()
			if err != nil {
				return
			}
			reset(t, c)
		}
	}()
	for range 50 {
		target, f, err := g.open(atNear)
		if err != nil {
			if reason := refusal(t, err); reason != report.EndTargetReset {
				t.Fatalf("refused for %s", reason)
			}
			continue
		}
		if target.Reset == nil {
			nettest.Eventually(t, patience, func() bool {
				_, err := unix.Read(target.FD, make([]byte, 1))
				return errors.Is(err, unix.ECONNRESET)
			}, func() string { return "neither the relay nor the socket tells of the reset" })
		}
		f.end(report.End{Reason: report.EndTargetReset})
	}
}
