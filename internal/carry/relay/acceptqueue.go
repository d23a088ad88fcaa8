package relay

import (
	report "longhaul/internal/carry/flow"
	"longhaul/internal/sys/tcpinfo"
)

func (l *listener) acceptQueue() (q report.AcceptQueue, ok bool) {
	if l.unbound {
		return q, false
	}
	waiting, limit, err := tcpinfo.AcceptQueue(l.fd)
	if err != nil {
		return q, false
	}
	q = report.AcceptQueue{Listen: l.bound, Waiting: waiting, Limit: limit}
	if m, ok := socketMemory(l.fd); ok {
		q.Dropped = m[skDrops]
	}
	return q, true
}

// acceptQueues lists the queues by the names of their tunnels. The caller holds
// r.mu: a reload could close the descriptors.
func (r *Relay) acceptQueues() map[string][]report.AcceptQueue {
	queues := map[string][]report.AcceptQueue{}
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
func (r *Relay) AcceptQueues() []report.AcceptQueue {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []report.AcceptQueue
	for _, queues := range r.acceptQueues() {
		all = append(all, queues...)
	}
	return all
}
