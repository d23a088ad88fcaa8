package relay

import (
	"net/netip"

	"longhaul/internal/tcpinfo"
)

// AcceptQueue is the queue of connections that wait to be accepted at a
// listening address.
type AcceptQueue struct {
	Listen  netip.AddrPort `json:"listen"`
	Waiting uint32         `json:"waiting"`
	Limit   uint32         `json:"limit"`         // of waiting connections
	Dropped uint32         `json:"dropped_total"` // refused by the kernel, mostly because the queue was full
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

// acceptQueues lists the queues by the names of their tunnels. The caller holds
// r.mu: a reload could close the descriptors.
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

// AcceptQueues lists the queue of every listening address. It waits for a
// running reload.
func (r *Relay) AcceptQueues() []AcceptQueue {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []AcceptQueue
	for _, queues := range r.acceptQueues() {
		all = append(all, queues...)
	}
	return all
}
