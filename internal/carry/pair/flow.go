package pair

import (
	"errors"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/compress"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/socket"
	"longhaul/internal/words/units"
)

// Flow is one flow of a pair, at either end. While it has a lane or something to do, a
// goroutine reads its own socket and sends; the lane's goroutine writes to the socket.
// A parked flow has none.
type Flow struct {
	s  *session
	id uint64

	mu   sync.Mutex
	cond cond // of mu: anything changed
	sf   stream.Flow
	leg  leg
	lane *lane // the main one; nil: none

	strands   []*strand // the lanes, the main one first
	wantLanes int       // near: so many lanes are to carry the flow
	burstFrom uint64    // what had been moved, both ways, when it last began to move
	mix       *mix      // what is known of several lanes; nil: nothing
	gapAt     uint64    // the position as a receiver
	gapSince  stamp     // since when it stands there, though bytes beyond it are here

	near       bool
	known      bool  // near: the far relay knows the flow
	sent       bool  // near: an OPEN was sent
	dialing    bool  // far: Dial has not returned
	opened     bool  // far: the target is connected; near: OPENED came
	openedDue  bool  // far: OPENED is to be sent
	openDue    bool  // near: OPEN is to be sent on the control connection
	toldSent   bool  // the other end was told how much has gone out
	lates      uint8 // how often the other end has said that bytes lack, since it last acknowledged some; 255: more often
	running    bool  // the goroutine exists
	finished   bool
	legFailed  bool
	told       bool // the other end has said why the flow is cut
	blocked    bool // the goroutine writes to the lane
	releasing  bool // near: RELEASE is offered, and unanswered
	releaseDue bool
	queued     bool        // waits for a lane (near)
	needsOpen  bool        // near, under the link's lock: the lane that it waits for is to bring its OPEN
	wanted     bool        // near: the far relay wants a lane for it
	gaveBack   bool        // near: its latest lane, to a crowd, and has the first one when it needs one again
	lost       bool        // a lane, and none has come in its place
	attaching  bool        // near: the lane's ATTACH has no answer yet
	copyNext   bool        // the next bytes of the flow's own socket are too few to pass unseen, or none
	dirty      bool        // an ACK or RESET waits for the control connection
	resting    bool        // parked: watch looks at it only now and then
	over       atomic.Bool // finished, for those who cannot take mu
	resumes    int32
	joining    int32 // near: lanes that are on their way to it

	opening *wire.Open // near: the OPEN; nil once OPENED has come
	target  string
	legs    *flow.LegOptions
	done    func(flow.End)

	start     stamp
	moved     stamp // the latest byte
	laneSince stamp // of the lane's OPEN, or the answer to its ATTACH
	ackedAt   stamp // of the latest progress of what is unacknowledged
	ackedBase uint64
	needSince stamp // without a lane that it needs; zero: not so
	wokeAt    stamp // of the latest WAKE; zero: none is waiting for its lane
	cutSince  stamp // a reset waits for bytes before it
	outage    time.Duration
	lanes     sentOver
	policy    atomic.Pointer[compress.Policy] // of what it sends; nil: it has sent nothing that may be compressed
}

const ackEvery = 256 << 10

func newFlow(s *session, id uint64, near bool, legs flow.LegOptions) *Flow {
	now := stampNow()
	f := &Flow{s: s, id: id, near: near, start: now, moved: now, ackedAt: now, leg: leg{fd: -1}}
	f.legs = withDefaults(legs)
	f.sf.Init(&s.node.budget, limitStart)
	return f
}

// takeLeg gives the flow its socket. The caller holds f.mu or is alone.
func (f *Flow) takeLeg(fd int) error {
	prepareLeg(fd)
	f.leg = leg{fd: fd, readable: true, writable: true}
	return f.s.node.poller.add(fd, f)
}

// event takes what the poller saw.
func (f *Flow) event(fd int, events uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leg.fd != fd {
		return
	}
	was := f.leg
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		f.leg.readable = true
	}
	if events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		f.leg.writable = true
	}
	f.leg.failed = f.leg.failed || events&(unix.EPOLLERR|unix.EPOLLHUP) != 0
	if was.readable && was.writable && events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) == 0 {
		f.mute(true) // bytes come faster than they are read
		return
	}
	f.wake()
}

// mute has the poller report no bytes that arrive, while nobody waits for them.
func (f *Flow) mute(on bool) {
	if f.leg.muted == on {
		return
	}
	f.leg.muted = on
	f.s.node.poller.change(f.leg.fd, !on)
}

// wake makes the flow's goroutine look again. The caller holds f.mu.
func (f *Flow) wake() {
	f.cond.broadcast()
	f.setResting(false)
	if !f.running && !f.finished {
		f.running = true
		f.s.node.tasks.Go(f.run)
	}
}

func (f *Flow) run() {
	f.mu.Lock()
	for f.step() {
	}
	f.running = false
	end := f.takeEnd()
	f.mu.Unlock()
	if end != nil {
		end()
	}
}

// step does the next thing and reports whether the goroutine stays.
func (f *Flow) step() bool {
	f.sf.Out.Trim()
	if f.near && !f.sent && f.sf.Dead() {
		f.sf.PeerGone(stream.Cause{}) // the far relay has never heard of it
	}
	f.sf.ResetLocal()
	f.noteNeed()
	f.postDue()
	switch {
	case f.finished:
		return false
	case f.closeLeg():
		return true
	case f.sf.Over() && !f.leg.open() && !f.dialing:
		f.leaveLane()
		f.finished = true
		f.over.Store(true)
		f.sf.Finish()
		return false
	case f.deliverSpill(), f.passEnd():
		return true
	case f.lane != nil && f.sendNext(), f.passOut():
		return true
	case f.readLeg():
		return true
	case f.checkFailed():
		return true
	case f.lane == nil && f.parkable():
		return false
	}
	if f.lane == nil {
		f.await()
	} else {
		f.cond.wait(&f.mu)
	}
	return true
}

// parkable reports that only events wake the flow.
func (f *Flow) parkable() bool {
	return !f.canRead() && f.leg.busy == 0
}

// canRead reports that the flow's own socket may have bytes for which there is room.
func (f *Flow) canRead() bool {
	return f.leg.open() && f.leg.readable && f.sf.Hungry() && !f.sf.Out.Full() && f.s.node.budget.room() && !f.crowdedOut()
}

// sendNext sends what is due on the lane, if anything is and the lane has no goroutine that
// does it.
func (f *Flow) sendNext() bool {
	st := f.strands[0]
	if f.releasing {
		return false
	}
	some := f.sf.Out.Pending()
	switch {
	case f.releaseDue && (some || st.greet != nil || !f.sf.Quiet() || len(f.strands) > 1):
		f.releaseDue = false
	case f.releaseDue:
		f.releaseDue, f.releasing, st.sentAt = false, true, stampNow()
		st.greet = wire.AppendRelease(nil, 0, f.sf.In.Position())
		st.cond.broadcast()
	}
	if st.pumped || st.greet == nil && !some {
		return false
	}
	var item stream.Item
	if some {
		if !f.sf.Out.InFlight() {
			f.ackedAt = stampNow()
		}
		item, some = f.sf.Out.Next(&st.sent, stream.ChunkMax)
	}
	f.blocked = true
	f.sendOn(st, item, some)
	f.blocked = false
	return true
}

// readLeg reads the flow's own socket once, if it may have something.
func (f *Flow) readLeg() bool {
	if !f.leg.open() || !f.leg.readable || !f.sf.Hungry() || f.crowdedOut() {
		return false
	}
	if f.sf.Out.Starved() && f.sf.Out.Limit() < limitMax {
		f.setWindow()
	}
	b := f.sf.Out.Space()
	if b == nil {
		return false
	}
	f.leg.readable = false
	f.leg.busy++
	f.mu.Unlock()
	n, err := recv(f.leg.fd, b)
	f.mu.Lock()
	f.release()
	switch {
	case n > 0:
		f.leg.readable, f.copyNext = true, n < minSplice
		f.sf.Out.Commit(n)
		f.moved = stampNow()
		f.feed()
	case err == unix.EAGAIN:
		f.sf.Out.Trim()
		f.mute(false)
	case err == nil && f.leg.reset != nil:
		f.failLeg(f.leg.reset)
	case err == nil:
		// The kernel reports a reset to one call only. If a write on another thread has got
		// it, this read returns 0 as at an end.
		for f.leg.busyOut {
			f.await()
		}
		if !f.leg.open() || !f.sf.Hungry() {
			return true
		}
		f.leg.readable = true
		f.sf.Out.End()
		f.moved = stampNow()
		f.feed()
	default:
		f.failLeg(err)
	}
	return true
}

// release ends a call that uses the descriptor without the flow's lock. It wakes nobody who
// does not wait for that: each wakeup costs more than the lock.
func (f *Flow) release() {
	f.leg.busy--
	if f.leg.awaited {
		f.leg.awaited = false
		f.cond.broadcast()
	}
}

// await waits for the end of such calls, or for any other news.
func (f *Flow) await() {
	f.leg.awaited = f.leg.awaited || f.leg.busy > 0
	f.cond.wait(&f.mu)
}

// failLeg takes a failure of the flow's own socket.
func (f *Flow) failLeg(err error) {
	f.legFailed = true
	f.sf.LocalReset(legCause(f.near, err))
}

// checkFailed looks at a socket that has an error and that nobody reads.
func (f *Flow) checkFailed() bool {
	if !f.leg.open() || !f.leg.failed || f.sf.Dead() {
		return false
	}
	if f.sf.Hungry() {
		return false // reading finds it, in its place
	}
	f.leg.failed = false
	if f.sf.In.Ended() {
		return false // both directions are shut down: the ordinary end
	}
	err := f.leg.failure()
	if err != nil {
		f.failLeg(err)
	}
	return err != nil
}

// closeLeg closes the socket once it has nothing left to do, and reports whether it
// did something.
func (f *Flow) closeLeg() bool {
	if !f.leg.open() || !f.sf.Clean() && !f.sf.Dead() {
		return false
	}
	if f.sf.Clean() {
		f.leaveLane()
	}
	if f.leg.busy > 0 {
		f.await()
		return true
	}
	clean := f.sf.Clean() && !f.legFailed
	if f.mustDrain(clean) {
		if f.cutSince.IsZero() {
			f.cutSince = stampNow()
		}
		f.sleep()
		return true
	}
	setReset(f.leg.fd, !clean)
	f.s.node.poller.remove(f.leg.fd)
	if f.legs.Closing != nil {
		f.legs.Closing(f.leg.fd)
	}
	unix.Close(f.leg.fd)
	f.leg.fd = -1
	return true
}

// mustDrain reports whether the socket's peer is to get more before the close.
func (f *Flow) mustDrain(clean bool) bool {
	_, byPeer := f.sf.Cause()
	if f.legFailed || !clean && !byPeer || socket.Unacknowledged(f.leg.fd) == 0 || f.leg.isClosed() {
		return false
	}
	within := f.legs.ResetDrain
	if clean {
		within = f.legs.HalfClose
	}
	return (f.cutSince.IsZero() || f.cutSince.since() < within) && !f.s.node.closing.Load()
}

// sleep waits a moment for an acknowledgement of the socket's peer, which is no event.
func (f *Flow) sleep() {
	wait := min(max(f.cutSince.since()/8, time.Millisecond), 200*time.Millisecond)
	f.mu.Unlock()
	time.Sleep(wait)
	f.mu.Lock()
}

// leaveLane gives the lanes back, or has them drained of what may still come.
func (f *Flow) leaveLane() {
	strands := f.strands
	if len(strands) == 0 {
		return
	}
	f.releasing = false
	f.dropStrands()
	f.sf.Detach()
	f.cond.broadcast()
	for _, st := range strands {
		l := st.l
		l.mu.Lock()
		l.settle() // the release may come after the end
		sawEnd := l.sawEnd || f.s.sealed.Load() && f.sf.In.Complete(l.reached)
		reusable := sawEnd && f.sf.Clean() && !f.sf.In.Merges() // else something may follow the end
		l.mu.Unlock()
		switch {
		case !f.near:
			l.unbind(f)
		case reusable:
			l.unbind(f)
			f.s.pool(l)
		default:
			f.s.drain(f, l)
		}
	}
}

// drain releases a lane on which something of the flow may be under way. It goes to the pool
// once the far relay has answered.
func (s *session) drain(f *Flow, l *lane) {
	l.mu.Lock()
	l.draining, l.since = true, time.Now()
	l.mu.Unlock()
	s.node.tasks.Go(func() { _ = l.release(f, wire.FlagFinal, 0) })
}

// noteNeed keeps account of the time without a lane, and asks for one.
func (f *Flow) noteNeed() {
	need := f.lane == nil && !f.finished && (f.sf.NeedsLane() || f.near && !f.known && !f.sf.Over() && f.leg.open())
	switch {
	case !need && !f.needSince.IsZero():
		f.outage += f.needSince.since()
		f.needSince = 0
		if !f.attaching {
			f.wokeAt = 0
		}
		f.s.waiting.Add(-1)
	case need && f.needSince.IsZero():
		f.needSince, f.wokeAt = stampNow(), 0
		f.s.waiting.Add(1)
	}
	if need && f.near && !f.queued {
		f.s.link.want(f)
	}
	f.goAhead()
}

// postDue tells the session that the control connection has something to carry.
func (f *Flow) postDue() {
	n, urgent := f.sf.AckWaiting()
	if f.s.reportsHeld.Load() {
		n += uint64(f.sf.HeldWaiting())
	}
	now := urgent || f.sf.ResetWaiting() || f.sf.EndWaiting()
	if now || n > 0 {
		f.s.post(f, now || n >= ackEvery)
	}
}

// deliver writes bytes of a lane to the flow's own socket, and waits for its room.
func (f *Flow) deliver(l *lane, offset uint64, b []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heard(l)
	for f.has(l) {
		rest, err := f.sf.In.Data(offset, b)
		switch {
		case errors.Is(err, stream.ErrDamaged):
			f.abort(cause(flow.EndDamaged, errors.New("bytes behind the end")))
			return nil
		case err != nil:
			return err
		case len(rest) == 0:
			f.received()
			return nil
		case !f.leg.open() || !f.leg.writable || f.leg.busy > 0 && f.leg.busyOut:
			f.postDue()
			f.await()
		default:
			f.writeLeg(rest)
		}
	}
	f.received() // the lane may have been lost while its bytes were written
	return nil
}

// writeLeg writes to the flow's own socket once, without waiting.
func (f *Flow) writeLeg(b []byte) {
	fd := f.leg.fd
	f.leg.writable, f.leg.busyOut = false, true
	f.leg.busy++
	f.mu.Unlock()
	n, err := send(fd, b)
	f.mu.Lock()
	f.leg.busyOut = false
	f.release()
	if n > 0 {
		f.sf.Wrote(b[:n])
		f.leg.writable = f.leg.writable || n == len(b)
		f.moved = stampNow()
	}
	if err != nil && err != unix.EAGAIN {
		f.failLeg(os.NewSyscallError("write", err))
	}
}

// received follows each arrival: the flow's state may have changed.
func (f *Flow) received() {
	for f.deliverSpill() {
	}
	f.postDue()
	if f.passEnd() {
		return
	}
	if f.sf.ResetLocal() || !f.running && (f.sf.Dead() || f.sf.Over()) {
		f.wake()
	}
}

// heard notes that the other end knows the flow, and that it voids a RELEASE.
func (f *Flow) heard(l *lane) {
	f.known = true
	if l != nil && f.lane == l && f.releasing {
		f.releasing = false
		f.wake()
		f.feed()
	}
}

// deliverEnd takes the end, and passes it on once all bytes before it are here.
func (f *Flow) deliverEnd(l *lane, length uint64, crc uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heard(l)
	for f.has(l) && !f.sf.Dead() && (!f.leg.open() || f.leg.busyOut) {
		f.await()
	}
	if !f.has(l) {
		return nil
	}
	if err := f.sf.In.End(length, crc); err != nil {
		f.abort(cause(flow.EndDamaged, errEnd))
		return nil
	}
	f.passEnd()
	return nil
}

var errEnd = errors.New("length or sum of the stream differs")

// passEnd passes the end on to the flow's own socket if it is due, and reports whether it
// did something.
func (f *Flow) passEnd() bool {
	if !f.leg.open() || f.leg.busyOut {
		return false
	}
	pass, err := f.sf.In.EndDue()
	if err != nil {
		f.abort(cause(flow.EndDamaged, errEnd))
		return true
	}
	if !pass {
		return false
	}
	if f.sf.Out.Ended() {
		setReset(f.leg.fd, false) // in LAST_ACK the kernel cannot reset; its rest is whole
	}
	if err := f.leg.shut(f.sf.Out.Ended(), !f.near); err != nil {
		f.failLeg(err)
	} else {
		f.sf.EndPassed()
		f.moved = stampNow()
	}
	f.wake()
	return true
}

// abort resets both peers at once. The caller holds f.mu.
func (f *Flow) abort(c stream.Cause) {
	f.sf.Abort(c)
	for _, l := range f.blockedLanes() {
		l.close() // nobody is to wait for its room
	}
	f.wake()
}

// laneLost takes the news that a lane has ended.
func (f *Flow) laneLost(l *lane) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.loseLane(l)
}

// loseLane is laneLost for a caller that holds f.mu.
func (f *Flow) loseLane(l *lane) {
	st := f.strand(l)
	if st == nil {
		return
	}
	l.unbind(f)
	f.releasing, f.releaseDue = false, false
	if f.dropStrand(st); f.lane != nil {
		f.sf.Out.Lost(&st.sent)
		f.feed()
		f.wake()
		return
	}
	f.attaching = false
	atRisk := f.sf.Out.AtRisk()
	f.sf.Detach()
	f.lost = !f.sf.Over() && !atRisk
	if atRisk {
		f.abort(cause(flow.EndWANLost, errNoResume))
	}
	f.wake()
}

// takeEnd returns the report of the end, once.
func (f *Flow) takeEnd() func() {
	if !f.finished || f.s == nil {
		return nil
	}
	s, e, done := f.s, f.end(), f.done
	f.done = nil
	return func() {
		s.forget(f)
		if done != nil {
			done(e)
		}
	}
}

func (f *Flow) end() flow.End {
	e := flow.End{Reason: flow.EndClean, Target: f.targetAddress(), Resumes: int(f.resumes),
		Outage: units.Seconds(f.outage.Truncate(time.Millisecond))} // a lane at once is no outage
	e.Lanes, e.CongestionControl = f.lanes.load(), f.s.laneCongestionControl()
	out, in := int64(f.sf.Out.Acknowledged()), int64(f.sf.In.Position())
	e.BytesUp, e.BytesDown = in, out
	if f.near {
		e.BytesUp, e.BytesDown = out, in
	}
	if c, _ := f.sf.Cause(); !f.sf.Clean() {
		e.Reason, e.Err = reasonOf(c)
		e.ByPeer = f.told
	}
	return e
}

// targetAddress is that of the target; zero: none was dialed. The other relay gives it as text.
func (f *Flow) targetAddress() netip.AddrPort {
	a, _ := netip.ParseAddrPort(f.target)
	return a
}

// Figures implements flow.Carried.
func (f *Flow) Figures() flow.Figures {
	f.mu.Lock()
	defer f.mu.Unlock()
	up, down := int64(f.sf.In.Position()), int64(f.sf.Out.Acknowledged())
	if f.near {
		up, down = down, up
	}
	g := flow.Figures{State: f.state(), BytesUp: up, BytesDown: down, Retained: f.sf.Out.Kept(), Target: f.targetAddress(), Idle: f.moved.since(),
		Lanes: len(f.strands), Resumes: int(f.resumes), Outage: units.Seconds(f.outage), RTT: units.Seconds(f.s.rtt())}
	if !f.needSince.IsZero() {
		g.Outage += units.Seconds(f.needSince.since())
	}
	return g
}

func (f *Flow) state() string {
	switch {
	case f.sf.Dead() || f.sf.Clean():
		return flow.StateDelivering
	case !f.opened:
		return flow.StateDialing
	case !f.needSince.IsZero():
		return flow.StateResuming
	case f.lane == nil:
		return flow.StateParked
	}
	return flow.StateOpen
}

// Inspect implements flow.Carried.
func (f *Flow) Inspect(look func(leg, lane int, add flow.Counters)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sent, looked := f.lanes.load(), false
	for i, st := range f.strands {
		if i > 0 {
			sent = sent.Plus(st.l.unsettled())
		}
	}
	if l := f.lane; l != nil {
		l.mu.Lock()
		add := sent.Minus(l.settled)
		l.mu.Unlock()
		l.bulk.control(func(fd int) { looked = true; look(f.leg.fd, fd, add) })
	}
	if !looked {
		look(f.leg.fd, -1, sent)
	}
}

// Reset implements flow.Carried.
func (f *Flow) Reset(reason flow.EndReason, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.finished && !f.sf.Clean() {
		f.abort(cause(reason, err))
	}
}
