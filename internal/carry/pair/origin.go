package pair

import "time"

// origin is a near tunnel, as its far relay knows it.
type origin struct {
	peer, tunnel string // the tunnel of the far relay
	name         string // that the near one gives itself; empty: none
}

// replaced reports whether another process has taken the place of the session's near relay, which is
// away: one of the same near tunnel and the same start of its host, which has been connected for
// long. A process that lives would be connected too, after an upgrade as well. That does not hold of
// relays that have run beside each other, nor of those on two hosts, whose paths fail each for
// itself.
func (n *Node) replaced(s *session, now time.Time, long time.Duration) bool {
	s.mu.Lock()
	alone := s.origin.name != "" && !s.twin
	s.mu.Unlock()
	if !alone {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, other := range n.accepted {
		if other != s && other.origin == s.origin && other.boot == s.boot && other.upSince(now) > long {
			return true
		}
	}
	return false
}

// findTwins finds near relays with the same key, host name and entrance that live beside each other,
// as clones of a host do. An older process that drains after an upgrade is none.
func (n *Node) findTwins(now time.Time) {
	within := max(n.options.ReplacedAfter, 3*pingEvery)
	alive, instances := map[origin][]*session{}, map[origin]map[uint64]bool{}
	n.mu.Lock()
	defer n.mu.Unlock()
	for key, s := range n.accepted {
		if s.origin.name == "" {
			continue
		}
		s.mu.Lock()
		s.beside = false
		// Who was heard since all of them were connected has not died meanwhile.
		if s.ctl != nil && !s.draining && now.Sub(s.since) > within && stamp(s.ctl.heard.Load()).until(now) < within {
			if instances[s.origin] == nil {
				instances[s.origin] = map[uint64]bool{}
			}
			instances[s.origin][key.Instance] = true
			alive[s.origin] = append(alive[s.origin], s)
		}
		s.mu.Unlock()
	}
	for o, all := range alive {
		if len(instances[o]) < 2 {
			continue
		}
		for _, s := range all {
			s.mu.Lock()
			s.twin, s.beside = true, true
			s.mu.Unlock()
		}
	}
}
