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
	if f.phase.unheard() && f.sf.Dead() {
		f.sf.PeerGone(stream.Cause{}) // the far relay has never heard of it, and is not to
	}
	f.sf.ResetLocal()
	f.need.note()
	f.postDue()
	switch {
	case f.phase == phaseOver:
		return false
	case f.leg.close():
		return true
	case f.sf.Over() && !f.leg.open() && f.phase != phaseDialing:
		f.lanes.leave()
		f.phase.take(eventOver)
		f.over.Store(true)
		f.sf.Finish()
		return false
	case f.leg.deliverSpill(), f.leg.passEnd():
		return true
	case f.lanes.main() != nil && f.lanes.sendNext(), f.leg.passOut():
		return true
	case f.leg.read():
		return true
	case f.leg.checkFailed():
		return true
	case f.lanes.main() == nil && f.leg.parkable():
		return false
	}
	if f.lanes.main() == nil {
		f.leg.await()
	} else {
		f.cond.wait(&f.mu)
	}
	return true
}

// sendNext sends what is due on the lane, if anything is and the lane has no goroutine that
// does it.
func (ls *laneSet) sendNext() bool {
	f := ls.flow()
	st := ls.all[0]
	if f.near.releasing {
		return false
	}
	some := f.sf.Out.Pending()
	switch {
	case f.near.releaseDue && (some || st.greet != nil || !f.sf.Quiet() || len(ls.all) > 1):
		f.near.releaseDue = false
	case f.near.releaseDue:
		f.near.releaseDue, f.near.releasing, st.sentAt = false, true, stampNow()
		st.greet = wire.AppendRelease(nil, 0, f.sf.In.Position())
		st.cond.broadcast()
	}
	if st.pumped || st.greet == nil && !some {
		return false
	}
	var item stream.Item
	if some {
		if !f.sf.Out.InFlight() {
			f.watch.ackedAt = stampNow()
		}
		item, some = f.sf.Out.Next(&st.sent, stream.ChunkMax)
	}
	ls.send(st, item, some)
	return true
}

// takeEnd returns the report of the end, once.
func (f *Flow) takeEnd() func() {
	if f.phase != phaseOver || f.near.given {
		return nil
	}
	s, e, owner := f.s, f.end(), takeOwner(f)
	return func() {
		s.forget(f)
		if owner != nil {
			owner.Ended(e)
		}
	}
}
