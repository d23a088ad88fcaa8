package pair

import "time"

// Taking says whether the pair of a near tunnel takes new flows.
type Taking struct {
	Peer     string
	Takes    bool
	Fallback bool      // new flows go unpaired
	Stood    bool      // the pair has stood, in this process or the one before
	Met      bool      // in this session
	Since    time.Time // the session has stood, or not
	Problem  Problem   // of one that does not
	Text     string    // the error behind Problem
}

// Taking says it of the session that takes new flows. It looks at nothing else: callers ask
// several times a second.
func (l *Link) Taking() Taking {
	l.mu.Lock()
	s, fallback := l.s, l.o.Fallback && !l.closed
	l.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	t := Taking{Peer: s.peer, Takes: s.ctl != nil && !s.draining, Stood: s.stood, Met: s.instance != 0,
		Since: s.since, Problem: s.problem, Text: s.text}
	if s.draining {
		t.Problem = ProblemDraining
	}
	t.Fallback = fallback && s.ctl == nil && s.problem == ProblemUnpaired
	return t
}
