package pair

import (
	"errors"
	"time"

	"longhaul/internal/carry/flow"
)

// sweepEvery is the time between two looks at flows that rest, in ticks. Others are
// looked at each tick.
const sweepEvery = 100

// look finds what has taken too long. It reports whether the flow, which has a target, waits for a lane.
func (fw *flowWatch) look(now time.Time, w wait) (resuming bool) {
	f := fw.flow()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.phase == phaseOver {
		return false
	}
	if !f.sf.Out.InFlight() && !f.sf.Out.EndInFlight() && !f.lanes.attaching() && !f.near.releasing {
		fw.ackedAt = stampOf(now) // nothing waits: neither bytes nor an ATTACH or a RELEASE
	}
	fw.watchLanes(now)
	unanswered, ctl := fw.watchOpen(now), f.s.control()
	fw.watchGap(now)
	fw.tellSent(now)
	f.spread.adjust(now)
	switch {
	case !f.phase.unheard() && (w.down && !fw.onOwn() || fw.tooLate(w.resume) || f.need.since.waited(now, w.resume) && (w.outage || f.s.stands(w.resume, now))):
		f.giveUp(f.s.whyLost())
	case unanswered:
		f.giveUp(cause(flow.EndWANLost, errors.New("no answer to OPEN")))
	case ctl != nil && f.phase == phaseFresh && f.near.misled():
		f.giveUp(cause(flow.EndDenied, errOnePort))
	case fw.unserved(now, w):
		f.giveUp(f.s.whyDown())
	case !f.sf.Dead() && !f.sf.Clean():
		fw.watchReset(now)
		fw.watchSilence(now)
	}
	if !f.running && !f.leg.parkable() || f.leg.failed {
		f.wake()
	}
	if f.sf.Out.Kept() > 0 && f.leg.canRead() {
		f.wake() // the budget may have held it back, or a crowd
	}
	f.need.again(now)
	f.need.goAhead()          // there may be room by now
	fw.setResting(fw.quiet()) // wake undoes it
	return f.phase == phaseOpen && !f.need.since.IsZero()
}

// unserved reports that a near flow's client has waited long enough for a lane: for its
// deadline, in which an outage does not count, since its end found no lane ready, nor a crowd
// for which lanes are being made. With these that is no longer than others wait.
func (fw *flowWatch) unserved(now time.Time, w wait) bool {
	f := fw.flow()
	if f.phase != phaseFresh || f.opening == nil {
		return false
	}
	waited, deadline := f.opening.began.until(now), f.opening.Deadline+f.s.strained()
	return waited > deadline && (waited > w.resume || !w.outage && !w.makes && w.after > deadline) && f.s.stands(deadline, now)
}

// onOwn reports that the flow goes on without a control connection: the kernel decides how
// long its lane lives.
func (fw *flowWatch) onOwn() bool {
	f := fw.flow()
	return f.lanes.main() != nil && f.s.noResume && !f.sf.Dead() && !f.endsUntold()
}

// watchReset passes on a reset of the flow's own socket that nobody reads, because what
// comes before it does not get away: after a time, without that.
func (fw *flowWatch) watchReset(now time.Time) {
	f := fw.flow()
	if !f.leg.failed || f.sf.In.Ended() || !f.lanes.blocked() && !f.sf.Out.Full() {
		return
	}
	f.leg.noteCut(stampOf(now))
	if f.leg.cutSince().until(now) <= f.leg.options.ResetDrain {
		return
	}
	err := f.leg.failure()
	if err == nil {
		f.leg.failed, f.leg.cut.since = false, 0
		return
	}
	f.leg.broken = true
	f.abort(legCause(f.s.near, err))
	for _, l := range f.lanes.blockedLanes() {
		l.close()
		f.lanes.lose(l)
	}
}

// watchSilence parks a flow that is silent, and cuts one short that a reset waits for.
func (fw *flowWatch) watchSilence(now time.Time) {
	f := fw.flow()
	silent := f.moved.until(now)
	cut := f.sf.Cutting()
	if cut {
		f.leg.noteCut(stampOf(now))
	}
	switch {
	case cut && f.leg.cutSince().until(now) > f.leg.options.ResetDrain && f.need.since.IsZero():
		f.sf.CutNow()
		f.wake()
	case f.s.near && f.phase.known() && f.lanes.main() != nil && f.leg.writable && !f.near.releasing && silent > f.s.parkAfter(f.s.node.options.ParkAfter) && f.sf.Quiet():
		f.lanes.releaseFrom(1)
		f.near.releaseDue, f.near.gaveBack = true, silent <= f.s.node.options.ParkAfter
		f.wake()
	}
}

// again has bytes go ahead again, which the other end may have had no room for. The far
// relay asks again for a lane.
func (nd *laneNeed) again(now time.Time) {
	f := nd.flow()
	if f.lanes.main() != nil || nd.wokeAt.IsZero() || nd.wokeAt.until(now) < f.s.answerWithin(time.Second, 4) {
		return
	}
	nd.wokeAt = 0
	if f.sf.NeedsLane() {
		f.wake()
	}
}

// quiet reports that the flow is parked and waits for events alone.
func (fw *flowWatch) quiet() bool {
	f := fw.flow()
	return f.lanes.main() == nil && f.phase == phaseOpen && !f.running && !f.near.queued && !f.near.wanted && !f.leg.failed &&
		f.need.since.IsZero() && f.need.wokeAt.IsZero() && f.sf.Quiet() && f.leg.parkable()
}

// wait is what flows without a lane have to wait for.
type wait struct {
	resume time.Duration // so long at most
	outage bool          // the control connection is away, for less than resume
	down   bool          // for longer
	makes  bool          // it stands, or is about to, and lanes are being made, as far as is known
	after  time.Duration // since the end of the latest outage; without one, and after resume, endless
}
