package link

import (
	"cmp"
	"slices"
)

// FQ-CoDel (RFC 8290) hashes flows to queues, serves the queues by deficit round
// robin, and manages each with CoDel. A flow that sends less than its share finds its
// queue empty and is served before the others.
//
// The quantum is one full packet. The queues' common bound is the bottleneck's, in
// bytes.

const (
	fairQueues     = 1024 // RFC 8290, section 5.2.5
	fairDropsBatch = 64   // section 4.1: most packets dropped at once by an overflow
)

// fairQueue has the queues of the flows.
type fairQueue struct {
	flows    [fairQueues]*flowQueue // nil until used
	new, old fifo[*flowQueue]       // queues to serve: those that just became active first
	packets  int
}

// flowQueue is the queue of the flows with one hash.
type flowQueue struct {
	packets fifo[wirePacket]
	bytes   int
	deficit int // bytes that it may send in this round
	codel   codelState
	listed  bool // in one of the lists
}

// push adds a packet to the queue of its flow.
func (f *fairQueue) push(p wirePacket, flow uint64, quantum int) {
	q := f.flows[flow%fairQueues]
	if q == nil {
		q = new(flowQueue)
		f.flows[flow%fairQueues] = q
	}
	q.packets.push(p)
	q.bytes += int(p.size)
	f.packets++
	if !q.listed {
		q.listed, q.deficit = true, quantum
		f.new.push(q)
	}
}

// pop removes the next packet to send at now. overdue decides whether CoDel drops it,
// after its removal.
func (f *fairQueue) pop(quantum int, overdue func(q *flowQueue, p *wirePacket) bool) (wirePacket, bool) {
	for {
		list := &f.new
		if list.len() == 0 {
			list = &f.old
		}
		if list.len() == 0 {
			return wirePacket{}, false
		}
		q := *list.front()
		if q.deficit <= 0 {
			q.deficit += quantum
			f.old.push(list.pop())
			continue
		}
		for q.packets.len() > 0 {
			p := f.take(q)
			if !overdue(q, &p) {
				q.deficit -= int(p.size)
				return p, true
			}
		}
		// An empty new queue takes a turn as an old one. Otherwise a flow of
		// single packets could starve the old queues.
		list.pop()
		if list == &f.new {
			f.old.push(q)
		} else {
			q.listed = false
		}
	}
}

// take removes the first packet of a queue.
func (f *fairQueue) take(q *flowQueue) wirePacket {
	p := q.packets.pop()
	q.bytes -= int(p.size)
	f.packets--
	return p
}

// inOrder returns all packets in the order of their arrival.
func (f *fairQueue) inOrder() []wirePacket {
	var all []wirePacket
	for _, q := range f.flows {
		for q != nil && q.packets.len() > 0 {
			all = append(all, f.take(q))
		}
	}
	slices.SortStableFunc(all, func(a, b wirePacket) int { return cmp.Compare(a.at, b.at) })
	return all
}

// dropFattest removes half of the packets of the queue with most bytes, at most
// fairDropsBatch, from its head.
func (f *fairQueue) dropFattest(drop func(wirePacket)) {
	var fattest *flowQueue
	for _, q := range f.flows {
		if q != nil && (fattest == nil || q.bytes > fattest.bytes) {
			fattest = q
		}
	}
	for range min((fattest.packets.len()+1)/2, fairDropsBatch) {
		drop(f.take(fattest))
	}
}
