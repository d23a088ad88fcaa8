package hops

import (
	"slices"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/monotime"
)

// Name identifies a hop of a tunnel.
type Name struct {
	Tunnel string `json:"tunnel"`
	Hop    string `json:"hop"`
}

// Memory is the state of a hop that was tried or drained, for the succeeding process: its
// flows need not discover the state again.
type Memory struct {
	Name
	Drained    bool          `json:"drained,omitempty"`
	Worked     bool          `json:"worked,omitempty"`
	Failing    bool          `json:"failing,omitempty"`
	Down       bool          `json:"down,omitempty"` // by probes
	EjectedFor time.Duration `json:"ejected_for_ns,omitempty"`
	Ejections  int           `json:"ejections,omitempty"` // in a row
	Reason     string        `json:"reason,omitempty"`
}

// Memory lists the hops of a tunnel that were tried or drained.
func (s *Set) Memory(tunnel string) []Memory {
	now := monotime.Now()
	var all []Memory
	for _, h := range slices.Concat(s.hops, s.absent) {
		if h.state(now) == flow.HopUntried {
			continue
		}
		m := Memory{Name: Name{tunnel, h.name}, Drained: h.drained.Load(), Down: h.down.Load(), Worked: h.worked.Load()}
		h.mu.Lock()
		if m.Failing = h.failing.Load(); m.Failing {
			m.EjectedFor, m.Ejections = max(h.ejected.Load()-now, 0), h.ejections
		}
		if m.Failing || m.Down {
			m.Reason = h.reason
		}
		h.mu.Unlock()
		all = append(all, m)
	}
	return all
}

// Remember gives the hops of a tunnel the states that another process recorded.
// It adopts the result of probes only if the tunnel is probed: nothing else
// would clear it. A drained hop that the set lacks is remembered as by KeepDrained, if absent.
func (s *Set) Remember(tunnel string, known []Memory, absent bool) {
	for _, m := range known {
		h := s.Find(m.Hop)
		if m.Tunnel == tunnel && h == nil && absent && m.Drained && len(s.absent) < maxAbsent {
			h = &Hop{name: m.Hop}
			s.absent = append(s.absent, h)
		}
		if m.Tunnel != tunnel || h == nil {
			continue
		}
		h.Drain(m.Drained)
		h.mu.Lock()
		if m.Down && s.health.Probe != nil {
			h.down.Store(true)
			h.probed, h.since, h.reason = true, monotime.Now(), m.Reason
		}
		h.worked.Store(m.Worked)
		if m.Failing || m.EjectedFor > 0 { // an earlier program says the latter alone
			h.failing.Store(true)
			h.failures.Store(1)
			h.ejected.Store(monotime.Now() + m.EjectedFor)
			h.ejections, h.since, h.reason = m.Ejections, monotime.Now(), m.Reason
		}
		h.mu.Unlock()
	}
}
