package relay

import (
	"fmt"

	"longhaul/internal/carry/relay/hops"
)

// hopLeft logs that a hop gets no new flows, and moves the flows that are
// connecting to it to other hops.
func (r *Relay) hopLeft(tunnel string, h *hops.Hop, why string, err error, more ...any) {
	r.log.Warn("hop gets no new flows: "+why, append([]any{"tunnel", tunnel, "hop", h.Name(), "error", err}, more...)...)
	for _, w := range r.workers {
		w.post(func() {
			w.eachFlow(func(f *flow) { w.moveOn(f, h) })
		})
	}
}

// hopProbed handles a change of a hop's state by probes.
func (r *Relay) hopProbed(tunnel string, h *hops.Hop, err error) {
	if err != nil {
		r.hopLeft(tunnel, h, "its checks fail", err)
		return
	}
	r.log.Info("hop gets new flows again", "tunnel", tunnel, "hop", h.Name())
}

// DrainHop drains or restores a hop of a tunnel; an empty tunnel means every
// tunnel with the hop. Connected flows go on. It returns the names of the
// tunnels that have the hop, and an UnknownHopError if there is none.
func (r *Relay) DrainHop(tunnel, name string, drained bool) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found, known []string
	for _, in := range r.table.Load().tunnels {
		if tunnel != "" && in.tunnel.Name != tunnel {
			continue
		}
		for _, h := range in.hops.All() {
			known = append(known, h.Name())
			if h.Name() == name {
				h.Drain(drained)
				found = append(found, in.tunnel.Name)
			}
		}
	}
	r.HopsChanged()
	if len(found) == 0 {
		return nil, &UnknownHopError{Hop: name, Tunnel: tunnel, Known: known}
	}
	return found, nil
}

// UnknownHopError reports a hop that no tunnel, or not the named one, has.
type UnknownHopError struct {
	Hop, Tunnel string
	Known       []string
}

func (e *UnknownHopError) Error() string {
	if e.Tunnel == "" {
		return fmt.Sprintf("no tunnel has a hop %s", e.Hop)
	}
	return fmt.Sprintf("tunnel %s has no hop %s", e.Tunnel, e.Hop)
}

// Hops lists what the relay knows of hops that are not usable now, for the
// succeeding relay.
func (r *Relay) Hops() []hops.Memory {
	var all []hops.Memory
	for _, in := range r.table.Load().tunnels {
		all = append(all, in.hops.Memory(in.tunnel.Name)...)
	}
	return all
}

// HopFlows counts the flows of each hop, including those that are connecting.
func (r *Relay) HopFlows() map[hops.Name]int64 {
	flows := map[hops.Name]int64{}
	for _, in := range r.table.Load().tunnels {
		for _, h := range in.hops.All() {
			flows[hops.Name{Tunnel: in.tunnel.Name, Hop: h.Name()}] = h.Flows()
		}
	}
	return flows
}

// HopIsDrained reports whether a hop is out of service.
func (r *Relay) HopIsDrained(name hops.Name) bool {
	for _, in := range r.table.Load().tunnels {
		if in.tunnel.Name == name.Tunnel {
			h := in.hops.Find(name.Hop)
			return h != nil && h.Drained()
		}
	}
	return false
}
