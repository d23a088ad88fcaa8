package relay

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/words/units"
)

// Two paired relays carry a flow over connections of their own between them,
// its lanes. The relay admits, counts, watches and records such a flow as any
// other, and another package moves its bytes:
//
//	near:  header ─────────────> paired ─> gone      the carrier has the client's socket
//	far:   dialing ─ connected ─> paired ─> gone     the carrier has the target's socket
//
// A paired flow has one socket here, its leg; the lane stands for the other.

// wanSide is the side of every lane, as Transport.Established names it.
const wanSide = "wan"

// place is where a flow is found for as long as it lives.
type place struct {
	w         *worker
	slot, gen uint32
}

func (w *worker) placeOf(f *flow) place { return place{w, f.slot, f.gen} }

// at is where the flow of an owner is.
func (at place) at() place { return at }

// flow is the flow; nil: it has ended. It runs in the loop.
func (at place) flow() *flow { return at.w.lookup(at.slot, at.gen) }

// paired is the state of a flow that a carrier carries, or that waits for its
// target on behalf of one. It is the [report.Owner] that the carrier knows.
type paired struct {
	place
	carrier report.Carried
	peer    string                           // the other relay; empty: not known yet
	client  *source                          // has the limits of a source, if the flow's source is a peer; else nil
	answer  chan<- pairAnswer                // of OpenPaired; nil once it has one
	seen    seenFigures                      // as of the latest look, and of its end
	record  atomic.Pointer[report.LegRecord] // the leg's last figures; nil: not wanted, or the carrier still has the socket
	sent    *report.LegRecord                // over lanes, at the end; nil: not known
	start   time.Duration                    // of the flow, for record
	setup   *legSetup                        // of the leg, for record
	leg     side                             // of this relay's socket
	half    bool                             // of a chain: the leg is no client's, and has no record
	ended   bool                             // the carrier knows or has told
	byPeer  bool                             // the end is the other relay's word
	reached bool                             // near: the target has accepted, and the hop counts the flow
}

// seenFigures are those of report.Figures that the flow itself does not have.
type seenFigures struct {
	retained                    int64
	outage, rtt                 units.Seconds
	lanes, resumes              int32
	ended, clean, memoryLimited bool
	state                       carriedState
}

// carriedState is report.Figures.State in a byte: its place in carriedStates.
type carriedState uint8

var carriedStates = [...]string{"", report.StateDialing, report.StateOpen, report.StateParked, report.StateResuming, report.StateDelivering}

func (s carriedState) String() string { return carriedStates[s] }

func seenOf(f *report.Figures) seenFigures {
	return seenFigures{
		state: carriedState(max(0, slices.Index(carriedStates[:], f.State))), retained: f.Retained, outage: f.Outage, rtt: f.RTT, lanes: int32(f.Lanes), resumes: int32(f.Resumes),
		ended: f.Ended, clean: f.Clean, memoryLimited: f.MemoryLimited,
	}
}

// lane is the leg that the lane stands for.
func (p *paired) lane() side { return p.leg.other() }

// carry gives an admitted client to a hop's carrier. If the tunnel has other hops, it may come back:
// opening is kept for that.
func (w *worker) carry(f *flow, hop uint16) {
	o, l, t := f.opening, &f.legs[client], f.route.tunnel
	c := report.Client{Name: f.name, From: f.client, Listen: w.listenAddr(f), Offset: f.route.offset, Early: append([]byte(nil), o.header...), Deadline: t.ConnectTimeout,
		Others: len(f.route.targets) > 1}
	switch {
	case f.chain != nil:
		w.carryOn(f, &c)
	case o.source.IsValid():
		c.From, c.Listen = o.source, o.dest
		f.client = o.source
	}
	if t.Transparent {
		f.setTarget(c.Listen) // what the far relay is to dial, also if it does not
	}
	f.joinHop(f.route.hops.Hop(hop))
	if c.Others {
		c.Deadline = o.deadline - w.now
		w.timers.schedule(f, o.attempt)
	} else {
		w.leaveOpening(f)
	}
	p := &paired{place: w.placeOf(f), leg: client, half: f.chain != nil}
	w.beginPaired(f, p)
	c.Legs, c.FD = w.pairLegs(f), w.releaseLeg(l)
	p.carrier = f.route.hops.Carrier(hop).Carry(c, p)
	w.schedule(f)
}

func (w *worker) leaveOpening(f *flow) {
	w.endAwaitFD(f.opening)
	w.openings.put(f.opening)
	f.opening = nil
	w.timers.remove(f)
}

// beginPaired begins the paired phase.
func (w *worker) beginPaired(f *flow, p *paired) {
	f.phase, f.paired = phasePaired, p
	w.pairedFlows++
	p.start, p.setup = f.start, f.legs[p.leg].setup
	f.active = w.now
}

// releaseLeg takes a leg's socket from the event loop and returns it.
func (w *worker) releaseLeg(l *leg) int {
	fd := int(l.fd)
	epollDel(w.epfd, fd)
	setsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
	l.fd = -1
	return fd
}

// pairLegs is how the carrier treats the flow's leg.
func (w *worker) pairLegs(f *flow) *report.LegOptions {
	if f.chain != nil {
		return &f.chain.legs
	}
	return &w.relay.pairLegs
}

// Closing implements report.Owner.
func (p *paired) Closing(fd int) {
	o := &p.w.relay.opts
	if p.half || o.OnFlows == nil || o.LegStats != nil && !o.LegStats(p.w.clock()-p.start) {
		return
	}
	l, unknown := leg{fd: int32(fd), setup: p.setup}, ""
	last := l.record(&unknown)
	p.record.Store(&last)
}

// Ended implements report.Owner.
func (p *paired) Ended(e report.End) {
	if !p.w.post(func() { p.w.carried(p.flow(), e) }) {
		closeBack(e)
	}
}

// carried ends a flow that its carrier has ended; nil: it has ended before.
func (w *worker) carried(f *flow, e report.End) {
	if f == nil || f.phase != phasePaired {
		closeBack(e)
		return // the relay has ended it, and Reset told the carrier
	}
	if e.Back != nil {
		w.givenBack(f, e)
		return
	}
	p := f.paired
	p.ended = true
	sent := laneRecord(&e)
	p.sent = &sent
	if w.reached(f, e.Target); f.joined() {
		w.halfOver(f, e)
		return
	}
	p.seen.resumes, p.seen.outage = int32(e.Resumes), e.Outage
	w.countCarried(f, e.Peer, e.BytesUp, e.BytesDown)
	f.dirs[p.leg].held = 0
	if e.Reason != report.EndClean {
		p.byPeer = e.ByPeer && f.close().reason == ""
		f.fail(e.Reason, e.Err)
	}
	w.closeFlow(f, 0)
}

// endPaired makes the carriers reset a flow that the relay ends.
func (w *worker) endPaired(f *flow) {
	if f.chain != nil {
		w.endChain(f)
	}
	p := f.paired
	if p == nil || p.ended {
		return
	}
	p.ended = true
	if p.answer != nil {
		p.answer <- pairAnswer{refused: &report.Refusal{Reason: f.closing.reason, Err: f.closing.err}}
		p.answer = nil
	}
	if f.carried() {
		w.lookAtPaired(f)
		p.carrier.Reset(f.closing.reason, f.closing.err)
	}
}

// halfDone reports whether the flow waits for one side only, as far as its carrier has said.
func (f *flow) halfDone() bool {
	if f.carried() {
		return f.paired.seen.ended
	}
	return f.end.halfDone()
}

// delivered reports whether a carrier is done with the flow but for what its socket has left for the
// peer here.
func (f *flow) delivered() bool { return f.carried() && f.paired.seen.clean }

// carried reports whether a carrier has the flow's socket.
func (f *flow) carried() bool { return f.phase == phasePaired && f.paired.carrier != nil }

// lookAtPaired updates a flow from its carrier's figures.
func (w *worker) lookAtPaired(f *flow) {
	if !f.carried() {
		return
	}
	p := f.paired
	now := p.carrier.Figures()
	f.dirs[p.leg].retains(now.Retained)
	if f.joined() {
		now = f.chain.with(now)
		f.dirs[down].retains(f.chain.seen.Retained)
	}
	was := p.seen
	p.seen = seenOf(&now)
	if p.seen.state != was.state || p.seen.retained != was.retained || p.seen.lanes != was.lanes || p.seen.ended != was.ended || p.seen.clean != was.clean {
		w.stir(f)
	}
	w.countCarried(f, now.Peer, now.BytesUp, now.BytesDown)
	f.active = max(f.active, w.now-now.Idle)
	if now.State == report.StateDialing {
		f.active = w.now // connect_timeout bounds that
	}
	w.reached(f, now.Target)
}

// countCarried takes what a carrier says that a flow has moved, and over which peer; an empty one is not known yet.
func (w *worker) countCarried(f *flow, peer string, bytesUp, bytesDown int64) {
	bytesUp, bytesDown = max(bytesUp, f.dirs[up].bytes), max(bytesDown, f.dirs[down].bytes)
	more := report.PeerBytes{Up: bytesUp, Down: bytesDown}
	if f.peer() != "" {
		more = report.PeerBytes{Up: bytesUp - f.dirs[up].bytes, Down: bytesDown - f.dirs[down].bytes}
	}
	f.paired.peer = cmp.Or(peer, f.paired.peer)
	f.route.state.movedOver(f.peer(), more)
	w.count(f, up, bytesUp)
	w.count(f, down, bytesDown)
}

// movedOver counts bytes of a flow for its peer; of a flow that comes from one pair and goes on to another, for both.
func (t *tunnelState) movedOver(peer string, more report.PeerBytes) {
	if peer == "" || more == (report.PeerBytes{}) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.peers == nil {
		t.peers = map[string]peerSum{}
	}
	t.moves++
	for one := range strings.SplitSeq(peer, " > ") {
		if _, known := t.peers[one]; !known && len(t.peers) >= maxPeerSums {
			t.foldPeers()
		}
		t.peers[one] = t.peers[one].plus(more, t.moves)
	}
}

// maxPeerSums bounds the peers of a tunnel whose bytes are counted apart. More than its sessions, they may have
// left long ago.
const maxPeerSums = 2048

// otherPeers has the bytes of the others. No peer has a name with a space.
const otherPeers = "other peers"

// peerSum is what went over a peer; last is the latest of the tunnel's moves of which it had a part.
type peerSum struct {
	report.PeerBytes
	last uint64
}

func (p peerSum) plus(more report.PeerBytes, last uint64) peerSum {
	return peerSum{report.PeerBytes{Up: p.Up + more.Up, Down: p.Down + more.Down}, last}
}

// foldPeers counts that half of the peers together which has moved nothing for longest.
func (t *tunnelState) foldPeers() {
	names := slices.SortedFunc(maps.Keys(t.peers), func(a, b string) int { return cmp.Compare(t.peers[a].last, t.peers[b].last) })
	rest := t.peers[otherPeers]
	for _, name := range names[:len(names)/2] {
		if name != otherPeers {
			rest = rest.plus(t.peers[name].PeerBytes, t.moves)
			delete(t.peers, name)
		}
	}
	t.peers[otherPeers] = rest
}

func (t *tunnelState) overPeers() map[string]report.PeerBytes {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.peers == nil {
		return nil
	}
	all := make(map[string]report.PeerBytes, len(t.peers))
	for name, p := range t.peers {
		all[name] = p.PeerBytes
	}
	return all
}

// reached notes the target that the far relay has connected to, and counts the flow at its hop, once.
func (w *worker) reached(f *flow, at netip.AddrPort) {
	p := f.paired
	if p.leg != client || !at.IsValid() {
		return
	}
	f.setTarget(at)
	if !p.reached {
		p.reached = true
		f.hop.Connected(w.now)
		if f.opening != nil { // it stays at this hop
			w.leaveOpening(f)
			w.schedule(f)
		}
		if f.chain != nil {
			w.joinHalves(f)
		}
	}
}

// sockets calls look with the flow's sockets; -1: none. A carrier may have them.
func (f *flow) sockets(look func(fds [2]int)) {
	if !f.carried() {
		look([2]int{int(f.legs[client].fd), int(f.legs[target].fd)})
		return
	}
	f.inspect(func(fds [2]int, _ [2]report.Counters) { look(fds) })
}

// inspect is sockets for a carried flow, with what is to be added to the counters of its lanes.
func (f *flow) inspect(look func(fds [2]int, add [2]report.Counters)) {
	p := f.paired
	if f.joined() {
		f.chain.from.Inspect(func(_, fromLane int, fromAdd report.Counters) {
			p.carrier.Inspect(func(_, lane int, add report.Counters) {
				look([2]int{fromLane, lane}, [2]report.Counters{fromAdd, add})
			})
		})
		return
	}
	p.carrier.Inspect(func(leg, lane int, add report.Counters) {
		var fds [2]int
		var adds [2]report.Counters
		fds[p.leg], fds[p.lane()], adds[p.lane()] = leg, lane, add
		look(fds, adds)
	})
}

// inOutage reports whether a flow delivers nothing because the path between two
// relays is down. Its memory is bounded, and it waits for resume.
func (f *flow) inOutage() bool {
	return f.paired != nil && f.paired.seen.state.String() == report.StateResuming
}

// isLane reports whether a side of the flow is a lane.
func (f *flow) isLane(s side) bool { return f.carried() && (f.paired.lane() == s || f.chain != nil) }

// waitsForPath reports whether a flow of a pair delivers nothing because of the path between two
// relays, at the moment.
func (f *flow) waitsForPath() bool {
	return f.phase == phaseWaiting || f.carried() && f.paired.carrier.WaitsForPath() || f.joined() && f.chain.from.WaitsForPath()
}

// pairedRecord fills in what a record has of a paired flow.
func (f *flow) pairedRecord(rec *report.Record) {
	p := f.paired
	if p == nil {
		return
	}
	legs := [2]*report.LegRecord{&rec.ClientLeg, &rec.TargetLeg}
	if last := p.record.Load(); last != nil {
		*legs[p.leg] = *last
	}
	if p.sent != nil && p.sent.CongestionControl != "" {
		*legs[p.lane()] = *p.sent
	}
	legs[p.lane()].Side = wanSide
	legs[p.lane()].RTT = p.seen.rtt
	rec.Peer = f.peer()
	rec.Resumes, rec.Outage = int64(p.seen.resumes), p.seen.outage
	if c := f.chain; c != nil {
		if c.end != nil && c.end.CongestionControl != "" {
			rec.ClientLeg = laneRecord(c.end)
		}
		rec.ClientLeg.Side, rec.ClientLeg.RTT = wanSide, c.seen.RTT
	}
}

// laneRecord is what an end says of the lanes of its carrier.
func laneRecord(e *report.End) report.LegRecord {
	return report.LegRecord{Side: wanSide, CongestionControl: e.CongestionControl, BytesSent: e.Lanes.BytesSent,
		BytesRetransmitted: e.Lanes.BytesRetransmitted, Retransmits: e.Lanes.Retransmits}
}

// sampleLane fills in the side of the lane, which no transport has looked at for
// this flow, and makes its counters the flow's.
func (f *flow) sampleLane(s *report.Sample, add [2]report.Counters) {
	legs, lane := [2]*report.LegSample{&s.ClientLeg, &s.TargetLeg}, f.paired.lane()
	addLane(legs[lane], add[lane], f.paired.seen.memoryLimited)
	if f.joined() {
		addLane(&s.ClientLeg, add[client], f.chain.seen.MemoryLimited)
	}
}

// sampleEachLane fills in the lanes of a flow that has several.
func (f *flow) sampleEachLane(s *report.Sample) {
	if f.paired.seen.lanes > 1 {
		s.Lanes = f.paired.carrier.EachLane()
	}
	if f.joined() {
		s.Lanes = append(f.chain.from.EachLane(), s.Lanes...)
	}
}

func addLane(l *report.LegSample, add report.Counters, memoryLimited bool) {
	l.Side, l.MemoryLimited = wanSide, memoryLimited
	l.Info.BytesSent += uint64(add.BytesSent)
	l.Info.BytesRetrans += uint64(add.BytesRetransmitted)
	l.Info.TotalRetrans += uint32(add.Retransmits)
}

// peer is the other relay of the pair that carries the flow; empty for another flow, or while it is not known.
// Of two pairs it is both, the one that the flow comes from first.
func (f *flow) peer() string {
	peer := ""
	if f.paired != nil {
		peer = f.paired.peer
	}
	switch {
	case f.chain == nil:
		return peer
	case peer == "":
		return f.chain.peer
	}
	return f.chain.peer + " > " + peer
}

// pairSnapshot is the part of a flow's snapshot that only a paired flow has.
func (f *flow) pairSnapshot() *report.Figures {
	if f.paired == nil {
		return nil
	}
	seen := &f.paired.seen
	return &report.Figures{State: seen.state.String(), Retained: seen.retained, Lanes: int(seen.lanes), Resumes: int(seen.resumes), Outage: seen.outage, RTT: seen.rtt,
		MemoryLimited: seen.memoryLimited}
}
