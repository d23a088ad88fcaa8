package pair

import (
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

// The end of a process is a state of its own. From its last flow until it exits, a far process refuses
// each OPEN as one that drains. Behind all that it has to say of flows it says its last: a DRAIN with
// FlagLast. What the near relay then has without an answer was never dialed for, so it goes on to the
// next process. A near relay that does not hear it, in an outage, hears it from the next process: the
// HELLO there names the process that it follows, and the flows that this owed: those that had ended
// there, perhaps without the near relay's knowledge. Without this the OPENs under way would be lost
// with the process.

// FateOf is the fate of a process that has ended in order and owed this.
func FateOf(owed []Owed, near NearSession) (fate Fate, flows []byte) {
	for _, one := range owed {
		switch {
		case one.NearSession == (NearSession{Peer: near.Peer}), one.NearSession == near && len(one.Flows) == 0:
			return FateUnknown, nil
		case one.NearSession == near:
			flows = one.Flows
		}
	}
	return FateInOrder, flows
}

// Owed lists what this process owes. It is for the time after Close: all other flows that a near relay
// still has without an answer were never dialed for here.
func (n *Node) Owed() (all []Owed) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	for peer, use := range n.uses {
		if now.Before(use.dropped) {
			all = append(all, Owed{NearSession: NearSession{Peer: peer}})
			continue
		}
		for _, one := range use.left {
			if flows, some := one.outcomes.owed(now, one.owesFor); some {
				all = append(all, Owed{one.near, []byte(flows)})
			}
		}
	}
	return all
}

// follows is the instance that a near relay asks for, if that has ended in order and this process
// follows it, and the flows that it owed the session; 0: it does not. While nobody knows, the near relay
// has to ask again.
func (n *Node) follows(instance uint64, near NearSession) (uint64, wire.Flows, error) {
	if instance == 0 || instance == n.instance || n.options.Fate == nil {
		return 0, "", nil
	}
	switch fate, owed := n.options.Fate(instance, near); fate {
	case FateInOrder:
		return instance, wire.Flows(owed), nil
	case FateOpen:
		return 0, "", problem(flow.PairPathDown, "the process before this one has not ended yet")
	}
	return 0, "", nil
}

// drained takes a DRAIN: the other process takes no new flows. With last it has also said all that it
// will ever know of flows.
func (s *session) drained(last bool) {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	if !s.near {
		return
	}
	if last {
		s.ended.Store(true)
	}
	s.link.leave(s) // at once: the other process may end as soon as it has a PONG
	if last {
		for _, f := range s.allFlows() {
			f.mu.Lock()
			s.link.followEnd(f)
			f.mu.Unlock()
		}
	}
	s.link.poke()
}

// resetAll resets the flows at both ends, and reports whether there were some to reset.
func (r *registry) resetAll(reason flow.EndReason, err error) (some bool) {
	for _, f := range r.allFlows() {
		f.mu.Lock()
		some = some || f.phase != phaseOver && !f.sf.Dead() && !f.sf.Clean()
		f.mu.Unlock()
		f.Reset(reason, err)
	}
	return some
}

// endAll ends the flows without the other end.
func (r *registry) endAll(c stream.Cause) {
	for _, f := range r.allFlows() {
		f.mu.Lock()
		if f.phase != phaseOver {
			f.giveUp(c)
		}
		f.mu.Unlock()
	}
}

func (r *registry) dropAll() { r.endAll(cause(flow.EndDrain, nil)) }

// close ends the session's connections, and flows that are left.
func (s *session) close() {
	s.mu.Lock()
	s.closed.Store(true)
	s.mu.Unlock()
	s.shut()
	s.closeLanes(func(*lane) bool { return true })
	s.dropAll() // whose outcomes are left with the others
	if !s.near && s.left != nil {
		s.left(s)
	}
}
