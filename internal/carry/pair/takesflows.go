package pair

import (
	"time"

	"longhaul/internal/carry/flow"
)

// Taking looks at the session that takes new flows. It looks at nothing else: callers ask
// several times a second.
func (l *Link) Taking() flow.Taking {
	l.mu.Lock()
	s := l.s
	l.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	t := flow.Taking{Peer: s.peer, Takes: s.ctl != nil && !s.draining, Stood: s.stood, Met: s.instance != 0,
		Since: s.since, Problem: s.problem, Error: s.text}
	trouble, since := s.trouble.now(time.Now())
	if t.Trouble = trouble; t.Takes && since.After(t.Since) {
		t.Since = since
	}
	if s.draining {
		t.Problem = flow.PairDraining
	}
	return t
}
