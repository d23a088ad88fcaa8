package resources

import "time"

// resume is the share of a limit below which the use must fall until it no
// longer counts as reached: what has just been turned away would come back at
// once otherwise, and with it the shortage.
const resume = 0.9

// Change is a limit that has been reached, or one that no longer is.
type Change struct {
	Figure  Figure
	Reached bool
	For     time.Duration // how long it was reached; 0 while it is
}

// guard remembers which limits are reached.
type guard struct{ since map[Resource]time.Time }

// judge puts the limits into a state's figures, says which of them are
// reached, and returns what has changed since the last state.
func (g *guard) judge(s *State, limits Limits) (changes []Change) {
	if g.since == nil {
		g.since = map[Resource]time.Time{}
	}
	s.Shedding = []Resource{}
	for i := range s.Figures {
		f := &s.Figures[i]
		f.Limit = limits[f.Resource].of(f.Capacity)
		since, reached := g.since[f.Resource]
		level := f.Limit
		if reached {
			level *= resume
		}
		switch now := f.Limit.Known() && f.Used.Known() && f.Used >= level; {
		case now && !reached:
			since = s.At
			g.since[f.Resource] = since
			f.SheddingSince = &since
			changes = append(changes, Change{Figure: *f, Reached: true})
		case !now && reached:
			delete(g.since, f.Resource)
			changes = append(changes, Change{Figure: *f, For: s.At.Sub(since)})
			continue
		case !now:
			continue
		}
		f.SheddingSince = &since
		s.Shedding = append(s.Shedding, f.Resource)
	}
	return changes
}

// near says whether a limit may be reached before long, so that it is worth
// looking more often. The CPUs' mean moves slowly.
func (s State) near() bool {
	for _, f := range s.Figures {
		if f.Resource != CPU && f.Limit.Known() && f.Used > nearShare*f.Limit {
			return true
		}
	}
	return false
}

const nearShare = 0.75
