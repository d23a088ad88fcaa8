package pcap

import (
	"cmp"
	"container/heap"
	"math"
	"time"
)

// order passes packets on in the order of time. Captures of several queues have them in
// another, and a clock that is set back makes all that follows earlier.
type order struct {
	pass   func(*packet)
	queue  []packet // in order, the next at head
	head   int
	late   latePackets // those that came after a later one
	count  int64
	newest int64 // latest time so far
	// offset is added to times since the clock was set back, and before was added
	// until then: one packet may have a wrong time, and two clocks may alternate.
	offset, before int64
	epoch          int // number of changes between both
}

const (
	// sortWithin is the time within which packets are sorted. What is earlier has
	// another clock. maxSorted bounds the packets held for that.
	sortWithin = int64(time.Second)
	maxSorted  = 1 << 15
	// largeStep exceeds the usual pauses in a capture. A clock that was set back by more, and
	// then seems to have passed that time at once, was set right.
	largeStep = int64(time.Minute)
	// maxTime bounds times, so that sums of them stay valid.
	maxTime = math.MaxInt64 / 8
)

// add takes a packet in the order of the file.
func (o *order) add(p *packet) {
	own := min(max(p.at, -maxTime), maxTime)
	fits := func(offset int64) bool {
		return own+offset >= o.newest-sortWithin && own+offset <= o.newest+sortWithin
	}
	switch {
	case o.count == 0, fits(o.offset):
	case fits(o.before):
		o.offset, o.before = o.before, o.offset
		o.epoch++
	case own+o.before >= o.newest-sortWithin && o.offset-o.before > largeStep && own+o.offset > o.newest:
		// It was set back, and is right again: the step is no time.
		o.offset, o.before = o.before, o.offset
		o.epoch++
	case own+o.offset < o.newest:
		p.behind = o.newest - own - o.offset
		o.before, o.offset = o.offset, o.newest-own
		o.epoch++
	}
	p.at, p.epoch = min(max(own+o.offset, 0), maxTime), o.epoch
	p.behind = max(p.behind, o.newest-p.at)
	o.count++
	if n := len(o.queue); n == o.head || p.at >= o.queue[n-1].at {
		o.queue = append(o.queue, *p)
	} else {
		heap.Push(&o.late, latePacket{*p, o.count})
	}
	o.newest = max(o.newest, p.at)
	for o.held() > maxSorted || o.held() > 0 && o.next().at < o.newest-sortWithin {
		o.release()
	}
}

func (o *order) held() int { return len(o.queue) - o.head + len(o.late) }

// next is the earliest packet held.
func (o *order) next() *packet {
	if o.isLateNext() {
		return &o.late[0].packet
	}
	return &o.queue[o.head]
}

func (o *order) isLateNext() bool {
	return len(o.late) > 0 && (o.head == len(o.queue) || o.late[0].at < o.queue[o.head].at)
}

// release passes on the earliest packet.
func (o *order) release() {
	if o.isLateNext() {
		p := heap.Pop(&o.late).(latePacket).packet
		o.pass(&p)
		return
	}
	o.pass(&o.queue[o.head])
	if o.head++; 2*o.head >= len(o.queue) {
		o.queue = o.queue[:copy(o.queue, o.queue[o.head:])]
		o.head = 0
	}
}

// flush passes on all packets.
func (o *order) flush() {
	for o.held() > 0 {
		o.release()
	}
}

// latePackets is a heap of packets by time, and by their order in the file.
type latePackets []latePacket

type latePacket struct {
	packet
	number int64
}

func (l latePackets) Len() int { return len(l) }

func (l latePackets) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(l[i].at, l[j].at), cmp.Compare(l[i].number, l[j].number)) < 0
}

func (l latePackets) Swap(i, j int) { l[i], l[j] = l[j], l[i] }

// Push implements heap.Interface.
func (l *latePackets) Push(p any) { *l = append(*l, p.(latePacket)) }

// Pop implements heap.Interface.
func (l *latePackets) Pop() any {
	last := (*l)[len(*l)-1]
	*l = (*l)[:len(*l)-1]
	return last
}
