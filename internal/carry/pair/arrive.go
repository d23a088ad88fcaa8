package pair

import (
	"errors"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/stream"
)

// deliver writes bytes of a lane to the flow's own socket, and waits for its room.
func (f *Flow) deliver(l *lane, offset uint64, b []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heard(l)
	f.near.targetFound()
	for f.lanes.has(l) {
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
			f.leg.await()
		default:
			f.leg.write(rest)
		}
	}
	f.received() // the lane may have been lost while its bytes were written
	return nil
}

// received follows each arrival: the flow's state may have changed.
func (f *Flow) received() {
	for f.leg.deliverSpill() {
	}
	f.postDue()
	if f.leg.passEnd() {
		return
	}
	if f.sf.ResetLocal() || !f.running && (f.sf.Dead() || f.sf.Over()) {
		f.wake()
	}
}

// deliverEnd takes the end, and passes it on once all bytes before it are here.
func (f *Flow) deliverEnd(l *lane, length uint64, crc uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heard(l)
	f.near.targetFound()
	for f.lanes.has(l) && !f.sf.Dead() && (!f.leg.open() || f.leg.busyOut) {
		f.leg.await()
	}
	if !f.lanes.has(l) {
		return nil
	}
	if err := f.sf.In.End(length, crc); err != nil {
		f.abort(cause(flow.EndDamaged, errEnd))
		return nil
	}
	f.leg.passEnd()
	return nil
}

// heard notes that the other end knows the flow, and that it voids a RELEASE.
func (f *Flow) heard(l *lane) {
	f.phase.take(eventHeard)
	if l != nil && f.lanes.main() == l && f.near.releasing {
		f.near.releasing = false
		f.wake()
		f.lanes.feed()
	}
}

// early returns memory for up to n bytes of a lane that come before their turn; nil: they
// are to be delivered, or, with skip, dropped. While the flow's own socket has no room,
// it is that for which all lanes wait, and bytes stay with the kernel.
func (f *Flow) early(l *lane, offset uint64, n int) (e *stream.Early, skip bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.near.targetFound()
	for {
		st := f.lanes.of(l)
		if st == nil || !f.sf.In.IsEarly(offset) {
			return nil, false
		}
		f.postDue()
		if !f.leg.open() || !f.leg.writable && !f.leg.busyOut {
			st.stuckAt = 0
			f.cond.wait(&f.mu)
			continue
		}
		e, skip, err := f.sf.Early(offset, n)
		if err != nil {
			f.abort(cause(flow.EndDamaged, errors.New("bytes behind the end")))
			return nil, true
		}
		if e != nil || skip {
			st.stuckAt = 0
			f.heard(l)
			return e, skip
		}
		if pos := f.sf.In.Position(); st.stuckAt.IsZero() || st.stuckPos != pos {
			st.stuckAt, st.stuckPos = stampNow(), pos
		}
		f.leg.awaited = true // each write makes room
		f.cond.wait(&f.mu)
	}
}

// spilled counts bytes that were read to the memory of early.
func (f *Flow) spilled(e *stream.Early, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sf.Spilled(e, n)
	f.received()
}

// answeredAttach takes the far relay's answer to an ATTACH or a JOIN.
func (f *Flow) answeredAttach(l *lane, id, received uint64, join bool) {
	if f.id != id {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heard(l)
	switch {
	case join:
		f.lanes.joined(l, received)
	case f.lanes.main() == l:
		st := f.lanes.all[0]
		st.attaching, st.since, f.need.wokeAt = false, stampNow(), 0
		f.lanes.attached(received)
	}
}

// answeredRelease takes the far relay's answer to a RELEASE, and reports whether the lane is free.
func (f *Flow) answeredRelease(l *lane) (free bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lanes.main() != l || !f.near.releasing {
		return false
	}
	f.near.releasing = false
	f.lanes.dropAll()
	f.sf.Detach()
	l.unbind(f)
	f.wake()
	return true
}
