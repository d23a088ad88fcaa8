package relay

import "time"

// HopName says which hop of which tunnel.
type HopName struct {
	Tunnel string `json:"tunnel"`
	Hop    string `json:"hop"`
}

// HopMemory is what a relay knows of a hop that can not be used, for the relay
// that follows it: flows of that one need not find it out again.
type HopMemory struct {
	HopName
	Drained    bool          `json:"drained,omitempty"`
	Down       bool          `json:"down,omitempty"` // says the check
	EjectedFor time.Duration `json:"ejected_for_ns,omitempty"`
	Ejections  int           `json:"ejections,omitempty"` // in a row
	Reason     string        `json:"reason,omitempty"`
}

// Hops is what the relay knows of the hops that can not be used.
func (r *Relay) Hops() []HopMemory {
	now := monotonic()
	var all []HopMemory
	for _, in := range r.table.Load().tunnels {
		for _, h := range in.hops {
			if h.usable(now) {
				continue
			}
			m := HopMemory{HopName: HopName{in.tunnel.Name, h.name}, Drained: h.drained.Load(), Down: h.down.Load()}
			h.mu.Lock()
			m.Reason = h.reason
			if until := h.ejected.Load(); until > now {
				m.EjectedFor, m.Ejections = time.Duration(until-now), h.ejections
			}
			h.mu.Unlock()
			all = append(all, m)
		}
	}
	return all
}

// HopFlows is how many flows each hop has, those that connect to it included.
func (r *Relay) HopFlows() map[HopName]int64 {
	flows := map[HopName]int64{}
	for _, in := range r.table.Load().tunnels {
		for _, h := range in.hops {
			flows[HopName{in.tunnel.Name, h.name}] = h.flows.Load()
		}
	}
	return flows
}

// HopIsDrained says whether a hop is out of service.
func (r *Relay) HopIsDrained(name HopName) bool {
	for _, in := range r.table.Load().tunnels {
		for _, h := range in.hops {
			if in.tunnel.Name == name.Tunnel && h.name == name.Hop {
				return h.drained.Load()
			}
		}
	}
	return false
}

// remember sets a new hop up as another relay knew it. What a check said counts
// only where checks go on: nothing else would take it back.
func (h *hop) remember(tunnel *Tunnel, known []HopMemory) {
	for _, m := range known {
		if m.Tunnel != tunnel.Name || m.Hop != h.name {
			continue
		}
		h.drain(m.Drained)
		h.mu.Lock()
		if m.Down && tunnel.Health.Probe != nil {
			h.down.Store(true)
			h.probed, h.since, h.reason = true, monotonic(), m.Reason
		}
		if m.EjectedFor > 0 {
			h.ejected.Store(monotonic() + int64(m.EjectedFor))
			h.ejections, h.since, h.reason = m.Ejections, monotonic(), m.Reason
		}
		h.mu.Unlock()
	}
}
