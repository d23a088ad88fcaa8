package pair

import "longhaul/internal/carry/pair/wire"

// begin marks the flow as one of which the far relay hears from now on. The caller holds f.mu.
func (f *Flow) begin() {
	if !f.sent {
		f.sent = true
		f.sf.Seal(f.s.sealed.Load())
	}
}

// untouched reports that the far process has taken nothing of a near flow, which lives.
func (f *Flow) untouched() bool {
	return !f.opened && f.sf.Out.Acknowledged() == 0 && !f.sf.Over() && !f.sf.Dead()
}

// unsend has the flow begin as if nothing of it had been sent. The caller holds f.mu and the link's
// lock.
func (f *Flow) unsend() {
	f.closeStrands()
	f.known, f.sent, f.openDue, f.lost, f.wokeAt = false, false, false, false, 0
	f.needsOpen = true
}

// assign gives the flow a lane and prepares what goes first on it. It reports false if
// the flow needs none any more. The caller holds f.mu.
func (f *Flow) assign(l *lane) bool {
	f.queued = false
	opening := !f.known && !f.sf.Over() && f.leg.open()
	if f.lane != nil || f.finished || !opening && !f.sf.NeedsLane() && !f.wanted {
		return false
	}
	if !l.bind(f) {
		return false
	}
	f.wanted, f.gaveBack = false, false
	f.laneSince, f.ackedAt, f.attaching = stampNow(), stampNow(), f.known
	f.s.served.Store(int64(f.laneSince))
	var greet []byte
	switch {
	case f.known:
		greet = wire.AppendAttach(nil, f.id, f.sf.In.Position())
	case f.s.sealed.Load():
		greet = wire.AppendBegin(nil, f.id)
		f.openDue = f.openDue || !f.sent // a new control connection repeats it
		f.begin()
		f.s.post(f, true)
	default:
		greet = f.opening.Append(nil)
		f.begin()
	}
	if !f.known || !f.sf.Out.InFlight() {
		_ = f.sf.Attach(f.sf.Out.Acknowledged())
	}
	f.addStrand(l, greet, true)
	f.noteNeed()
	f.wake()
	return true
}
