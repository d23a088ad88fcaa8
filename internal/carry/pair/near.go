package pair

import "longhaul/internal/carry/pair/wire"

// begin marks the flow as one of which the far relay hears from now on. The caller holds f.mu.
func (f *Flow) begin() {
	if f.phase == phaseFresh {
		f.phase.take(eventAsk)
		f.sf.Seal(f.s.sealed())
	}
}

// untouched reports that the far process has taken nothing of a near flow, which lives.
func (f *Flow) untouched() bool {
	return f.phase <= phaseKnown && f.sf.Out.Acknowledged() == 0 && !f.sf.Over() && !f.sf.Dead()
}

// unsend has the flow begin as if nothing of it had been sent. The caller holds f.mu and the link's
// lock.
func (f *Flow) unsend() {
	f.closeStrands()
	f.openDue, f.lost, f.wokeAt = false, false, 0
	f.phase.take(eventUnsent)
	f.needsOpen = true
}

// assign gives the flow a lane and prepares what goes first on it. It reports false if
// the flow needs none any more. The caller holds f.mu.
func (f *Flow) assign(l *lane) bool {
	f.queued = false
	opening := !f.phase.known() && !f.sf.Over() && f.leg.open()
	if f.lane() != nil || f.phase == phaseOver || !opening && !f.sf.NeedsLane() && !f.wanted {
		return false
	}
	if !l.bind(f) {
		return false
	}
	f.wanted, f.gaveBack = false, false
	f.ackedAt = stampNow()
	f.s.served.Store(int64(f.ackedAt))
	var greet []byte
	attaching := f.phase.known()
	switch {
	case f.phase.known():
		greet = wire.AppendAttach(nil, f.id, f.sf.In.Position())
	case f.s.sealed():
		greet = wire.AppendBegin(nil, f.id)
		f.openDue = f.openDue || f.phase == phaseFresh // a new control connection repeats it
		f.begin()
		f.s.post(f, true)
	default:
		greet = f.opening.Append(nil)
		f.begin()
	}
	if !f.phase.known() || !f.sf.Out.InFlight() {
		_ = f.sf.Attach(f.sf.Out.Acknowledged())
	}
	f.addStrand(l, greet, true).attaching = attaching
	f.noteNeed()
	f.wake()
	return true
}
