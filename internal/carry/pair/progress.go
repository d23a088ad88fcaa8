package pair

import (
	"math"
	"slices"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/socket"
	"longhaul/internal/sys/tcpinfo"
)

// A kernel's acknowledgement says that another kernel has bytes, not that the other relay does: a box
// between them may have stopped, and a window that stays closed may be that of a connection which
// nobody knows any more. So what counts is what the other relay acknowledges. A sender whose bytes
// make no progress says on the control connection what is on its way (SENT). A receiver that has room
// and gets none of it says so (LATE), and another lane takes the place of the one that has it.
// docs/design/pairs-outage.md has the table of all that a flow may wait for.

const (
	// greetWithin is the shortest time for the HELLO of a lane that a flow has already.
	greetWithin = handshakeTimeout / 2
	hedgeAfter  = 200 * time.Millisecond // of an OPEN without an answer
	// maxLates is how often the other end of a sealed flow may say that bytes are missing, and get none
	// of them by another lane. Then somebody on the path keeps them back.
	maxLates = 4
)

// answerWithin is how long the other relay may take for an answer without which the lane is lost.
func (fw *flowWatch) answerWithin() time.Duration {
	f := fw.flow()
	if f.s.noResume {
		return f.s.answerWithin(f.s.node.options.LateNoResume, 8)
	}
	return f.s.answerWithin(pongWithin, 8)
}

// watchLanes closes lanes that carry nothing any more; others carry what was on them.
func (fw *flowWatch) watchLanes(now time.Time) {
	f := fw.flow()
	for _, st := range slices.Clone(f.lanes.all) {
		if st.gone {
			continue
		}
		why := fw.whyDead(st, now)
		if why == "" {
			continue
		}
		f.s.debug("lane given up", why)
		alone := len(f.lanes.all) == 1
		st.l.closeByReset()
		f.lanes.lose(st.l)
		st.l.path.suspicious()
		if alone {
			f.s.dropWarm(st.l.path) // what made this lane silent has likely met them too
		}
	}
}

// whyDead says why a lane carries nothing any more, and nothing of one that does.
func (fw *flowWatch) whyDead(st *subflow, now time.Time) string {
	f := fw.flow()
	l, within := st.l, f.s.suspectWithin()
	waits := fw.ackedAt.until(now) > within
	if len(f.lanes.all) > 1 {
		waits = st.since.until(now) > within && (!st.ready || f.sf.Out.Carries(&st.sent))
	}
	switch {
	case !f.s.near && l.isDead(): // it went from this flow to another one before it ended
		return "it has ended"
	case l == f.lanes.main() && f.s.near && fw.unheardOn(l) && fw.askedFor(st, now) > f.s.answerWithin(hedgeAfter, 3) && !fw.greeted(l):
		return "no answer to OPEN"
	case fw.unanswered(st, now):
		return "no answer of the other relay"
	case !f.s.noResume && waits && stuck(l.bulk, within): // without resumption the kernel decides
		return "no acknowledgement"
	case !f.leg.writable && f.moved.until(now) > 2*tickEvery && isClosed(l.bulk): // else the reader sees it
		return "closed by the kernel"
	case st.stuckAt.waited(now, f.s.answerWithin(pongWithin, 8)):
		// What is missing may wait behind what this end has no memory for.
		return "no room for what came before its turn"
	case fw.takesNothing(st, now):
		return "no room, and the other relay has everything"
	}
	return ""
}

// takesNothing reports that a lane has no room for what is to be sent although the other relay has
// everything that went out, so that it can read what the lane has. Nothing is missing there, of which
// it would tell.
func (fw *flowWatch) takesNothing(st *subflow, now time.Time) bool {
	return st.roomAt.waited(now, fw.flow().s.answerWithin(suspectAfter, 4)) && fw.arrived() && isShut(st.l.bulk)
}

// unanswered reports that the far relay has not answered the ATTACH or the RELEASE that a lane has
// brought to a kernel at least.
func (fw *flowWatch) unanswered(st *subflow, now time.Time) bool {
	f := fw.flow()
	main := st.l == f.lanes.main()
	within := fw.answerWithin()
	if !st.l.answered.Load() { // the far relay computes the handshake first
		within = max(within, f.s.answerWithin(greetWithin, 8))
	}
	switch {
	case !f.s.near:
		return false
	case main && f.near.releasing && st.sentAt.until(now) > within && fw.arrived():
	case st.attaching && st.since.until(now) > within:
	default:
		return false
	}
	return !holds(st.l.bulk) || isShut(st.l.bulk)
}

// arrived reports that the other end has everything that went out, so that it comes to what follows.
func (fw *flowWatch) arrived() bool {
	_, _, some := fw.flow().sf.Out.OnTheWay()
	return !some
}

// watchOpen has the OPEN of a flow go on the control connection too, once, if its lane has brought it
// to a kernel and the far relay does not seem to have it: a repeated one dials nothing. Where it may
// not, it reports true when the far relay has had all its time, and a handshake's.
func (fw *flowWatch) watchOpen(now time.Time) (lost bool) {
	f := fw.flow()
	if f.phase != phaseAsked || f.lanes.main() == nil || f.s.sealed() || f.opening == nil {
		return false
	}
	waited := min(f.lanes.all[0].since.until(now), f.s.upSince(now))
	if f.s.knows(wire.FeatureAhead) && f.need.wokeAt.IsZero() && waited > fw.answerWithin() {
		f.need.wokeAt, f.near.openDue = stampOf(now), true
		f.s.post(f, true)
	}
	return f.s.noResume && waited > f.opening.Deadline+fw.answerWithin()
}

// watchGap tells the other end that bytes are missing: their lane brings nothing, others do or have,
// and it is not the flow's own socket that has no room.
func (fw *flowWatch) watchGap(now time.Time) {
	f := fw.flow()
	pos := f.sf.In.Position()
	switch {
	case !f.sf.In.Lacks():
		fw.gap = nil
		return
	case fw.gap == nil:
		fw.gap = &gap{pos, stampOf(now)}
		return
	case fw.gap.at != pos || f.lanes.main() == nil || !f.leg.open() || !f.leg.writable:
		*fw.gap = gap{pos, stampOf(now)}
		return
	}
	if within := fw.lateAfter(); fw.gap.since.until(now) > within && (f.sf.In.Spilled() > 0 || !fw.brings(within, now)) {
		fw.gap.since = stampOf(now)
		f.s.offer(wire.Message{Type: wire.MessageLate, Flow: f.id, Offset: pos})
	}
}

// lateAfter is how long the position of a flow stands still until it counts as held up.
func (fw *flowWatch) lateAfter() time.Duration {
	f := fw.flow()
	switch {
	case f.sf.In.Merges():
		return max(f.s.answerWithin(suspectAfter, 4), 4*f.spread.slowestLane())
	case f.s.noResume:
		return fw.answerWithin()
	}
	return f.s.answerWithin(suspectAfter, 4)
}

// brings reports that something has come on one of the flow's lanes of late, or waits here to be read.
// It may be a part of a record, which counts when it is whole: that, and what somebody else sends on a
// lane in clear, is waited for only so long.
func (fw *flowWatch) brings(within time.Duration, now time.Time) (yes bool) {
	f := fw.flow()
	for _, st := range f.lanes.all {
		st.l.mu.Lock()
		since := st.l.reachedAt.until(now)
		st.l.mu.Unlock()
		if since < within {
			return true
		}
		if f.s.sealed() && since > max(f.s.node.options.LateNoResume, within) {
			continue
		}
		yes = yes || kernelSays(st.l.bulk, func(i *tcpinfo.Info) bool { return i.LastDataRecv < within })
		st.l.bulk.control(func(fd int) { yes = yes || readable(fd) })
	}
	return yes
}

// tellSent tells the other end how much has gone out, if nothing shows that it has arrived: once,
// until more does. The caller holds f.mu.
func (fw *flowWatch) tellSent(now time.Time) {
	f := fw.flow()
	to, end, some := f.sf.Out.OnTheWay()
	if !some || fw.toldSent || !f.s.knows(wire.FeatureSent) || f.s.near && !f.phase.known() {
		return
	}
	if !f.s.noResume && fw.ackedAt.until(now) < f.s.answerWithin(suspectAfter, 4) {
		return
	}
	for _, st := range f.lanes.all {
		within := f.s.answerWithin(pongWithin, 8)
		if f.s.noResume && (st.sentAt.until(now) < within || holds(st.l.bulk) && !keptShut(st.l.bulk, within)) {
			return // nobody acknowledges what has arrived
		}
	}
	m := wire.Message{Type: wire.MessageSent, Flow: f.id, Offset: to}
	if end {
		m.Flags = wire.FlagEnd
	}
	fw.toldSent = f.s.offer(m)
}

// takeLate takes the news that bytes at an offset are missing at the other end. Another lane
// brings them; a flow that keeps nothing is cut, unless its kernel may still bring them.
func (fw *flowWatch) takeLate(offset uint64, now time.Time) {
	f := fw.flow()
	if f.sf.Out.AtRisk() {
		if f.lanes.main() != nil && (!holds(f.lanes.main().bulk) || keptShut(f.lanes.main().bulk, f.s.node.options.LateNoResume)) {
			f.abort(cause(flow.EndWANLost, errMissing))
		}
		return
	}
	if f.sf.Out.WillSend(offset) { // the lane that had it was lost meanwhile
		f.lanes.closeThose(func(st *subflow) bool { return st.busy && max(st.since, st.sentAt).until(now) > f.s.suspectWithin() })
		return
	}
	carries := func(st *subflow) bool { return f.sf.Out.CarriesAt(&st.sent, offset) }
	if slices.ContainsFunc(f.lanes.all, func(st *subflow) bool { return carries(st) && moves(st.l.bulk) }) {
		return // it is slow, and the kernel finds out whether it is more than that
	}
	if fw.lates < math.MaxUint8 {
		fw.lates++
	}
	if fw.lates > maxLates && f.s.sealed() {
		f.abort(cause(flow.EndDamaged, errMissing))
		return
	}
	if !f.lanes.closeThose(carries) {
		f.lanes.loseAll() // the position at which a lane began was wrong
	}
}

// tooLate reports that the other end has said for as long as flows wait that bytes are missing, and got
// none: by lane after lane, each with a time of its own.
func (fw *flowWatch) tooLate(resume time.Duration) bool {
	return fw.lates == math.MaxUint8 || time.Duration(fw.lates)*fw.flow().s.suspectWithin() > resume
}

// greeted reports that an OPEN that has no answer waits only for the far relay's
// target: the far relay has all bytes, or somebody who acknowledges for it.
func (fw *flowWatch) greeted(l *lane) bool {
	acked := false
	l.bulk.control(func(fd int) { acked = socket.Unacknowledged(fd) == 0 })
	return acked
}

// askedFor is how long a near flow has waited for a sign of its first lane. In a sealed session it
// counts from the latest bytes that went out: a client may be silent for long before its first ones.
func (fw *flowWatch) askedFor(st *subflow, now time.Time) time.Duration {
	f := fw.flow()
	if !f.s.sealed() {
		return f.lanes.all[0].since.until(now)
	}
	return min(f.lanes.all[0].since.until(now), st.sentAt.until(now))
}

// unheardOn reports that nothing shows that a near flow's first lane leads to the far relay.
func (fw *flowWatch) unheardOn(l *lane) bool {
	f := fw.flow()
	if !f.s.sealed() {
		return !f.phase.known()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return f.sf.Out.Acknowledged() == 0 && l.reached == 0
}
