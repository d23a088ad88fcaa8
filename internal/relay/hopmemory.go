package relay

import (
	"time"

	"longhaul/internal/relay/monotime"
)

// HopName identifies a hop of a tunnel.
type HopName struct {
	Tunnel string `json:"tunnel"`
	Hop    string `json:"hop"`
}

// HopMemory is the state of an unusable hop, for the succeeding relay: its
// flows need not discover the state again.
type HopMemory struct {
	HopName
	Drained    bool          `json:"drained,omitempty"`
	Down       bool          `json:"down,omitempty"` // by probes
	EjectedFor time.Duration `json:"ejected_for_ns,omitempty"`
	Ejections  int           `json:"ejections,omitempty"` // in a row
	Reason     string        `json:"reason,omitempty"`
}

// Hops lists the hops that are not usable now.
func (r *Relay) Hops() []HopMemory {
	now := monotime.Now()
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
				m.EjectedFor, m.Ejections = until-now, h.ejections
			}
			h.mu.Unlock()
			all = append(all, m)
		}
	}
	return all
}

// HopFlows counts the flows of each hop, including those that are connecting.
func (r *Relay) HopFlows() map[HopName]int64 {
	flows := map[HopName]int64{}
	for _, in := range r.table.Load().tunnels {
		for _, h := range in.hops {
			flows[HopName{in.tunnel.Name, h.name}] = h.flows.Load()
		}
	}
	return flows
}

// HopIsDrained reports whether a hop is out of service.
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

// remember gives a new hop the state that another relay recorded. It adopts the
// result of probes only if the tunnel is probed: nothing else would clear it.
func (h *hop) remember(tunnel *Tunnel, known []HopMemory) {
	for _, m := range known {
		if m.Tunnel != tunnel.Name || m.Hop != h.name {
			continue
		}
		h.drain(m.Drained)
		h.mu.Lock()
		if m.Down && tunnel.Health.Probe != nil {
			h.down.Store(true)
			h.probed, h.since, h.reason = true, monotime.Now(), m.Reason
		}
		if m.EjectedFor > 0 {
			h.ejected.Store(monotime.Now() + m.EjectedFor)
			h.ejections, h.since, h.reason = m.Ejections, monotime.Now(), m.Reason
		}
		h.mu.Unlock()
	}
}
