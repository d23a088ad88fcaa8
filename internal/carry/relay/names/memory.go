package names

import (
	"net/netip"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/monotime"
	"longhaul/internal/words/units"
)

// Memory is the cached answer for a name, for the cache of the succeeding
// process. Times count from now and may be negative.
type Memory struct {
	Host    string        `json:"host"`
	Addrs   []netip.Addr  `json:"addresses"`
	Refresh time.Duration `json:"refresh_ns"` // until the name is resolved again
	Until   time.Duration `json:"until_ns"`   // until the answer expires
	Stale   time.Duration `json:"stale_ns"`   // until the expired answer is too old to serve

	Targets []Target `json:"targets,omitempty"` // in place of Addrs, of a service
}

// Memory lists the cached answers that are not too old to serve.
func (n *Cache) Memory() []Memory {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := monotime.Now()
	var all []Memory
	for host, a := range n.known {
		if a.err == nil && now < a.stale {
			all = append(all, Memory{Host: host, Addrs: a.addrs, Refresh: a.refresh - now, Until: a.until - now, Stale: a.stale - now})
		}
	}
	for name, s := range n.services {
		if len(s.Targets) > 0 {
			until := s.answered + time.Duration(s.TTL) - now
			all = append(all, Memory{Host: name, Targets: s.Targets, Refresh: until, Until: until, Stale: s.answered + maxStale - now})
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
		if len(m.Targets) > 0 && m.Stale > 0 {
			age := max(0, maxStale-m.Stale)
			n.services[m.Host] = &followed{answered: now - age, Service: Service{Targets: m.Targets, Service: flow.Service{
				Name: m.Host, Found: len(m.Targets), Answered: time.Now().Add(-age), TTL: units.Seconds(kept(m.Until + age)),
				State: flow.ServiceAnswered, Since: time.Now().Add(-age)}}}
		}
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
