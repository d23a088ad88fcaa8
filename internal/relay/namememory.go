package relay

import (
	"net/netip"
	"time"

	"longhaul/internal/relay/monotime"
)

// NameMemory is the cached answer for a name, for the succeeding relay. An
// upgrade while no name server answers must not lose it. Times count from now
// and may be negative.
type NameMemory struct {
	Host    string        `json:"host"`
	Addrs   []netip.Addr  `json:"addresses"`
	Refresh time.Duration `json:"refresh_ns"` // until the name is resolved again
	Until   time.Duration `json:"until_ns"`   // until the answer expires
	Stale   time.Duration `json:"stale_ns"`   // until the expired answer is too old to serve
}

// Names lists the cached answers that are not too old to serve.
func (r *Relay) Names() []NameMemory {
	r.names.mu.Lock()
	defer r.names.mu.Unlock()
	now := monotime.Now()
	var all []NameMemory
	for host, a := range r.names.known {
		if a.err == nil && now < a.stale {
			all = append(all, NameMemory{host, a.addrs, a.refresh - now, a.until - now, a.stale - now})
		}
	}
	return all
}

// remember adopts the cached answers of another relay.
func (n *names) remember(known []NameMemory) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := monotime.Now()
	for _, m := range known {
		if len(m.Addrs) == 0 {
			continue
		}
		n.known[m.Host] = answer{
			addrs:   m.Addrs,
			refresh: now + min(m.Refresh, maxNameTTL),
			until:   now + min(m.Until, maxNameTTL),
			stale:   now + min(m.Stale, maxNameStale+maxNameTTL),
		}
	}
}
