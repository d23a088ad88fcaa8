package monitor

import (
	"cmp"
	"slices"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/words/units"
)

// Pair is what the sessions between a tunnel and a paired relay add up to. There
// are several for a while after an upgrade of either relay.
type Pair struct {
	// PairSession has the sums. What describes one session is of one that is up,
	// or else of the latest.
	flow.PairSession
	Problems []string // of sessions that are not up
}

// pairKey names a Pair.
type pairKey struct {
	tunnel, peer string
	end          flow.PairRole
}

// pairTrack remembers the sessions of a pair, so that its counts never decrease.
type pairTrack struct {
	last map[string]flow.PairSession // by number
	gone pairCounts                  // of sessions that are no more
}

// pairCounts are counts that only grow in the life of a session.
type pairCounts struct {
	flows, resumes int64
	outage         units.Seconds
	plain, packed  int64
}

func (c *pairCounts) add(s *flow.PairSession) {
	c.flows, c.resumes, c.outage = c.flows+s.FlowsTotal, c.resumes+s.Resumes, c.outage+s.Outage
	c.plain, c.packed = c.plain+s.CompressedBytes, c.packed+s.CompressedToBytes
}

// pairs adds the sessions up, in the order of tunnels and peers. A pair without a
// session is forgotten.
func (m *Monitor) pairs(p *flow.Pairs) []Pair {
	if p == nil {
		clear(m.pairTracks)
		return nil
	}
	sessions := map[pairKey][]flow.PairSession{}
	for _, s := range p.Sessions {
		key := pairKey{s.Tunnel, s.Peer, s.End}
		sessions[key] = append(sessions[key], s)
	}
	for key := range m.pairTracks {
		if sessions[key] == nil {
			delete(m.pairTracks, key)
		}
	}
	all := make([]Pair, 0, len(sessions))
	for key, now := range sessions {
		t := m.pairTracks[key]
		if t == nil {
			t = &pairTrack{}
			m.pairTracks[key] = t
		}
		all = append(all, t.update(now))
	}
	slices.SortFunc(all, func(a, b Pair) int {
		return cmp.Or(cmp.Compare(a.Tunnel, b.Tunnel), cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.End, b.End))
	})
	return all
}

// update takes the present sessions, of which there is at least one.
func (t *pairTrack) update(now []flow.PairSession) Pair {
	here := make(map[string]flow.PairSession, len(now))
	for _, s := range now {
		here[s.Session] = s
	}
	for number, s := range t.last {
		if _, still := here[number]; !still {
			t.gone.add(&s)
		}
	}
	t.last = here
	out := Pair{PairSession: now[0]}
	for i := range now[1:] {
		if s := &now[1+i]; !out.Up && s.Up || out.Up == s.Up && s.Since.After(out.Since) {
			out.PairSession = *s
		}
	}
	out.LanesWarm, out.LanesBusy, out.FlowsMoving, out.FlowsParked, out.FlowsResuming, out.RetainedBytes = 0, 0, 0, 0, 0, 0
	out.FlowsStriped = 0
	counts := t.gone
	for i := range now {
		s := &now[i]
		counts.add(s)
		out.LanesWarm += s.LanesWarm
		out.FlowsStriped += s.FlowsStriped
		out.LanesBusy += s.LanesBusy
		out.FlowsMoving += s.FlowsMoving
		out.FlowsParked += s.FlowsParked
		out.FlowsResuming += s.FlowsResuming
		out.RetainedBytes += s.RetainedBytes
		if !s.Up && s.Problem != "" && !slices.Contains(out.Problems, s.Problem) {
			out.Problems = append(out.Problems, s.Problem)
		}
	}
	out.FlowsTotal, out.Resumes, out.Outage = counts.flows, counts.resumes, counts.outage
	out.CompressedBytes, out.CompressedToBytes = counts.plain, counts.packed
	return out
}

// DownFor is how long a pair has had no session; 0: it has one, or never had one.
func (p *Pair) DownFor(now time.Time) time.Duration {
	if p.Up || p.Since.IsZero() {
		return 0
	}
	return max(0, now.Sub(p.Since))
}
