package relay

import (
	"net/netip"

	"longhaul/internal/tcpinfo"
)

// AcceptQueue is what waits at a listening address to be accepted.
type AcceptQueue struct {
	Listen  netip.AddrPort `json:"listen"`
	Waiting uint32         `json:"waiting"`
	Limit   uint32         `json:"limit"`         // of those that may wait
	Dropped uint32         `json:"dropped_total"` // that the kernel turned away, mostly because too many waited
}

func (l *listener) acceptQueue() (q AcceptQueue, ok bool) {
	waiting, limit, err := tcpinfo.AcceptQueue(l.fd)
	if err != nil {
		return q, false
	}
	q = AcceptQueue{Listen: l.bound, Waiting: waiting, Limit: limit}
	if m, ok := socketMemory(l.fd); ok {
		q.Dropped = m[skDrops]
	}
	return q, true
}

// acceptQueues lists the queues by the names of their tunnels. Reloads are kept
// out meanwhile (r.mu): the descriptors must not become others'.
func (r *Relay) acceptQueues() map[string][]AcceptQueue {
	queues := map[string][]AcceptQueue{}
	for _, in := range r.table.Load().tunnels {
		for _, l := range in.listeners {
			if q, ok := l.acceptQueue(); ok {
				queues[in.tunnel.Name] = append(queues[in.tunnel.Name], q)
			}
		}
	}
	return queues
}

// AcceptQueues lists what waits at every listening address. It waits for a
// reload that is under way.
func (r *Relay) AcceptQueues() []AcceptQueue {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []AcceptQueue
	for _, queues := range r.acceptQueues() {
		all = append(all, queues...)
	}
	return all
}
