package pair

import (
	"cmp"
	"slices"
	"time"
)

// The end of a process is a state of its own. From its last flow until it exits, a far process refuses
// each OPEN as one that drains. Behind all that it has to say of flows it says its last: a DRAIN with
// FlagLast. What the near relay then has without an answer was never dialed for, so it goes on to the
// next process. A near relay that does not hear it, in an outage, hears it from the next process: the
// HELLO there names the process that it follows. Without this the OPENs under way would be lost with
// the process.

// sayLast tells a near relay that this process has said all that it will ever know of flows. It says
// nothing if a flow was given up here: the near relay may not know that its target was dialed.
func (s *session) sayLast() {
	if s.near || s.use.owes(time.Now()) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctl != nil {
		s.lastDue = true
		s.ctl.flush()
	}
}

// lastIsDue reports whether the message of sayLast has not gone out yet.
func (s *session) lastIsDue() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastDue
}

// owe notes that a far flow ended, and its near relay may not know. That gives the flow up as well, but
// may have lost the path later. The caller holds s.mu.
func (s *session) owe() {
	until := time.Now().Add(2 * cmp.Or(s.resume, DefaultResume))
	for { // other sessions of the peer may owe for longer, or at the same time
		was := s.use.owed.Load()
		if was != nil && was.After(until) || s.use.owed.CompareAndSwap(was, &until) {
			return
		}
	}
}

func (u *peerUse) owes(now time.Time) bool {
	until := u.owed.Load()
	return until != nil && now.Before(*until)
}

// Owed names the peers that may wait for news of a flow that this process had. It is for the time after
// Close: to all others, nothing of what they still wait for was ever dialed here.
func (n *Node) Owed() (peers []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, use := range n.uses {
		if use.owes(time.Now()) {
			peers = append(peers, name)
		}
	}
	slices.Sort(peers)
	return peers
}

// follows is the instance that a near relay asks for, if that has ended in order and this process
// follows it; 0: it does not. While nobody knows, the near relay has to ask again.
func (n *Node) follows(instance uint64, peer string) (uint64, error) {
	if instance == 0 || instance == n.instance || n.options.Fate == nil {
		return 0, nil
	}
	switch n.options.Fate(instance, peer) {
	case FateInOrder:
		return instance, nil
	case FateOpen:
		return 0, problem(ProblemPathDown, "the process before this one has not ended yet")
	}
	return 0, nil
}

// drained takes a DRAIN: the other process takes no new flows. With last it has also said all that it
// will ever know of flows.
func (s *session) drained(last bool) {
	s.mu.Lock()
	s.draining = true
	s.ended = s.ended || last && s.near
	s.mu.Unlock()
	if !s.near {
		return
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

// hasEnded reports that the far process has said its last.
func (s *session) hasEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}
