package resources

import "time"

// tight is the minimum share of a limit at which load balancers should send new flows
// elsewhere. A periodic check would notice a reached limit too late, and a relay that
// resets at once looks least busy.
const tight = 0.95

// A reached limit counts as reached until the use falls below the share resume of it,
// or stays below the limit for the time settled. Otherwise the refused flows would
// return at once, and the shortage with them. The second rule is for use that does not
// fall further, such as resident memory that is mostly not the flows'.
const (
	resume  = 0.9
	settled = 10 * time.Second
)

// Change reports a limit that was reached or is no longer reached.
type Change struct {
	Figure  Figure
	Reached bool
	For     time.Duration // time for which it was reached; 0 while it is
}

// guard tracks the limits that are reached or nearly reached.
type guard struct{ reached, tight map[Resource]*shortage }

type shortage struct {
	since time.Time
	below time.Time // start of the use below the limit; zero: not below
}

// judge sets the limits of a state's figures and marks the reached ones. It returns
// the changes since the last state.
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

// next returns the shortage after a figure; nil means none. full reports whether one
// begins with it.
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

// nearShare is the minimum share of a limit at which it may soon be reached.
const nearShare = 0.5

// near reports whether to sample more often. The CPUs' mean changes slowly.
func (s State) near() bool {
	for _, f := range s.Figures {
		if f.Resource != CPU && f.Limit.Known() && f.Used > nearShare*f.Limit {
			return true
		}
	}
	return false
}
