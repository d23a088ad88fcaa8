package pair

import (
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/wire"
)

// Taking looks at the session that takes new flows. It looks at nothing else: callers ask
// several times a second.
func (l *Link) Taking() flow.Taking {
	l.mu.Lock()
	s := l.s
	l.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	t := flow.Taking{Peer: s.peer, Takes: s.control() != nil && !s.draining, Stood: s.stood, Met: s.instance != 0,
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

// trouble is why the far tunnel of a session takes no flows: its hops are down, say, or it is drained.
// Without it the near relay would count as usable while each of its clients is reset. The far relay says
// it at first on each control connection, and then each change; until it does, its last word holds.
type trouble struct {
	text  string    // empty: it takes flows
	since time.Time // it has had trouble, or none; zero: never
	was   string    // the last text that was not empty
	told  *control  // far relay: the connection over which the near one knows text
}

// troubleHolds is how long trouble holds after the far relay's word that it is over, so that one which
// changes its mind all the time makes no events.
const troubleHolds = time.Second

// now is the text at a moment, and since when there has been trouble, or none.
func (t *trouble) now(now time.Time) (text string, since time.Time) {
	if t.text == "" && t.was != "" && now.Sub(t.since) < troubleHolds {
		return t.was, t.since
	}
	return t.text, t.since
}

// take takes another text.
func (t *trouble) take(text string, now time.Time) {
	if (text == "") != (t.text == "") {
		t.since = now
	}
	if t.text = text; text != "" {
		t.was = text
	}
}

// tellTrouble has the near relay know what it does not yet.
func (s *session) tellTrouble() {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctl := s.control()
	if ctl == nil || !s.knows(wire.FeatureTrouble) {
		return
	}
	if now, known := s.acceptor.Trouble(); known && (now != s.trouble.text || s.trouble.told != ctl) {
		s.trouble.text, s.trouble.told = now, ctl
		ctl.post(wire.Message{Type: wire.MessageTrouble, Text: now})
	}
}

// takeTrouble takes the far relay's word.
func (s *session) takeTrouble(ctl *control, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.near && s.control() == ctl {
		s.trouble.take(text, time.Now())
	}
}
