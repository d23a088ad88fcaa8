package pair

import "longhaul/internal/carry/pair/wire"

// untouched reports that the far process has taken nothing of a near flow, which lives.
func (nr *nearPart) untouched() bool {
	f := nr.flow()
	return f.phase <= phaseKnown && f.sf.Out.Acknowledged() == 0 && !f.sf.Over() && !f.sf.Dead()
}

// unsend has the flow begin as if nothing of it had been sent. The caller holds f.mu and the link's
// lock.
func (nr *nearPart) unsend() {
	f := nr.flow()
	f.lanes.replace(nil)
	nr.openDue, f.need.lost, f.need.wokeAt = false, false, 0
	f.phase.take(eventUnsent)
	nr.needsOpen = true
}

// assign gives the flow a lane and prepares what goes first on it. It reports false if
// the flow needs none any more. The caller holds f.mu.
func (nr *nearPart) assign(l *lane) bool {
	f := nr.flow()
	nr.queued = false
	opening := !f.phase.known() && !f.sf.Over() && f.leg.open()
	if f.lanes.main() != nil || f.phase == phaseOver || !opening && !f.sf.NeedsLane() && !nr.wanted || nr.misled() {
		return false
	}
	if !l.bind(f) {
		return false
	}
	nr.wanted, nr.gaveBack = false, false
	f.watch.ackedAt = stampNow()
	f.s.served.Store(int64(f.watch.ackedAt))
	var greet []byte
	attaching := f.phase.known()
	switch {
	case f.phase.known():
		greet = wire.AppendAttach(nil, f.id, f.sf.In.Position())
	case f.s.sealed():
		greet = wire.AppendBegin(nil, f.id)
		nr.openDue = nr.openDue || f.phase == phaseFresh // a new control connection repeats it
		nr.begin()
		f.s.post(f, true)
	default:
		greet = f.opening.Append(nil)
		nr.begin()
	}
	if !f.phase.known() || !f.sf.Out.InFlight() {
		_ = f.sf.Attach(f.sf.Out.Acknowledged())
	}
	f.lanes.add(l, greet, true).attaching = attaching
	f.need.note()
	f.wake()
	return true
}
