package relay

import (
	"net/netip"
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
//	near:  header ─────────────> paired ─> gone      the pairing has the client's socket
//	far:   dialing ─ connected ─> paired ─> gone     the pairing has the target's socket
//
// A paired flow has one socket here, its leg; the lane stands for the other.

// PairResuming is the state of a flow that needs a lane and has none.
const PairResuming = "resuming"

// wanSide is the side of every lane, as Transport.Established names it.
const wanSide = "wan"

// Pairing carries the flows of a near tunnel to the paired far relay.
type Pairing interface {
	// Carry takes over an admitted client. It runs on an event loop and must
	// not block. ended gets the flow's end, once, from any goroutine.
	Carry(c PairClient, ended func(PairEnd)) PairFlow
}

// PairClient is a client whose flow a pairing carries.
type PairClient struct {
	FD           int            // non-blocking; the pairing owns it
	From, Listen netip.AddrPort // from the PROXY header where one was required
	Early        []byte         // what was read of its stream
	Deadline     time.Duration  // for the target to accept
	Legs         PairLegs
}

// PairLegs is how a pairing treats the leg of a flow at this relay.
type PairLegs struct {
	HalfClose  time.Duration // reset a half-closed flow after this silence; negative: never
	Idle       time.Duration // reset a flow after this silence; 0: never
	ResetDrain time.Duration // for the delivery of bytes that came before a reset

	// Closing sees the socket before it is closed.
	Closing func(fd int)
}

// PairFlow is a flow that a pairing carries. Its methods must not block.
type PairFlow interface {
	Figures() PairFigures

	// Inspect calls look with the leg and the present lane; -1: none. Both stay
	// open until look returns. The lane's counters and add are those of the flow.
	Inspect(look func(leg, lane int, add PairCounters))

	// EachLane returns the lanes of a flow that has several.
	EachLane() []report.Lane

	// WaitsForPath reports whether the flow's bytes wait for the path between the relays,
	// and not for somebody who does not read.
	WaitsForPath() bool

	// Reset resets both peers. The other relay records the reason.
	Reset(reason report.EndReason, err error)
}

// PairFigures are a paired flow at one moment.
type PairFigures struct {
	State              string // dialing, open, parked, resuming or delivering
	BytesUp, BytesDown int64
	Retained           int64 // bytes sent that the other relay has not acknowledged
	Lanes              int
	Target             netip.AddrPort
	Idle               time.Duration // since a byte moved
	Resumes            int           // lost lanes that others replaced
	Outage             time.Duration // without a lane that it needed
	RTT                time.Duration // between the relays
}

// PairCounters are what the kernel has sent over lanes for a flow.
type PairCounters struct {
	BytesSent          int64 // with those that were sent again
	BytesRetransmitted int64
	Retransmits        int64 // segments
}

// PairEnd is how a paired flow ended.
type PairEnd struct {
	Reason             report.EndReason
	Err                error
	ByPeer             bool // Reason and Err are the other relay's word
	BytesUp, BytesDown int64
	Target             netip.AddrPort // zero: none was dialed
	Resumes            int
	Outage             time.Duration
	Lanes              PairCounters
	CongestionControl  string // of lanes
}

// paired is the state of a flow that a pairing carries, or that waits for its
// target on behalf of one.
type paired struct {
	carrier PairFlow
	leg     side              // of this relay's socket
	client  *source           // has the limits of a source, if the flow's source is a peer; else nil
	answer  chan<- pairAnswer // of OpenPaired; nil once it has one
	seen    pairSeen
	ended   bool                             // the carrier knows or has told
	byPeer  bool                             // the end is the other relay's word
	record  atomic.Pointer[report.LegRecord] // the leg's last figures; nil: not wanted, or the carrier still has the socket
	add     PairCounters                     // to the lane's counters at the last look
	sent    *report.LegRecord                // over lanes, at the end; nil: not known
}

// pairSeen is what only the carrier knows of a flow, as of the latest look.
type pairSeen struct {
	state       string
	retained    int64
	lanes       int
	resumes     int
	outage, rtt time.Duration
}

// lane is the leg that the lane stands for.
func (p *paired) lane() side { return p.leg.other() }

// carry gives an admitted client to the tunnel's pairing.
func (w *worker) carry(f *flow) {
	o, l, t := f.opening, &f.legs[client], f.route.tunnel
	c := PairClient{From: f.client, Listen: w.listenAddr(f), Early: append([]byte(nil), o.header...), Deadline: t.ConnectTimeout}
	if o.source.IsValid() {
		c.From, c.Listen = o.source, o.dest
		f.client = o.source
	}
	if t.Transparent {
		f.target = c.Listen // what the far relay is to dial, also if it does not
	}
	f.joinHop(f.route.hops.Hop(0))
	w.leaveOpening(f)
	w.beginPaired(f, &paired{leg: client})
	c.Legs, c.FD = w.pairLegs(f), w.releaseLeg(l)
	slot, gen := f.slot, f.gen
	f.paired.carrier = t.Pairing.Carry(c, func(e PairEnd) {
		w.post(func() { w.carried(slot, gen, e) })
	})
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
func (w *worker) pairLegs(f *flow) PairLegs {
	p, start, setup := f.paired, f.start, f.legs[f.paired.leg].setup
	r := w.relay
	return PairLegs{
		HalfClose:  r.opts.HalfCloseTimeout,
		Idle:       f.route.tunnel.IdleTimeout,
		ResetDrain: r.opts.ResetDrainTimeout,
		Closing: func(fd int) {
			if r.opts.OnFlows == nil || r.opts.LegStats != nil && !r.opts.LegStats(w.clock()-start) {
				return
			}
			l, unknown := leg{fd: int32(fd), setup: setup}, ""
			last := l.record(&unknown)
			p.record.Store(&last)
		},
	}
}

// carried ends a flow that its carrier has ended.
func (w *worker) carried(slot, gen uint32, e PairEnd) {
	f := w.lookup(slot, gen)
	if f == nil || f.phase != phasePaired {
		return // the relay has ended it, and Reset told the carrier
	}
	p := f.paired
	p.ended = true
	p.seen.resumes, p.seen.outage = e.Resumes, e.Outage
	p.sent = &report.LegRecord{CongestionControl: e.CongestionControl, BytesSent: e.Lanes.BytesSent,
		BytesRetransmitted: e.Lanes.BytesRetransmitted, Retransmits: e.Lanes.Retransmits}
	f.dirs[up].bytes, f.dirs[down].bytes, f.dirs[p.leg].held = e.BytesUp, e.BytesDown, 0
	if p.leg == client && e.Target.IsValid() {
		f.target = e.Target
		f.hop.Connected(w.now)
	}
	if e.Reason != report.EndClean {
		p.byPeer = e.ByPeer && f.close().reason == ""
		f.fail(e.Reason, e.Err)
	}
	w.closeFlow(f, 0)
}

// endPaired makes the carrier reset a flow that the relay ends.
func (w *worker) endPaired(f *flow) {
	p := f.paired
	if p == nil || p.ended {
		return
	}
	p.ended = true
	if p.answer != nil {
		p.answer <- pairAnswer{reason: f.closing.reason, err: f.closing.err}
		p.answer = nil
	}
	if f.carried() {
		w.lookAtPaired(f)
		p.carrier.Reset(f.closing.reason, f.closing.err)
	}
}

// carried reports whether a carrier has the flow's socket.
func (f *flow) carried() bool { return f.phase == phasePaired && f.paired.carrier != nil }

// lookAtPaired updates a flow from its carrier's figures.
func (w *worker) lookAtPaired(f *flow) {
	if !f.carried() {
		return
	}
	p := f.paired
	now := p.carrier.Figures()
	p.seen = pairSeen{state: now.State, retained: now.Retained, lanes: now.Lanes, resumes: now.Resumes, outage: now.Outage, rtt: now.RTT}
	f.dirs[up].bytes, f.dirs[down].bytes = now.BytesUp, now.BytesDown
	f.dirs[p.leg].held = int(now.Retained)
	f.active = max(f.active, w.now-now.Idle)
	if p.leg == client && now.Target.IsValid() {
		f.target = now.Target
	}
}

// sockets calls look with the flow's sockets; -1: none. A carrier may have them.
func (f *flow) sockets(look func(fds [2]int)) {
	p := f.paired
	if !f.carried() {
		look([2]int{int(f.legs[client].fd), int(f.legs[target].fd)})
		return
	}
	p.carrier.Inspect(func(leg, lane int, add PairCounters) {
		p.add = add
		fds := [2]int{leg, lane}
		if p.leg == target {
			fds = [2]int{lane, leg}
		}
		look(fds)
	})
}

// inOutage reports whether a flow delivers nothing because the path between two
// relays is down. Its memory is bounded, and it waits for resume.
func (f *flow) inOutage() bool { return f.paired != nil && f.paired.seen.state == PairResuming }

// isLane reports whether a side of the flow is a lane.
func (f *flow) isLane(s side) bool { return f.carried() && f.paired.lane() == s }

// waitsForPath reports whether a paired flow delivers nothing because of the path between two
// relays, at the moment.
func (f *flow) waitsForPath() bool { return f.carried() && f.paired.carrier.WaitsForPath() }

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
	legs[p.lane()].RTT = units.Seconds(p.seen.rtt)
	rec.Resumes, rec.Outage = int64(p.seen.resumes), units.Seconds(p.seen.outage)
}

// sampleLane fills in the side of the lane, which no transport has looked at for
// this flow, and makes its counters the flow's.
func (f *flow) sampleLane(s *report.Sample) {
	l := &s.ClientLeg
	if f.paired.leg == client {
		l = &s.TargetLeg
	}
	l.Side = wanSide
	add := f.paired.add
	l.Info.BytesSent += uint64(add.BytesSent)
	l.Info.BytesRetrans += uint64(add.BytesRetransmitted)
	l.Info.TotalRetrans += uint32(add.Retransmits)
	if f.carried() && f.paired.seen.lanes > 1 {
		s.Lanes = f.paired.carrier.EachLane()
	}
}

// pairedDue sets what only a lasting connection needs.
func (w *worker) pairedDue(f *flow) {
	if !f.lasting {
		return
	}
	if at := f.start + lastingAge; w.now < at {
		w.timers.schedule(f, at)
		return
	}
	f.lasting = false
	f.sockets(func(fds [2]int) {
		if fds[target] >= 0 {
			w.makeLasting(f, fds[target])
		}
	})
}

// pairSnapshot is the part of a flow's snapshot that only a paired flow has.
func (f *flow) pairSnapshot() *PairSnapshot {
	if f.paired == nil {
		return nil
	}
	s := &f.paired.seen
	return &PairSnapshot{
		RetainedBytes: s.retained,
		Lanes:         s.lanes,
		Resumes:       s.resumes,
		OutageSeconds: s.outage.Seconds(),
		RTTSeconds:    s.rtt.Seconds(),
	}
}
