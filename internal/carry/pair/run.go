package pair

import (
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

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
	if f.phase == phaseFresh && f.sf.Dead() {
		f.sf.PeerGone(stream.Cause{}) // the far relay has never heard of it
	}
	f.sf.ResetLocal()
	f.noteNeed()
	f.postDue()
	switch {
	case f.phase == phaseOver:
		return false
	case f.closeLeg():
		return true
	case f.sf.Over() && !f.leg.open() && f.phase != phaseDialing:
		f.leaveLane()
		f.phase.take(eventOver)
		f.over.Store(true)
		f.sf.Finish()
		return false
	case f.deliverSpill(), f.passEnd():
		return true
	case f.lane() != nil && f.sendNext(), f.passOut():
		return true
	case f.readLeg():
		return true
	case f.checkFailed():
		return true
	case f.lane() == nil && f.parkable():
		return false
	}
	if f.lane() == nil {
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
	f.sendOn(st, item, some)
	return true
}
