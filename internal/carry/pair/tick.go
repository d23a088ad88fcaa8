package pair

import (
	"math"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/stream"
)

// watch finds what has taken too long.
func (f *Flow) watch(now time.Time, w wait) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.phase == phaseOver {
		return
	}
	if base := f.sf.Out.Acknowledged(); base != f.ackedBase || !f.sf.Out.InFlight() && !f.sf.Out.EndInFlight() {
		f.ackedBase, f.ackedAt = base, stampOf(now)
	}
	f.watchLanes(now)
	f.watchOpen(now)
	f.watchGap(now)
	f.tellSent(now)
	f.adjustLanes(now)
	switch {
	case !f.phase.unheard() && (w.down && !f.onOwn() || f.tooLate(w.resume) || f.needSince.waited(now, w.resume) && (w.outage || f.s.stands(w.resume, now))):
		f.giveUp(f.s.whyLost())
	case f.unserved(now, w):
		f.giveUp(f.s.whyDown())
	case !f.sf.Dead() && !f.sf.Clean():
		f.watchReset(now)
		f.watchSilence(now)
	}
	if !f.running && !f.parkable() || f.leg.failed {
		f.wake()
	}
	if f.sf.Out.Kept() > 0 && f.canRead() {
		f.wake() // the budget may have held it back, or a crowd
	}
	f.watchWake(now)
	f.goAhead() // there may be room by now
	f.rest(now)
}

// unserved reports that a near flow's client has waited long enough for a lane: for its
// deadline, in which an outage does not count, since its end found no lane ready, nor a crowd
// for which lanes are being made. With these that is no longer than others wait.
func (f *Flow) unserved(now time.Time, w wait) bool {
	if f.phase != phaseFresh || f.opening == nil {
		return false
	}
	waited, deadline := f.start.until(now), f.opening.Deadline+f.s.strained()
	return waited > deadline && (waited > w.resume || !w.outage && !w.makes && w.after > deadline) && f.s.stands(deadline, now)
}

// onOwn reports that the flow goes on without a control connection: the kernel decides how
// long its lane lives.
func (f *Flow) onOwn() bool {
	return f.lane() != nil && f.s.noResume && !f.sf.Dead() && !f.endsUntold()
}

// giveUp ends the flow without its peer.
func (f *Flow) giveUp(c stream.Cause) {
	if !f.s.near && f.sf.Out.Acknowledged() == 0 { // else the near relay knows that the target was dialed
		f.s.owe(f.id, stream.Cause{})
	}
	f.sf.Abort(c)
	f.sf.PeerGone(c)
	f.wake()
}

// watchReset passes on a reset of the flow's own socket that nobody reads, because what
// comes before it does not get away: after a time, without that.
func (f *Flow) watchReset(now time.Time) {
	if !f.leg.failed || f.sf.In.Ended() || !f.blocked() && !f.sf.Out.Full() {
		return
	}
	if f.cutSince.IsZero() {
		f.cutSince = stampOf(now)
	}
	if f.cutSince.until(now) <= f.legs.ResetDrain {
		return
	}
	err := f.leg.failure()
	if err == nil {
		f.leg.failed, f.cutSince = false, 0
		return
	}
	f.leg.broken = true
	f.abort(legCause(f.s.near, err))
	for _, l := range f.blockedLanes() {
		l.close()
		f.loseLane(l)
	}
}

// watchSilence ends or parks a flow that is silent.
func (f *Flow) watchSilence(now time.Time) {
	silent := f.moved.until(now)
	half := f.sf.Out.Ended() != f.sf.In.Ended()
	cut := f.sf.Cutting()
	if cut && f.cutSince.IsZero() {
		f.cutSince = stampOf(now)
	}
	switch {
	case cut && f.cutSince.until(now) > f.legs.ResetDrain && f.needSince.IsZero():
		f.sf.CutNow()
		f.wake()
	case half && silent > f.legs.HalfClose:
		f.abort(cause(flow.EndHalfClosed, nil))
	case f.legs.Idle > 0 && silent > f.legs.Idle:
		f.abort(cause(flow.EndIdle, nil))
	case f.s.near && f.phase.known() && f.lane() != nil && f.leg.writable && !f.releasing && silent > f.s.parkAfter(f.s.node.options.ParkAfter) && f.sf.Quiet():
		f.releaseFrom(1)
		f.releaseDue, f.gaveBack = true, silent <= f.s.node.options.ParkAfter
		f.wake()
	}
}

// watchWake has bytes go ahead again, which the other end may have had no room for. The far
// relay asks again for a lane.
func (f *Flow) watchWake(now time.Time) {
	if f.lane() != nil || f.wokeAt.IsZero() || f.wokeAt.until(now) < f.s.answerWithin(time.Second, 4) {
		return
	}
	f.wokeAt = 0
	if f.sf.NeedsLane() {
		f.wake()
	}
}

// rest takes a parked flow from those that are looked at each tick, unless something is
// due before the next sweep but one. wake undoes it. The caller holds f.mu.
func (f *Flow) rest(now time.Time) {
	f.setResting(f.quiet() && f.silenceLeft(now) > 2*sweepEvery*tickEvery)
}

// quiet reports that the flow is parked and waits for events alone.
func (f *Flow) quiet() bool {
	return f.lane() == nil && f.phase == phaseOpen && !f.running && !f.queued && !f.wanted && !f.leg.failed &&
		f.needSince.IsZero() && f.wokeAt.IsZero() && f.sf.Quiet() && f.parkable()
}

// silenceLeft is the time until silence ends the flow.
func (f *Flow) silenceLeft(now time.Time) time.Duration {
	bound := time.Duration(math.MaxInt64)
	if f.sf.Out.Ended() != f.sf.In.Ended() {
		bound = f.legs.HalfClose
	}
	if f.legs.Idle > 0 {
		bound = min(bound, f.legs.Idle)
	}
	return bound - f.moved.until(now)
}

func (f *Flow) setResting(on bool) {
	if f.resting == on {
		return
	}
	if f.resting = on; on {
		f.cond = cond{} // who waited was woken when the flow lost its lane
	}
	f.s.setResting(f, on)
}
