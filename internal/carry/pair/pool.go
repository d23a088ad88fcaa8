package pair

import (
	"longhaul/internal/carry/pair/wire"
	"slices"
	"time"
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

// drain releases a lane on which something of the flow may be under way. It goes to the pool
// once the far relay has answered.
func (s *session) drain(f *Flow, l *lane) {
	l.mu.Lock()
	l.draining, l.since = true, time.Now()
	l.mu.Unlock()
	s.node.tasks.Go(func() { _ = l.release(f, wire.FlagFinal, 0) })
}
