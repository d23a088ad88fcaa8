package link

// wirePacket is one packet on the emulated wire: a plain packet, or one segment
// of a super-packet.
type wirePacket struct {
	super *superPacket
	size  int32  // bytes of the IP packet
	index uint16 // of the segment in super
	ce    bool   // marked by the link
	// at is the arrival at the link while the packet is queued, and the time of
	// delivery on the delay line, in nanoseconds.
	at  int64
	seq uint64 // order of entry to the delay line
}

// delayLine holds packets until they are due. Packets in order wait in a ring;
// jittered or held-back packets wait in a heap.
type delayLine struct {
	inOrder fifo[wirePacket]
	heap    []wirePacket
	lastDue int64 // of inOrder
	nextSeq uint64
}

func (l *delayLine) len() int { return l.inOrder.len() + len(l.heap) }

// push adds a packet that is due at p.at, or later if it must keep its order.
func (l *delayLine) push(p wirePacket, mayOvertake bool) {
	p.seq = l.nextSeq
	l.nextSeq++
	if mayOvertake {
		l.pushHeap(p)
		return
	}
	// A delay shortened at run time must not reorder packets.
	p.at = max(p.at, l.lastDue)
	l.lastDue = p.at
	l.inOrder.push(p)
}

// nextDue is the time of the next packet; false if no packet waits.
func (l *delayLine) nextDue() (int64, bool) {
	p := l.peek()
	if p == nil {
		return 0, false
	}
	return p.at, true
}

func (l *delayLine) peek() *wirePacket {
	var first *wirePacket
	if l.inOrder.len() > 0 {
		first = l.inOrder.front()
	}
	if len(l.heap) > 0 && (first == nil || before(&l.heap[0], first)) {
		first = &l.heap[0]
	}
	return first
}

// pop removes the next packet if it is due.
func (l *delayLine) pop(now int64) (wirePacket, bool) {
	p := l.peek()
	if p == nil || p.at > now {
		return wirePacket{}, false
	}
	if len(l.heap) > 0 && p == &l.heap[0] {
		return l.popHeap(), true
	}
	return l.inOrder.pop(), true
}

func before(a, b *wirePacket) bool {
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

// The heap is written out because container/heap would allocate per packet.

func (l *delayLine) pushHeap(p wirePacket) {
	l.heap = append(l.heap, p)
	for i := len(l.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !before(&l.heap[i], &l.heap[parent]) {
			return
		}
		l.heap[i], l.heap[parent] = l.heap[parent], l.heap[i]
		i = parent
	}
}

func (l *delayLine) popHeap() wirePacket {
	top := l.heap[0]
	last := len(l.heap) - 1
	l.heap[0] = l.heap[last]
	l.heap[last] = wirePacket{}
	l.heap = l.heap[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if before(&l.heap[child], &l.heap[least]) {
				least = child
			}
		}
		if least == i {
			return top
		}
		l.heap[i], l.heap[least] = l.heap[least], l.heap[i]
		i = least
	}
}
