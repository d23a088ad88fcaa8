package pair

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/flow"
)

const (
	tickEvery = 100 * time.Millisecond
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
	waiting  []*Flow // for a lane
	closed   bool
	paths    pathSet // changed under mu

	laneDials int
	admission admission // of handshakes of lanes
	laneRetry time.Time // no lane is dialed before it
}

func (o LinkOptions) withDefaults() LinkOptions {
	if o.Resume == 0 {
		o.Resume = DefaultResume
	}
	return o
}

func newLink(n *process, o LinkOptions, drop func(l *Link)) *Link {
	l := &Link{node: n, kick: make(chan struct{}, 1), o: o.withDefaults()}
	l.drop = func() { drop(l) }
	l.setPaths(o.Paths)
	l.s = l.newSession()
	if o.Stood {
		l.s.stood, l.s.since = true, time.Now().Add(-o.Away)
	}
	return l
}

func (l *Link) newSession() *session {
	s := newSession(l.node, l.o.Peer, randomID(), true)
	s.link, s.paths, s.tunnel, s.mode = l, &l.paths, l.o.Tunnel, l.o.mode()
	return s
}

// Update changes options; flows go on.
func (l *Link) Update(o LinkOptions) {
	l.mu.Lock()
	o = o.withDefaults()
	if o.Peer != l.o.Peer || o.Tunnel != l.o.Tunnel || o.mode() != l.o.mode() {
		l.old = append(l.old, l.s)
		samePeer := o.Peer == l.o.Peer
		l.o = o
		if l.s = l.newSession(); samePeer {
			l.s.goesOnFrom(l.old[len(l.old)-1])
		}
	}
	l.o = o
	l.setPaths(o.Paths)
	l.redialNow() // a reload tries at once
	l.mu.Unlock()
	l.poke()
}

// Close stops taking clients. Connections end with their last flow.
func (l *Link) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.poke()
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

// Carry implements flow.Carrier.
func (l *Link) Carry(c flow.Client, ended func(flow.End)) flow.Carried { return l.carry(c, ended) }

func (l *Link) run() {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		select {
		case <-l.node.ctx.Done():
			return
		case <-l.kick:
		case <-ticker.C:
		}
		if l.tick() {
			return
		}
	}
}

// tick dials what is missing. It reports true when a closed link has ended.
func (l *Link) tick() (ended bool) {
	now := time.Now()
	l.mu.Lock()
	l.replaceDrained()
	l.waiting = slices.DeleteFunc(l.waiting, func(f *Flow) bool { return f.over.Load() })
	all := append(slices.Clone(l.old), l.s)
	closed := l.closed
	l.mu.Unlock()
	l.watchPaths(now)
	for _, s := range all {
		if s.control() == nil {
			l.redial(s, now)
		} else {
			l.moveControl(s, now)
		}
		if s.reachable() {
			l.dialLanes(s, now)
		}
	}
	if closed && l.idle(all) {
		for _, s := range all {
			s.close()
		}
		l.drop()
		return true
	}
	return false
}

// replace begins another session in place of the current one. It reports false if that would be one
// too many: a far process that drains each session at once is no upgrade. The caller holds l.mu.
func (l *Link) replace() bool {
	now := time.Now()
	if len(l.old) >= maxOldSessions && now.Sub(l.replaced) < time.Minute {
		return false
	}
	l.old = append(l.old, l.s)
	l.s, l.replaced = l.newSession(), now
	l.s.goesOnFrom(l.old[len(l.old)-1])
	return true
}

// replaceDrained begins a session for new flows if the far process takes none, and
// ends drained ones with their last flow. The caller holds l.mu.
func (l *Link) replaceDrained() {
	l.s.mu.Lock()
	draining := l.s.draining
	l.s.mu.Unlock()
	if draining {
		l.replace()
	}
	l.old = slices.DeleteFunc(l.old, func(s *session) bool {
		done := s.rested()
		if done {
			s.close()
		}
		return done
	})
}

func (l *Link) idle(all []*session) bool {
	return !slices.ContainsFunc(all, func(s *session) bool {
		return !s.rested()
	})
}
