package monitor

import (
	"cmp"
	"slices"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/words/sorted"
	"longhaul/internal/words/units"
)

// Pair is what the sessions between a tunnel and a paired relay add up to. There
// are several for a while after an upgrade of either relay.
type Pair struct {
	// Session has the sums. What describes one session is of one that is up, if possible
	// of one whose new connections are not refused, or else of the latest.
	flow.Session
	Problems []flow.PairProblem // of sessions that are not up, or whose new connections are refused
	Sent     int64              `json:"-"` // data of flows to the other relay, so far
}

// pairKey names a Pair.
type pairKey struct {
	tunnel, peer string
	end          flow.PairRole
}

// pairTrack remembers the sessions of a pair, so that its counts never decrease.
type pairTrack struct {
	last map[string]flow.Session // by number
	gone flow.Session            // the totals of sessions that are no more
}

// pairs adds the sessions up, in the order of tunnels and peers. A pair without a
// session is forgotten.
func (m *Monitor) pairs(p *flow.Pairs) []Pair {
	if p == nil {
		clear(m.pairTracks)
		return nil
	}
	sessions := map[pairKey][]flow.Session{}
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
		p := t.update(now)
		if t := m.tunnels[key.tunnel]; t != nil {
			b := t.last.Peers[key.peer]
			if p.Sent = b.Up; key.end == flow.FarEnd {
				p.Sent = b.Down
			}
		}
		all = append(all, p)
	}
	sorted.By(all, func(a, b Pair) int {
		return cmp.Or(cmp.Compare(a.Tunnel, b.Tunnel), cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.End, b.End))
	})
	return all
}

// update takes the present sessions, of which there is at least one.
func (t *pairTrack) update(now []flow.Session) Pair {
	here := make(map[string]flow.Session, len(now))
	for _, s := range now {
		here[s.Session] = s
	}
	for number, s := range t.last {
		if _, still := here[number]; !still {
			t.gone.AddTotals(&s)
		}
	}
	t.last = here
	rank := func(s *flow.Session) int {
		switch {
		case s.Up && !s.Refused():
			return 0
		case s.Up:
			return 1
		}
		return 2
	}
	shown := 0
	for i := range now {
		if s, best := &now[i], &now[shown]; cmp.Or(cmp.Compare(rank(s), rank(best)), best.Since.Compare(s.Since)) < 0 {
			shown = i
		}
	}
	out := Pair{Session: now[shown]}
	out.AddTotals(&t.gone)
	for i := range now {
		s := &now[i]
		if i != shown {
			out.Add(s)
		}
		problem := s.Problem
		if s.Refused() {
			problem = s.LaneProblem
		}
		if (!s.Up || s.Refused()) && problem != "" && !slices.Contains(out.Problems, problem) {
			out.Problems = append(out.Problems, problem)
		}
	}
	return out
}

// hopRTTs are the round-trip times of the sessions of near tunnels, by hop.
type hopRTTs map[hopKey]units.Seconds

// hopKey names a hop as sessions do: that of a tunnel with one has no name, unless a service gave it.
type hopKey struct{ tunnel, hop string }

// sessionRTTs finds the sessions that are up; one that takes new flows counts before one that drains.
func sessionRTTs(p *flow.Pairs) hopRTTs {
	if p == nil {
		return nil
	}
	all, takes := hopRTTs{}, map[hopKey]bool{}
	for i := range p.Sessions {
		s := &p.Sessions[i]
		key := hopKey{s.Tunnel, s.Hop}
		if s.End != flow.NearEnd || !s.Up || s.RTT <= 0 || takes[key] {
			continue
		}
		all[key], takes[key] = s.RTT, !s.Draining
	}
	return all
}

// of is the round-trip time of the session of a hop; 0: it has none. Flows that are silent have no legs
// to a far relay, and a session is measured all the time.
func (r hopRTTs) of(t *Tunnel, hop int) units.Seconds {
	key := hopKey{t.Name, t.Hops[hop].Name}
	if len(t.Hops) == 1 && t.Service == nil {
		key.hop = ""
	}
	return r[key]
}

// DownFor is how long a pair has had no session; 0: it has one, or never had one.
func (p *Pair) DownFor(now time.Time) time.Duration {
	if p.Up || p.Since.IsZero() {
		return 0
	}
	return max(0, now.Sub(p.Since))
}
