package relay

import (
	"net/netip"
	"time"
)

// NameMemory is what a relay knows of a name, for the relay that follows it: an
// upgrade while no name server answers must not lose what is known. Times are
// from now on, and may have passed.
type NameMemory struct {
	Host    string        `json:"host"`
	Addrs   []netip.Addr  `json:"addresses"`
	Refresh time.Duration `json:"refresh_ns"` // until it is asked for again
	Until   time.Duration `json:"until_ns"`   // until it has run out
	Stale   time.Duration `json:"stale_ns"`   // until it is too old even where there is nothing else
}

// Names is what the relay knows of names.
func (r *Relay) Names() []NameMemory {
	r.names.mu.Lock()
	defer r.names.mu.Unlock()
	now := monotonic()
	var all []NameMemory
	for host, a := range r.names.known {
		if a.err == nil && now < a.stale {
			all = append(all, NameMemory{host, a.addrs, time.Duration(a.refresh - now), time.Duration(a.until - now), time.Duration(a.stale - now)})
		}
	}
	return all
}

// remember takes over what another relay knew.
func (n *names) remember(known []NameMemory) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := monotonic()
	for _, m := range known {
		if len(m.Addrs) == 0 {
			continue
		}
		n.known[m.Host] = answer{
			addrs:   m.Addrs,
			refresh: now + int64(min(m.Refresh, nameKeptMost)),
			until:   now + int64(min(m.Until, nameKeptMost)),
			stale:   now + int64(min(m.Stale, nameStaleMost+nameKeptMost)),
		}
	}
}
