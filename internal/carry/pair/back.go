package pair

import (
	"errors"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

// A held flow is one whose client has other hops (flow.Client.Others), until the far relay has a target
// for it. Nothing of its client is read or sent, so whatever becomes of its OPEN, no byte of it reaches a
// target. It either gets its target here (targetFound) or is given back, once, under the flow's lock.

// hold has a flow be held. The caller holds f.mu.
func (nr *nearPart) hold(c flow.Client) {
	nr.flow().opening.client = &c
	nr.flow().s.setHeld(nr.flow(), true)
}

// giveBack gives the client of a held flow back, and reports whether it did. It waits for nobody: a
// goroutine of the flow may wait for a lane that is dead. The far relay is to forget the flow: a target
// that it has, or finds later, is closed without a byte. The caller holds f.mu.
func (nr *nearPart) giveBack(c stream.Cause, byPeer bool) bool {
	f := nr.flow()
	if !nr.held() || f.sf.Dead() || f.phase == phaseOver {
		return false
	}
	s, heard := f.s, f.phase != phaseFresh
	nr.given, f.told = true, byPeer
	nr.openDue = false
	f.leg.part()
	f.lanes.leave()
	f.sf.Abort(c)
	f.sf.PeerGone(c)
	f.wake() // who waits
	f.phase.take(eventOver)
	f.over.Store(true)
	f.need.note()
	f.sf.Finish()
	s.strike(f)
	s.withdraw(f)
	if heard {
		s.message(wire.Message{Type: wire.MessageGone, Flow: f.id})
	}
	e, owner := f.end(), takeOwner(f)
	s.node.tasks.Go(func() {
		s.forget(f)
		if owner != nil {
			owner.Ended(e)
		}
	})
	return true
}

// GiveBack implements flow.Carried.
func (f *Flow) GiveBack() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.near.giveBack(f.s.whyDown(), false)
}

var errSuspect = errors.New("the far relay does not answer")

// adrift says why a held flow is to go to another hop, if it is. What the far relay has been asked
// it answers, also while it takes no new flows, or once the link is closed. The caller holds f.mu.
func (nr *nearPart) adrift(now time.Time, closed bool) (why stream.Cause, yes bool) {
	f, s, ctl := nr.flow(), nr.flow().s, nr.flow().s.control()
	since, unmade := s.unmade.now()
	s.mu.Lock()
	none := closed || s.draining
	s.mu.Unlock()
	switch {
	case ctl == nil:
		return s.whyDown(), true
	case ctl.suspect.Load():
		return cause(flow.EndPairDown, errSuspect), true
	case s.ended.Load(), f.phase == phaseFresh && none:
		return cause(flow.EndDrain, errors.New("the far relay takes no new flows")), true
	case f.phase == phaseFresh && unmade != nil && min(now.Sub(since), f.opening.began.until(now)) > laneErrSettles:
		return s.whyDown(), true
	}
	return stream.Cause{}, false
}

// giveUp ends the flow without its peer.
func (f *Flow) giveUp(c stream.Cause) {
	if f.near.giveBack(c, false) {
		return
	}
	if !f.s.near && f.sf.Out.Acknowledged() == 0 { // else the near relay knows that the target was dialed
		f.s.owe(f.id, stream.Cause{})
	}
	f.sf.Abort(c)
	f.sf.PeerGone(c)
	f.wake()
}
