package resources

import "time"

// tight is the share of a limit from which on others should send new flows
// elsewhere: those who look now and then would learn too late of a limit that is
// reached, and whoever resets at once looks like the least busy of all.
const tight = 0.95

// A limit that was reached counts as reached until the use has fallen below
// the share resume of it, or has stayed below it for as long as settled: what
// has just been turned away would come back at once otherwise, and with it the
// shortage. The second is for what does not fall any further, such as resident
// memory of which little is the flows'.
const (
	resume  = 0.9
	settled = 10 * time.Second
)

// Change is a limit that has been reached, or one that no longer is.
type Change struct {
	Figure  Figure
	Reached bool
	For     time.Duration // how long it was reached; 0 while it is
}

// guard remembers which limits are reached, and which all but are.
type guard struct{ reached, tight map[Resource]*shortage }

type shortage struct {
	since time.Time
	below time.Time // since when the use is below the limit; zero: it is not
}

// judge puts the limits into a state's figures, says which of them are
// reached, and returns what has changed since the last state.
func (g *guard) judge(s *State, limits Limits) (changes []Change) {
	if g.reached == nil {
		g.reached, g.tight = map[Resource]*shortage{}, map[Resource]*shortage{}
	}
	s.Shedding, s.Tight = []Resource{}, []Resource{}
	for i := range s.Figures {
		f := &s.Figures[i]
		f.Limit = limits[f.Resource].of(f.Capacity)
		if g.tight[f.Resource] = g.tight[f.Resource].next(*f, f.Used >= tight*f.Limit, s.At); g.tight[f.Resource] != nil {
			s.Tight = append(s.Tight, f.Resource)
		}
		before := g.reached[f.Resource]
		now := before.next(*f, f.Used >= f.Limit || f.Used+Amount(limits[f.Resource].Grain) > f.Limit, s.At)
		if now == nil {
			if before != nil {
				delete(g.reached, f.Resource)
				changes = append(changes, Change{Figure: *f, For: s.At.Sub(before.since)})
			}
			continue
		}
		g.reached[f.Resource] = now
		since := now.since
		f.SheddingSince = &since
		s.Shedding = append(s.Shedding, f.Resource)
		if before == nil {
			changes = append(changes, Change{Figure: *f, Reached: true})
		}
	}
	return changes
}

// next is what a figure makes of a shortage, or of none: nil. Full says whether
// one begins with it.
func (s *shortage) next(f Figure, full bool, at time.Time) *shortage {
	if !f.Limit.Known() || !f.Used.Known() {
		return nil
	}
	switch {
	case s == nil && full:
		return &shortage{since: at}
	case s == nil:
		return nil
	case full:
		return &shortage{since: s.since}
	case f.Used < resume*f.Limit, !s.below.IsZero() && at.Sub(s.below) >= settled:
		return nil
	case s.below.IsZero():
		return &shortage{since: s.since, below: at}
	}
	return s
}

// nearShare is the share of a limit from which on it may be reached before
// long.
const nearShare = 0.5

// near says whether it is worth looking more often. The CPUs' mean moves
// slowly.
func (s State) near() bool {
	for _, f := range s.Figures {
		if f.Resource != CPU && f.Limit.Known() && f.Used > nearShare*f.Limit {
			return true
		}
	}
	return false
}
