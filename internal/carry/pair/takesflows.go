package pair

import "time"

// Taking says whether the pair of a near tunnel takes new flows.
type Taking struct {
	Peer    string
	Takes   bool
	Stood   bool      // the pair has stood, in this process or the one before
	Met     bool      // in this session
	Since   time.Time // the session has stood, or not, or the far tunnel has had its trouble, or none again
	Problem Problem   // of one that does not
	Text    string    // the error behind Problem
	Trouble string    // why the far tunnel takes no flows, in its relay's words; empty: it takes them
}

// Taking says it of the session that takes new flows. It looks at nothing else: callers ask
// several times a second.
func (l *Link) Taking() Taking {
	l.mu.Lock()
	s := l.s
	l.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	t := Taking{Peer: s.peer, Takes: s.ctl != nil && !s.draining, Stood: s.stood, Met: s.instance != 0,
		Since: s.since, Problem: s.problem, Text: s.text}
	trouble, since := s.trouble.now(time.Now())
	if t.Trouble = trouble; t.Takes && since.After(t.Since) {
		t.Since = since
	}
	if s.draining {
		t.Problem = ProblemDraining
	}
	return t
}
