package names

import (
	"net/netip"
	"time"

	"longhaul/internal/carry/relay/monotime"
)

// Memory is the cached answer for a name, for the cache of the succeeding
// process. Times count from now and may be negative.
type Memory struct {
	Host    string        `json:"host"`
	Addrs   []netip.Addr  `json:"addresses"`
	Refresh time.Duration `json:"refresh_ns"` // until the name is resolved again
	Until   time.Duration `json:"until_ns"`   // until the answer expires
	Stale   time.Duration `json:"stale_ns"`   // until the expired answer is too old to serve
}

// Memory lists the cached answers that are not too old to serve.
func (n *Cache) Memory() []Memory {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := monotime.Now()
	var all []Memory
	for host, a := range n.known {
		if a.err == nil && now < a.stale {
			all = append(all, Memory{host, a.addrs, a.refresh - now, a.until - now, a.stale - now})
		}
	}
	return all
}

// Remember adopts the cached answers of another process.
func (n *Cache) Remember(known []Memory) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := monotime.Now()
	for _, m := range known {
		if len(m.Addrs) == 0 {
			continue
		}
		n.known[m.Host] = answer{
			addrs:   m.Addrs,
			refresh: now + min(m.Refresh, maxTTL),
			until:   now + min(m.Until, maxTTL),
			stale:   now + min(m.Stale, maxStale+maxTTL),
		}
	}
}
