package pair

import (
	"slices"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/wire"
)

// want finds a lane for a flow, now or later. The caller holds f.mu.
func (l *Link) want(f *Flow) {
	ctl := f.s.control()
	if f.near.misled() {
		if ctl != nil {
			f.giveUp(cause(flow.EndDenied, errOnePort))
		}
		return // without a control connection, another process may answer next: resync wakes the flow
	}
	if lane := f.s.takeWarm(l.paths.best()); lane != nil {
		if f.near.assign(lane) {
			l.poke() // the pool lacks one
			return
		}
		lane.close()
	}
	f.near.queued = true
	l.mu.Lock()
	f.near.needsOpen = !f.phase.known()
	if f.near.gaveBack {
		l.waiting = slices.Insert(l.waiting, 0, f)
	} else {
		l.waiting = append(l.waiting, f)
	}
	l.mu.Unlock()
	l.poke()
}

// place gives a lane to a flow that waits for one of its session, or to the pool.
func (l *Link) place(s *session, lane *lane) {
	for {
		l.mu.Lock()
		f := l.waiting.take(s)
		warm := l.o.Warm
		l.mu.Unlock()
		if f == nil {
			limit := 0
			if l.current() != s || slices.Contains(l.paths.usable(), lane.path) {
				limit = lane.path.poolLimit(warm, time.Now())
			}
			s.putWarm(lane, limit)
			return
		}
		f.mu.Lock()
		elsewhere := f.s != s // it has moved on
		taken := !elsewhere && f.near.assign(lane)
		again := !taken && (elsewhere || lane.isDead())
		f.near.queued = again
		f.mu.Unlock()
		if again {
			l.mu.Lock()
			l.waiting = append(l.waiting, f)
			l.mu.Unlock()
		}
		if taken || again && !elsewhere {
			return
		}
	}
}

// moveOn takes a flow to the session after its own, whose far process takes no new flows
// and has refused this one, or has ended and never heard of it: an upgrade overtook its OPEN. It
// reports false if the flow has to end. The caller holds f.mu.
func (l *Link) moveOn(f *Flow) bool {
	if !f.near.untouched() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.node.closing.Load() {
		return false
	}
	was := f.s
	if l.s == was && !l.replace() { // DRAIN comes later than this answer
		return false
	}
	was.mu.Lock()
	was.draining = true
	was.mu.Unlock()
	was.strike(f)
	was.withdraw(f)
	was.message(wire.Message{Type: wire.MessageGone, Flow: f.id}) // the answer to its refusal
	f.s = l.s
	f.near.unsend()
	if !f.need.since.IsZero() {
		was.waiting.Add(-1)
		f.s.waiting.Add(1)
	}
	f.s.add(f)
	return true
}

// followEnd takes a flow on from a session whose far process has said its last and has not spoken of
// this flow: it has not dialed for it, and never will. The caller holds f.mu.
func (l *Link) followEnd(f *Flow) {
	for !f.phase.known() && !f.near.held() && f.s.ended.Load() {
		if !l.moveOn(f) {
			return
		}
		f.wake()
	}
}

// leave has new flows go to another session than one whose far process takes none.
func (l *Link) leave(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.s == s {
		l.replace()
	}
}

// revoke ends the flows of a session whose host is none of the peers any more. Those of which the host has
// nothing go to another hop, or to another host of the site.
func (l *Link) revoke(s *session, err error) {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	l.leave(s)
	for _, f := range s.allFlows() {
		f.mu.Lock()
		switch {
		case f.near.giveBack(cause(flow.EndDenied, err), false), f.s != s:
		case f.phase == phaseFresh && l.moveOn(f):
			f.wake()
		default:
			f.mu.Unlock()
			f.Reset(flow.EndDenied, err)
			continue
		}
		f.mu.Unlock()
	}
}

// sentAhead takes note that a flow's OPEN needs no lane any more.
func (l *Link) sentAhead(f *Flow) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.near.needsOpen = false
}
