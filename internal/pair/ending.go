package pair

// The end of a process is a state of its own. From its last flow until it exits, a far process refuses
// each OPEN as one that drains. Behind all that it has to say of flows it says its last: a DRAIN with
// FlagLast. What the near relay then has without an answer was never dialed for, so it goes on to the
// next process. Without this the OPENs under way, of a round trip, would be lost with the process.

// sayLast tells a near relay that this process has said all that it will ever know of flows. It says
// nothing if a flow was given up here: the near relay may not know that its target was dialed.
func (s *session) sayLast() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.near || s.ctl == nil || s.cutShort || s.refusals.lost {
		return
	}
	s.lastDue = true
	s.ctl.flush()
}

// lastIsDue reports whether the message of sayLast has not gone out yet.
func (s *session) lastIsDue() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastDue
}

// noteCutShort notes that a far flow ended without its near relay.
func (s *session) noteCutShort() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cutShort = true
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
