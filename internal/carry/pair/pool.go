package pair

import (
	"slices"
	"time"

	"longhaul/internal/carry/pair/wire"
)

// The pool of a session has warm lanes: idle ones that a flow takes without a handshake. Each
// path has a number of its own of them.

// takeWarm takes the lane over a path from the pool that was used last; nil: there is none.
func (s *session) takeWarm(p *wanPath) *lane {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.warm) - 1; i >= 0; i-- {
		l := s.warm[i]
		if l.path != p {
			continue
		}
		s.warm = slices.Delete(s.warm, i, i+1)
		l.mu.Lock()
		closed := l.closed
		l.warm = false
		l.mu.Unlock()
		if !closed {
			return l
		}
	}
	return nil
}

// putWarm puts a lane into the pool: behind all others, if it has carried no flow. A full pool
// drops its oldest lane of the path in favour of one that has carried a flow, because that one's
// window is open.
func (s *session) putWarm(l *lane, limit int) {
	wanted := s.link.current() != s || slices.Contains(s.link.usable(), l.path)
	s.mu.Lock()
	l.mu.Lock()
	spare := l
	here := s.warmOf(l.path)
	if !l.closed && !l.warm && wanted && (here < limit || l.used && limit > 0) {
		l.warm = true
		here++
		if l.used {
			s.warm = append(s.warm, l)
		} else {
			s.warm = slices.Insert(s.warm, 0, l)
		}
	}
	if l.warm {
		spare = nil // it is there, perhaps since before
	}
	l.mu.Unlock()
	if here > limit {
		i := slices.IndexFunc(s.warm, func(other *lane) bool { return other.path == l.path })
		spare = s.warm[i]
		s.warm = slices.Delete(s.warm, i, i+1)
	}
	s.mu.Unlock()
	if spare != nil {
		spare.close()
	}
}

// trimPool closes lanes that the pool is to keep no longer, those first that were used longest ago.
func (l *Link) trimPool(s *session, now time.Time) {
	warm := l.options().Warm
	var spare []*lane
	s.mu.Lock()
	for _, p := range l.pathsNow() {
		over := s.warmOf(p) - p.poolLimit(warm, now)
		s.warm = slices.DeleteFunc(s.warm, func(l *lane) bool {
			if l.path != p || over <= 0 {
				return false
			}
			over--
			spare = append(spare, l)
			return true
		})
	}
	s.mu.Unlock()
	for _, l := range spare {
		l.close()
	}
}

// warmOf is the number of lanes over a path that are in the pool. The caller holds s.mu.
func (s *session) warmOf(p *wanPath) (n int) {
	for _, l := range s.warm {
		n += btoi(l.path == p)
	}
	return n
}

// pool takes back a lane that no flow has any more. The caller may hold a flow's lock.
func (s *session) pool(l *lane) {
	s.node.tasks.Go(func() { s.link.place(l) })
}

// poolLacks lists the path of each lane that the session's pool lacks.
func (l *Link) poolLacks(s *session, warm int) (all []*wanPath) {
	for _, p := range l.usable() {
		n := s.warmOver(p)
		p.mu.Lock()
		n += p.pools
		p.mu.Unlock()
		for ; n < warm; n++ {
			all = append(all, p)
		}
	}
	return all
}

// warmOver is the number of lanes over a path that are in the pool, or on their way to it.
func (s *session) warmOver(p *wanPath) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.lanes {
		if l.path == p && l.pads {
			n++
		}
	}
	return n + s.warmOf(p)
}

// keptFor is how long the pool keeps the lanes of a flow that had several.
const keptFor = 10 * time.Minute

// keepAsMany has the pool keep as many lanes over the path as a flow has now, for keptFor. The next
// flow profits from them: their windows are open and, on a group of links, their ports lead to each
// link.
func (p *wanPath) keepAsMany(lanes int, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if lanes >= p.kept || now.After(p.keptUntil) {
		p.kept, p.keptUntil = lanes, now.Add(keptFor)
	}
}

// poolLimit is how many lanes over the path the pool may have, where warm ones are dialed.
func (p *wanPath) poolLimit(warm int, now time.Time) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if warm <= 0 || now.After(p.keptUntil) {
		return warm
	}
	return max(warm, p.kept)
}

// countPool counts dials for the pool that begin or, with -1, end.
func (p *wanPath) countPool(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pools += n
}

// drain releases a lane on which something of the flow may be under way. It goes to the pool
// once the far relay has answered.
func (s *session) drain(f *Flow, l *lane) {
	l.mu.Lock()
	l.draining, l.since = true, time.Now()
	l.mu.Unlock()
	s.node.tasks.Go(func() { _ = l.release(f, wire.FlagFinal, 0) })
}
