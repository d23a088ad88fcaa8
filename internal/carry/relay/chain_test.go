package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/words/units"
	"longhaul/test/nettest"
)

// hubRig is a relay whose tunnel takes flows from one pair to the next. The test carries both halves.
type hubRig struct {
	*rig
	t    *testing.T
	next *carrier
}

func newHubRig(t *testing.T, change func(*rigOptions)) *hubRig {
	nettest.CheckLeaks(t)
	h := &hubRig{t: t, next: newCarrier()}
	h.rig = newRig(t, func(o *rigOptions) {
		farTunnel(o)
		o.Tunnels[0].Forward[0].Carrier = h.next
		if change != nil {
			change(o)
		}
	})
	return h
}

// asked is a flow that a near relay asks for.
type asked struct {
	*carriedFlow
	answer chan error // nil: it has a target
	cancel context.CancelFunc
}

// ask asks for a flow, and returns before the answer.
func (h *hubRig) ask(o report.Open, within time.Duration) *asked {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	h.t.Cleanup(cancel)
	a := &asked{carriedFlow: &carriedFlow{leg: -1}, answer: make(chan error, 1), cancel: cancel}
	a.figures.State = report.StateDialing
	o.Tunnel, o.Carried, o.Admitted = h.relay.Snapshot().Tunnels[0].Name, a.carriedFlow, a.setOwner
	go func() {
		target, err := h.relay.OpenPaired(ctx, o)
		if err == nil {
			a.mu.Lock()
			a.leg, a.owner, a.client.Legs, a.client.Listen = target.FD, target.Owner, target.Legs, target.To
			a.figures.State = report.StateOpen
			a.mu.Unlock()
		}
		a.answer <- err
	}()
	h.t.Cleanup(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.leg >= 0 {
			unix.Close(a.leg)
		}
	})
	return a
}

func (h *hubRig) result(a *asked) error {
	h.t.Helper()
	select {
	case err := <-a.answer:
		return err
	case <-time.After(patience):
		h.t.Fatal("the near relay gets no answer")
		return nil
	}
}

// joined opens a flow of which both halves have their carrier.
func (h *hubRig) joined() (far *asked, near *carriedFlow) {
	h.t.Helper()
	far = h.ask(atNear, patience)
	near = h.next.next(h.t)
	near.open()
	nettest.Must(h.t, h.result(far))
	return far, near
}

// open has the next relay have a target.
func (f *carriedFlow) open() {
	f.set(report.Figures{State: report.StateOpen, Target: behind})
	f.client.Opened()
}

// close closes a half's end of the joint, as its carrier does before it says so.
func (f *carriedFlow) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leg >= 0 {
		unix.Close(f.leg)
		f.leg = -1
	}
}

var behind = atNear.Listen

// pass writes to one end of the joint and reads at the other.
func (h *hubRig) pass(from, to int, text string) {
	h.t.Helper()
	_, err := unix.Write(from, []byte(text))
	nettest.Must(h.t, err)
	b := make([]byte, 2*len(text))
	look := []unix.PollFd{{Fd: int32(to), Events: unix.POLLIN}}
	_, _ = unix.Poll(look, int(patience/time.Millisecond))
	if n, err := unix.Read(to, b); err != nil || string(b[:n]) != text {
		h.t.Errorf("%q came as %q, %v", text, b[:max(n, 0)], err)
	}
}

// TestChain follows a flow from one pair to the next: what the next relay gets, when the near one has its
// answer, what status says of both halves, and that both are awaited for one record.
func TestChain(t *testing.T) {
	h := newHubRig(t, nil)
	o := atNear
	o.Name, o.Via, o.Offset, o.Peer = report.NewName(), report.Via("12345678"), 3, "site-a"
	far := h.ask(o, patience)
	near := h.next.next(t)
	if c := near.client; c.From != o.Client || c.Listen != o.Listen || c.Name != o.Name || c.Via != o.Via || c.Offset != o.Offset ||
		c.Others || c.Legs.Joint == nil || c.Deadline <= 0 || c.Deadline > patience {
		t.Errorf("the next relay gets %+v", c)
	}
	near.set(report.Figures{State: report.StateDialing})
	h.turn()
	select {
	case err := <-far.answer:
		t.Fatalf("answered before the next relay has a target: %v", err)
	default:
	}
	near.set(report.Figures{State: report.StateParked, Target: behind, BytesUp: 10, BytesDown: 1, Retained: 2, Resumes: 1, Peer: "site-c", Outage: units.Seconds(time.Second)})
	near.client.Opened()
	nettest.Must(t, h.result(far))
	if far.client.Listen != behind || far.client.Legs.Joint != near.client.Legs.Joint {
		t.Errorf("the near relay's target is %v, and the halves have no joint in common: %v", far.client.Listen, far.client.Legs)
	}
	h.pass(far.leg, near.leg, "up")
	h.pass(near.leg, far.leg, "down")

	far.set(report.Figures{State: report.StateParked, BytesUp: 11, BytesDown: 20, Retained: 3, Resumes: 2, Idle: time.Hour})
	s := h.relay.Snapshot()
	if one := s.Flows[0]; len(s.Flows) != 1 || one.State != report.StateParked || one.BytesUp != 10 || one.BytesDown != 20 || one.Target != behind ||
		one.Client != o.Client || one.HeldUp != 2 || one.HeldDown != 3 || one.Pair.Resumes != 3 || one.Name != o.Name || one.Peer != "site-a > site-c" {
		t.Errorf("status has %+v, %+v", one, one.Pair)
	}
	far.set(report.Figures{State: report.StateResuming})
	if one := h.relay.Snapshot().Flows[0]; one.State != report.StateResuming {
		t.Errorf("one half resumes, and the flow is %s", one.State)
	}
	far.set(report.Figures{BytesUp: 11, BytesDown: 21, Resumes: 2, Idle: time.Hour})
	far.close()
	far.ended(report.End{Reason: report.EndClean, BytesUp: 11, BytesDown: 21, Lanes: report.Counters{BytesSent: 7}, CongestionControl: "bbr"})
	h.turn()
	if len(h.flows.all()) > 0 {
		t.Fatal("the flow is over with one half")
	}
	near.set(report.Figures{BytesUp: 12, BytesDown: 1, Target: behind, Peer: "site-c", Resumes: 1})
	near.close()
	near.ended(report.End{Reason: report.EndClean, BytesUp: 12, BytesDown: 1, Target: behind, Peer: "site-c", Lanes: report.Counters{BytesSent: 8}, CongestionControl: "haul"})
	r := h.flows.one(t)
	if r.Reason != report.EndClean || r.BytesUp != 12 || r.BytesDown != 21 || r.Resumes != 3 || r.Name != o.Name || r.Peer != "site-a > site-c" ||
		r.ClientLeg.BytesSent != 7 || r.TargetLeg.BytesSent != 8 || r.ClientLeg.Side != wanSide || r.TargetLeg.Side != wanSide {
		t.Errorf("the record is %+v", r)
	}
	if n := h.relay.FlowsNow(); n != 0 {
		t.Errorf("%d flows are left", n)
	}
	far.expectResets(t)
	near.expectResets(t)
}

// TestBytesOfAChain holds that what a flow has moved never falls, and counts once for its tunnel and each peer, when
// its far half begins to count after the near one.
func TestBytesOfAChain(t *testing.T) {
	h := newHubRig(t, nil)
	o := atNear
	o.Peer = "site-a"
	far := h.ask(o, patience)
	near := h.next.next(t)
	down := func(want int64) {
		t.Helper()
		one, sum := h.relay.Snapshot().Flows[0], h.relay.Overview().Tunnels[0]
		if one.BytesDown != want || sum.BytesDown != want || sum.Peers["site-a"].Down != want {
			t.Errorf("the flow has moved %d bytes down, its tunnel %d, %+v over peers; want %d", one.BytesDown, sum.BytesDown, sum.Peers, want)
		}
	}
	near.set(report.Figures{State: report.StateDialing, BytesDown: 5, Peer: "site-c"})
	down(5)
	near.set(report.Figures{State: report.StateOpen, Target: behind, BytesDown: 5, Peer: "site-c"})
	near.client.Opened()
	nettest.Must(t, h.result(far))
	for _, bytes := range []int64{0, 5} {
		far.set(report.Figures{State: report.StateOpen, BytesDown: bytes})
		down(5)
	}
	far.set(report.Figures{State: report.StateOpen, BytesDown: 7})
	down(7)
	for _, half := range []*carriedFlow{far.carriedFlow, near} {
		half.close()
		half.ended(report.End{Reason: report.EndClean, BytesDown: 7, Peer: "site-c"})
	}
	if r := h.flows.one(t); r.BytesDown != 7 {
		t.Errorf("the record is %+v", r)
	}
}

// TestChainIsRefused holds that the near relay gets the next one's reason and words, and that nothing is left
// of the flow.
func TestChainIsRefused(t *testing.T) {
	h := newHubRig(t, nil)
	for reason, byPeer := range map[report.EndReason]bool{report.EndTargetRefused: true, report.EndPairDown: false, report.EndFlowLimit: true} {
		far := h.ask(atNear, patience)
		near := h.next.next(t)
		before := len(h.flows.all())
		near.close()
		near.ended(report.End{Reason: reason, Err: errors.New("why"), ByPeer: byPeer})
		var refused *report.Refusal
		if err := h.result(far); !errors.As(err, &refused) || refused.Reason != reason || refused.Err.Error() != "why" {
			t.Errorf("%s is passed on as %v", reason, err)
		}
		nettest.Eventually(t, patience, func() bool { return len(h.flows.all()) > before }, func() string { return "no record" })
		if r := h.flows.all()[before]; r.Reason != reason || r.ByPeer != byPeer {
			t.Errorf("the record is %+v", r)
		}
	}
}

// TestChainGivesUp holds that a near relay which waits no more ends the flow at the next relay, and that one
// whose time is over gets the next relay's word.
// TestChainWithoutAsker holds that a near relay which gives up at any moment, or asks for no time, stops no
// event loop.
func TestChainWithoutAsker(t *testing.T) {
	h := newHubRig(t, nil)
	h.next.down.Store(true)
	for i := range 200 {
		far := h.ask(atNear, time.Duration(i%2)*patience)
		far.cancel()
		_ = refusal(t, h.result(far))
		select { // it may have come as far as the next relay
		case near := <-h.next.flows:
			near.close()
		default:
		}
	}
	_ = h.relay.Snapshot() // which asks each loop
}

// TestChainNextIsLate holds that the hub gives a flow up for which the next relay never answers.
func TestChainNextIsLate(t *testing.T) {
	h := newHubRig(t, nil)
	far := h.ask(atNear, 50*time.Millisecond)
	select {
	case near := <-h.next.flows:
		t.Cleanup(near.close)
		if err := h.result(far); refusal(t, err) != report.EndTargetUnreached {
			t.Errorf("the near relay gets %v", err)
		}
		near.expectResets(t, report.EndTargetUnreached)
	case err := <-far.answer: // its time was over before the joint was made
		if refusal(t, err) != report.EndTargetUnreached {
			t.Errorf("the near relay gets %v", err)
		}
	}
}

func TestChainGivesUp(t *testing.T) {
	h := newHubRig(t, nil)
	far := h.ask(atNear, patience)
	near := h.next.next(t)
	far.cancel()
	if reason := refusal(t, h.result(far)); reason != report.EndClientReset {
		t.Errorf("the flow ends as %s", reason)
	}
	near.expectResets(t, report.EndClientReset)

	far = h.ask(atNear, time.Millisecond)
	select {
	case near = <-h.next.flows:
		t.Cleanup(near.close)
		if near.client.Deadline != time.Millisecond {
			t.Errorf("the next relay has %v", near.client.Deadline)
		}
		near.close()
		near.ended(report.End{Reason: report.EndTargetUnreached, Err: errors.New("its words"), ByPeer: true})
		if err := h.result(far); refusal(t, err) != report.EndTargetUnreached {
			t.Errorf("the near relay gets %v", err)
		}
	case err := <-far.answer: // its time was over before the joint was made
		if refusal(t, err) != report.EndTargetUnreached {
			t.Errorf("the near relay gets %v", err)
		}
	case <-time.After(patience):
		t.Fatal("nothing happens")
	}
}

// TestChainIsCut holds that what the relay ends it ends at both halves, with its reason in the joint before.
func TestChainIsCut(t *testing.T) {
	h := newHubRig(t, func(o *rigOptions) { o.Tunnels[0].IdleTimeout = time.Millisecond })
	far, near := h.joined()
	old := report.Figures{State: report.StateParked, Target: behind, Idle: time.Hour}
	far.set(old)
	near.set(old)
	r := h.flows.one(t)
	if reason, _ := far.client.Legs.Joint.Cause(); r.Reason != report.EndIdle || r.ByPeer || reason != report.EndIdle {
		t.Errorf("the record has %s, the joint %s", r.Reason, reason)
	}
	far.expectResets(t, report.EndIdle)
	near.expectResets(t, report.EndIdle)
	far.ended(report.End{Reason: report.EndIdle}) // late
	near.ended(report.End{Reason: report.EndIdle})
	h.turn()
	if n := len(h.flows.all()); n != 1 {
		t.Errorf("%d records of one flow", n)
	}
}

// TestChainMemory holds that what waits in a joint counts as the flow's.
func TestChainMemory(t *testing.T) {
	h := newHubRig(t, func(o *rigOptions) { o.MemoryLimitBytes = 1 << 30 })
	far, near := h.joined()
	n, err := unix.Write(near.leg, make([]byte, 100<<10))
	nettest.Must(t, err)
	nettest.Eventually(t, patience, func() bool {
		h.relay.SetMemoryLimit(1 << 30)
		h.turn()
		return h.relay.Snapshot().Memory.UsedBytes >= int64(n)
	}, func() string {
		return fmt.Sprintf("%d bytes wait, and the relay counts %+v", n, h.relay.Snapshot().Memory)
	})
	for _, f := range []*carriedFlow{far.carriedFlow, near} {
		f.close()
		f.ended(report.End{Reason: report.EndClean})
	}
	h.expectReason(report.EndClean)
}

// TestChainEnds holds that a flow has the first cause of its halves, and whose word it is.
func TestChainEnds(t *testing.T) {
	why := errors.New("why")
	end := func(r report.EndReason, byPeer bool) report.End {
		return report.End{Reason: r, Err: why, ByPeer: byPeer}
	}
	for _, tt := range []struct {
		name      string
		far, near report.End
		nearFirst bool
		reason    report.EndReason
		byPeer    bool
	}{
		{"client resets", end(report.EndClientReset, true), end(report.EndClientReset, false), false, report.EndClientReset, true},
		{"the near half is over first", end(report.EndClientReset, true), end(report.EndClientReset, false), true, report.EndClientReset, true},
		{"target resets", end(report.EndTargetReset, false), end(report.EndTargetReset, true), false, report.EndTargetReset, true},
		{"WAN is lost", end(report.EndWANLost, false), end(report.EndWANLost, false), true, report.EndWANLost, false},
		{"behind a clean end", report.End{Reason: report.EndClean}, end(report.EndWANLost, false), false, report.EndWANLost, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHubRig(t, nil)
			far, near := h.joined()
			halves := []func(){func() { far.close(); far.ended(tt.far) }, func() { near.close(); near.ended(tt.near) }}
			if tt.nearFirst {
				halves[0], halves[1] = halves[1], halves[0]
			}
			for _, f := range halves {
				f()
				h.turn()
			}
			if r := h.flows.one(t); r.Reason != tt.reason || r.ByPeer != tt.byPeer {
				t.Errorf("the record has %s, by the peer: %v", r.Reason, r.ByPeer)
			}
		})
	}
}

// TestChainHops holds that a flow goes on to the next of several far relays as one of a near tunnel does, and
// to a target of this host once a reload gives one.
func TestChainHops(t *testing.T) {
	second, address := newCarrier(), nobody(t)
	var server PairServer
	h := newHubRig(t, func(o *rigOptions) {
		other := o.Tunnels[0].Forward[0]
		other.Port++
		other.Carrier = second
		o.Tunnels[0].Forward = append(o.Tunnels[0].Forward, other)
		o.Tunnels[0].Listen[0] = address // which stays across the reload
		server = o.Tunnels[0].PairServer
	})
	far := h.ask(atNear, patience)
	first := h.next.next(t)
	if !first.client.Others {
		t.Error("the client may not come back")
	}
	first.giveBack(report.End{Reason: report.EndTargetRefused, Err: errors.New("no"), ByPeer: true})
	near := second.next(t)
	h.next.down.Store(true)
	second.down.Store(true)
	near.giveBack(report.End{Reason: report.EndPairDown})
	if err := h.result(far); refusal(t, err) != report.EndPairDown { // one has refused it, and no other is left
		t.Errorf("refused as %v", err)
	}

	far = h.ask(atNear, patience)
	h.flowIs("waits for a hop", func(f *flow) bool { return f.phase == phaseWaiting && f.opening.offers.place != nil })
	nettest.Must(t, h.reload(func(tu *Tunnel) { tu.PairServer = server }))
	h.relay.HopsChanged()
	target := h.accept()
	nettest.Must(t, h.result(far))
	write(t, target, []byte("hello"))
	b := make([]byte, 5)
	look := []unix.PollFd{{Fd: int32(far.leg), Events: unix.POLLIN}}
	_, _ = unix.Poll(look, int(patience/time.Millisecond))
	if n, err := unix.Read(far.leg, b); string(b[:max(n, 0)]) != "hello" || far.client.Legs.Joint != nil {
		t.Errorf("the target here says %q, %v", b[:max(n, 0)], err)
	}
	far.end(report.End{Reason: report.EndClean})
	nettest.Eventually(t, patience, func() bool { all := h.flows.all(); return len(all) == 2 && all[1].Reason == report.EndClean },
		func() string { return "the flow does not end" })
}

// TestChainOfCheck holds that a check of a chain learns at once that the next pair is down, and who says that
// no target accepts.
func TestChainOfCheck(t *testing.T) {
	h := newHubRig(t, nil)
	far := h.ask(report.Open{}, patience)
	near := h.next.next(t)
	if near.client.From.IsValid() || near.client.Listen.IsValid() {
		t.Errorf("the check goes on as a flow of %v", near.client.From)
	}
	near.close()
	near.ended(report.End{Reason: report.EndTargetRefused, Err: errors.New("refused"), ByPeer: true, Peer: "site-c"})
	if err := h.result(far); refusal(t, err) != report.EndTargetRefused || !strings.Contains(err.Error(), "site-c: refused") {
		t.Errorf("refused with %v", err)
	}
	h.next.down.Store(true)
	far = h.ask(report.Open{}, patience)
	if err := h.result(far); refusal(t, err) != report.EndPairDown || !strings.Contains(err.Error(), "no hop takes flows") {
		t.Errorf("refused with %v", err)
	}
}

// TestChainDrains holds that a hub which stops before a flow has ended says so at both ends.
func TestChainDrains(t *testing.T) {
	h := newHubRig(t, nil)
	far, near := h.joined()
	waiting := h.ask(atNear, patience)
	offered := h.next.next(t)
	ctx, end := context.WithCancel(t.Context())
	done := h.drain(ctx)
	end()
	if d := <-done; len(d.left) != 2 {
		t.Errorf("left over are %+v", d.left)
	}
	for _, f := range []*carriedFlow{far.carriedFlow, near, offered} {
		f.expectResets(t, report.EndDrain)
	}
	if err := h.result(waiting); refusal(t, err) != report.EndDrain || !errors.Is(err, report.ErrDialCut) {
		t.Errorf("refused with %v", err)
	}
}

// TestChainLimits holds that a flow of a chain counts as one, by its peer and by its source.
func TestChainLimits(t *testing.T) {
	h := newHubRig(t, func(o *rigOptions) { o.Tunnels[0].MaxFlows = 3; o.Tunnels[0].MaxFlowsPerSource = 1 })
	o := atNear
	o.Peer, o.Share = "site-a", "site-a"
	far := h.ask(o, patience)
	near := h.next.next(t)
	if err := h.result(h.ask(o, patience)); refusal(t, err) != report.EndFlowLimit {
		t.Errorf("a second flow of the source: %v", err)
	}
	near.open()
	nettest.Must(t, h.result(far))
	for _, f := range []*carriedFlow{far.carriedFlow, near} {
		f.close()
		f.ended(report.End{Reason: report.EndClean})
	}
	nettest.Eventually(t, patience, func() bool { return h.relay.FlowsNow() == 0 }, func() string { return "the flow does not end" })
	far = h.ask(o, patience)
	near = h.next.next(t)
	near.close()
	near.ended(report.End{Reason: report.EndTargetRefused})
	if err := h.result(far); refusal(t, err) != report.EndTargetRefused {
		t.Errorf("another flow of the source, behind the first: %v", err)
	}
}
