package pair

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/flow"
)

// Link is the way of a near tunnel to its far relay.
type Link struct {
	node   *process
	drop   func() // takes the link from the node
	kick   chan struct{}
	flowID atomic.Uint64

	mu  sync.Mutex
	o   LinkOptions
	s   *session   // takes new flows
	old []*session // that drain
	// replaced is when the latest of old was s.
	replaced time.Time
	waiting  queue
	closed   bool
	paths    pathSet // changed under mu
	reported reported
	met      string // the host of the current session, or of the last one whose is known

	laneDials int
	admission admission // of handshakes of lanes
	laneRetry time.Time // no lane is dialed before it
	looked    time.Time // see redialer.lookElsewhere
}

func (o LinkOptions) withDefaults() LinkOptions {
	if o.Resume == 0 {
		o.Resume = DefaultResume
	}
	return o
}

func newLink(n *process, o LinkOptions, drop func(l *Link)) *Link {
	l := &Link{node: n, kick: make(chan struct{}, 1), o: o.withDefaults(), met: o.Host}
	l.drop = func() { drop(l) }
	l.setPaths(o.Paths)
	l.s = l.newSession(l.o.Peer)
	if o.Stood {
		l.s.stood, l.s.since = true, time.Now().Add(-o.Away)
	}
	return l
}

func (l *Link) newSession(peer string) *session {
	s := newSession(l.node, peer, randomID(), true)
	s.link, s.paths, s.tunnel, s.mode = l, &l.paths, l.o.Tunnel, l.o.mode()
	return s
}

// Close stops taking clients. Connections end with their last flow.
func (l *Link) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.poke()
}

func (l *Link) closing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

func (l *Link) sessions() []*session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append(slices.Clone(l.old), l.s)
}

// Stood reports whether the pair has ever stood, and for how long it has been away; 0: it stands.
func (l *Link) Stood() (away time.Duration, stood bool) {
	s := l.current()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.control() == nil {
		away = time.Since(s.since)
	}
	return away, s.stood
}

// current is the session that takes new flows.
func (l *Link) current() *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.s
}

func (l *Link) options() LinkOptions {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.o
}

func (l *Link) poke() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// replace begins another session in place of the current one. It reports false if that would be one
// too many: a far process that drains each session at once is no upgrade. The caller holds l.mu.
func (l *Link) replace() bool { return l.replaceBy(l.newSession(l.o.Peer)) }

// replaceBy is replace with a session that is there.
func (l *Link) replaceBy(next *session) bool {
	now := time.Now()
	if len(l.old) >= maxOldSessions && now.Sub(l.replaced) < time.Minute {
		return false
	}
	l.old = append(l.old, l.s)
	l.s, l.replaced = next, now
	l.s.goesOnFrom(l.old[len(l.old)-1])
	return true
}

// reported is what LinkOptions.Changed was last called for. It is of the link's goroutine.
type reported struct {
	usable bool
	host   string
}

// look calls changed if new flows are to come since the last look, or not, or meet another host.
func (was *reported) look(t flow.Taking, changed func()) {
	now := reported{t.Takes && !t.Suspect && t.Trouble == "", t.Host}
	if now == *was {
		return
	}
	*was = now
	if changed != nil {
		changed()
	}
}

// Taking looks at the session that takes new flows. It looks at nothing else: callers ask
// several times a second.
func (l *Link) Taking() flow.Taking {
	l.mu.Lock()
	s, closed := l.s, l.closed
	if name := s.host().name; name != "" {
		l.met = name
	}
	host := l.met
	l.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	ctl := s.control()
	t := flow.Taking{Peer: s.peer, Host: host, Instance: s.instance, Takes: ctl != nil && !s.draining && !closed, Suspect: ctl != nil && ctl.suspect.Load(), Crowded: s.isCrowded(), Stood: s.stood, Met: s.instance != 0,
		Since: s.since, Problem: s.problem, Error: s.text}
	trouble, since := s.trouble.now(time.Now())
	if t.Trouble = trouble; t.Takes && since.After(t.Since) {
		t.Since = since
	}
	if s.draining {
		t.Problem = flow.PairDraining
	}
	if since, err := refusalOf(s, time.Now()); t.Takes && err != nil {
		t.Takes, t.Since, t.Problem, t.Error = false, since, problemOf(err), err.Error()
	}
	return t
}

// maxOldSessions bounds the sessions of a link beside the current one. While there are so
// many, a far process that takes no new flows gets a further one each minute.
const maxOldSessions = 16

// redialNow has the next tick try at once. The caller holds l.mu.
func (l *Link) redialNow() {
	for _, s := range append(slices.Clone(l.old), l.s) {
		s.redialed = time.Time{}
	}
}

// queue are the flows that wait for a lane, under the link's lock.
type queue []*Flow

// take takes a flow of a session that waits for a lane: first of those of which
// nothing can go ahead on the control connection.
func (q *queue) take(s *session) *Flow {
	i := slices.IndexFunc(*q, func(f *Flow) bool { return f.s == s && f.near.needsOpen })
	if i < 0 {
		i = slices.IndexFunc(*q, func(f *Flow) bool { return f.s == s })
	}
	if i < 0 {
		return nil
	}
	f := (*q)[i]
	*q = slices.Delete(*q, i, i+1)
	return f
}
