package link

import "math"

// maxHeldBytes bounds the memory of one direction. Only a flood over a link
// without a rate reaches it; excess packets count as dropped by the queue.
const maxHeldBytes = 1 << 30

// pipe decides the fate of every packet of one direction. It uses no clock and
// no device. All methods take the time in nanoseconds of any origin, which must
// never go backwards.
//
//	arrive -> outage? -> MTU? -> loss before? -> ACK thinning -> policer -> queue with its AQM -> bottleneck
//	-> aggregation -> loss after? -> delay line -> pop
type pipe struct {
	settings   Settings
	queueLimit int // bytes; 0 means no bound
	dice       *dice

	policer policer
	trace   *replay     // nil without a trace
	thinner *ackThinner // nil without thinning
	rate    rateMeter   // of what arrives, while RateLoss is set

	losesMore bool // by RateLoss or a trace

	burst burst

	// Packets wait in queue, or in fair with FQ-CoDel.
	queue       fifo[wirePacket]
	queuedBytes int // of the queue, including the packet in service
	codel       codel
	codelState  codelState // of queue
	fair        *fairQueue // nil without FQ-CoDel
	pie         *pie       // nil without PIE

	// The bottleneck runs on exact virtual time. current is in service from
	// startAt until finishAt, and its follower from then. freeAt is when an idle
	// bottleneck may begin: the end of the last service, or the arrival of the
	// first packet after it. The remaining fraction of a nanosecond is carried to
	// the next packet.
	bounded        bool // there is a bottleneck
	serving        bool
	readyAt        int64 // while packets wait for a trace: when it carries something
	current        wirePacket
	startAt        int64
	finishAt       int64
	freeAt         int64
	fraction       int64 // of a bit, in 1e-9
	packetFraction int64 // in 1/PacketsPerSecond ns

	line      delayLine
	heldBytes int

	counters   Counters // the plain sums
	queueDelay *histogram

	// recycle takes back super-packets without remaining segments.
	recycle func(*superPacket)
}

func newPipe(s Settings, queueLimit int, recycle func(*superPacket)) *pipe {
	p := &pipe{
		settings:   s,
		queueLimit: queueLimit,
		dice:       newDice(s.Seed),
		queueDelay: new(histogram),
		recycle:    recycle,
		bounded:    s.bounded(),
	}
	p.manage(0)
	p.begin(0)
	p.setThinning(0)
	return p
}

// setThinning begins or ends the thinning of acknowledgements. It passes on those that
// are held.
func (p *pipe) setThinning(now int64) {
	if p.thinner != nil {
		for _, some := p.thinner.next(); some; _, some = p.thinner.next() {
			p.release(now, (*p.thinner.order.front()).flow)
		}
		p.thinner = nil
	}
	if p.settings.ACKThinning > 1 {
		p.thinner = &ackThinner{held: map[uint64]*heldACK{}}
	}
}

// begin begins the trace, if there is one.
func (p *pipe) begin(now int64) {
	p.trace = nil
	if p.settings.Trace != nil {
		p.trace = newReplay(p.settings.Trace, now)
	}
	p.losesMore = p.hasMoreLoss()
}

func (p *pipe) hasMoreLoss() bool {
	return p.settings.RateLoss.Share > 0 || p.trace != nil && p.trace.hasLoss
}

// manage sets up the queue's management, and moves the packets that wait.
func (p *pipe) manage(now int64) {
	s := &p.settings
	p.codel, p.codelState = newCodel(*s), codelState{}
	p.pie = nil
	if s.AQM.Algorithm == PIE {
		p.pie = newPIE(now, s.Seed)
	}
	if p.fair != nil {
		for _, packet := range p.fair.inOrder() {
			p.queue.push(packet)
		}
		p.fair = nil
	}
	if s.AQM.Algorithm == FQCoDel {
		p.fair = new(fairQueue)
		for p.queue.len() > 0 {
			p.pushFair(p.queue.pop())
		}
	}
}

// set changes the settings for everything that the bottleneck has not yet
// served. The packet in service continues at the new rate, and leaves at once if the
// trace changes.
func (p *pipe) set(now int64, s Settings, queueLimit int) {
	p.advance(now)
	retraced := s.Trace != p.settings.Trace
	if p.serving && (retraced || s.RateBps != p.settings.RateBps) {
		left := p.finishAt - now
		if retraced || s.RateBps == 0 || p.settings.RateBps == 0 {
			left = 0
		} else {
			// No overflow: the product is at most size*8e9, or a second's
			// share.
			left = left * p.settings.RateBps / s.RateBps
		}
		p.finishAt = now + left
		p.fraction = 0
	}
	if s.Seed != p.settings.Seed {
		p.dice = newDice(s.Seed)
	}
	if !p.serving && p.trace != nil {
		p.freeAt = max(p.freeAt, now) // it may have waited for the old trace
	}
	rethin := s.ACKThinning != p.settings.ACKThinning
	remanage := s.AQM != p.settings.AQM || s.mtu() != p.settings.mtu()
	p.settings, p.queueLimit, p.bounded = s, queueLimit, s.bounded()
	if retraced {
		p.begin(now)
	}
	p.losesMore = p.hasMoreLoss()
	if remanage {
		p.manage(now)
	}
	if rethin {
		p.setThinning(now)
	}
	if s.Aggregate.Every == 0 {
		p.burst.releaseAt = min(p.burst.releaseAt, now)
	}
	p.advance(now)
}

// arrive processes a packet, or all segments of a super-packet, that reaches
// the link now.
func (p *pipe) arrive(now int64, super *superPacket) {
	p.advance(now)
	s, c := &p.settings, &p.counters
	mtu := s.mtu()
	super.refs++ // the own reference, so that a drop recycles it exactly once
	for i := range super.segments {
		size := super.segmentSize(i)
		c.PacketsIn++
		c.BytesIn += uint64(size)
		if s.Down {
			c.Outage++
			continue
		}
		if size > mtu {
			c.TooBig++
			continue
		}
		lost := s.LossPlace == LossBefore && p.dice.lose(&s.Loss)
		if p.losesMore {
			lost = p.loseMoreBefore(now, size) || lost
		}
		if lost {
			c.Lost++
			continue
		}
		if p.heldBytes+size > maxHeldBytes {
			c.QueueDrops++
			continue
		}
		if s.Alter > 0 && hit(p.dice.alter.Uint64(), s.Alter) && super.alter(i) {
			c.Altered++
		}
		super.refs++
		p.heldBytes += size
		packet := wirePacket{super: super, index: uint16(i), size: int32(size), at: now}
		if p.thinner != nil {
			p.thin(now, packet)
		} else {
			p.enqueue(now, packet)
		}
	}
	p.advance(now)
	p.unref(super)
}

// enqueue puts a packet into the queue, if the policer and the queue take it.
func (p *pipe) enqueue(now int64, packet wirePacket) {
	s, c := &p.settings, &p.counters
	size := int(packet.size)
	switch {
	case s.Policer.RateBps > 0 && !p.policer.admit(now, size, packet.super, s):
		c.Policed++
	case p.bounded && p.fair == nil && p.queuedBytes+size > p.queueLimit:
		c.QueueDrops++
	case p.pie != nil && p.pie.drop(now, p.queuedBytes, s.AQM.TargetOrDefault(), s.mtu()) &&
		!(p.pie.probability < pieMarkBelow && p.mark(&packet)):
		c.AQMDrops++
	default:
		if !p.serving && p.waiting() == 0 && now > p.freeAt {
			p.freeAt, p.fraction, p.packetFraction = now, 0, 0
		}
		p.queuedBytes += size
		if p.fair == nil {
			p.queue.push(packet)
		} else {
			p.pushFair(packet)
			p.overflow()
		}
		return
	}
	p.drop(packet)
}

// pushFair adds a packet to FQ-CoDel's queues.
func (p *pipe) pushFair(packet wirePacket) {
	p.fair.push(packet, packet.super.flow(p.settings.Seed), p.codel.maxPacket)
}

// waiting is the number of packets in the queue, without the one in service.
func (p *pipe) waiting() int {
	if p.fair != nil {
		return p.fair.packets
	}
	return p.queue.len()
}

// overflow drops packets of FQ-CoDel's longest queue until the others fit.
func (p *pipe) overflow() {
	for p.queuedBytes > p.queueLimit && p.fair.packets > 0 {
		p.fair.dropFattest(func(packet wirePacket) {
			p.counters.QueueDrops++
			p.queuedBytes -= int(packet.size)
			p.drop(packet)
		})
	}
}

// advance makes everything happen that is due up to now.
func (p *pipe) advance(now int64) {
	if p.thinner != nil {
		p.releaseUntil(now)
	}
	p.serveUntil(now)
	if p.burst.packets.len() > 0 {
		p.releaseBurst(now)
	}
}

// serveUntil serves the queue up to now.
func (p *pipe) serveUntil(now int64) {
	for {
		if !p.serving {
			if p.trace != nil && !p.awaitTrace(now) || !p.dequeue() {
				return
			}
			if mark := int64(p.settings.MarkAbove); mark > 0 && p.freeAt-p.current.at >= mark {
				p.setCE(&p.current)
			}
			p.serve()
		}
		if p.finishAt > now {
			return
		}
		p.queuedBytes -= int(p.current.size)
		p.serving = false
		p.freeAt = p.finishAt
		if p.bounded {
			p.queueDelay.add(p.startAt - p.current.at)
		}
		if p.settings.Aggregate.Every > 0 {
			p.gather(p.current, p.finishAt)
		} else {
			p.propagate(p.current, p.finishAt)
		}
	}
}

// awaitTrace moves freeAt to the time at which the trace carries something. It returns
// false if no packet waits, or that time has not come.
func (p *pipe) awaitTrace(now int64) bool {
	if p.waiting() == 0 {
		return false
	}
	p.readyAt = p.trace.ready(p.freeAt)
	if p.readyAt > now {
		return false
	}
	p.freeAt = p.readyAt
	return true
}

// dequeue takes the next packet out of the queue for service at freeAt. It returns
// false if the queue is empty.
func (p *pipe) dequeue() (some bool) {
	if p.fair != nil {
		p.current, some = p.fair.pop(p.codel.maxPacket, func(q *flowQueue, packet *wirePacket) bool {
			return p.overdue(&q.codel, packet, q.bytes)
		})
		return some
	}
	for p.queue.len() > 0 {
		p.current = p.queue.pop()
		switch p.settings.AQM.Algorithm {
		case CoDel:
			if p.overdue(&p.codelState, &p.current, p.queuedBytes-int(p.current.size)) {
				continue
			}
		case PIE:
			p.pie.left(p.freeAt, p.freeAt-p.current.at, p.queue.len() == 0, p.settings.AQM.TargetOrDefault())
		}
		return true
	}
	return false
}

// overdue reports whether CoDel dropped a packet that left a queue with behind bytes
// in it. It may mark the packet instead.
func (p *pipe) overdue(q *codelState, packet *wirePacket, behind int) bool {
	if !p.codel.drop(q, p.freeAt, p.freeAt-packet.at, behind) || p.mark(packet) {
		return false
	}
	p.counters.AQMDrops++
	p.queuedBytes -= int(packet.size)
	p.drop(*packet)
	return true
}

// mark marks a packet that the AQM would drop, if it uses ECN and the packet is
// capable of it.
func (p *pipe) mark(packet *wirePacket) bool {
	return p.settings.AQM.ECN && p.setCE(packet)
}

// setCE marks a packet if it is capable of ECN. It counts packets that are marked
// already as they arrive, but none twice.
func (p *pipe) setCE(packet *wirePacket) bool {
	if !ecnCapable(packet.super.packet) {
		return false
	}
	if !packet.ce {
		packet.ce = true
		p.counters.Marked++
	}
	return true
}

// serve starts the transmission of the current packet at freeAt.
func (p *pipe) serve() {
	p.startAt, p.finishAt = p.freeAt, p.freeAt
	if p.trace != nil {
		p.finishAt, p.fraction = p.trace.serve(p.startAt, int64(p.current.size)*8e9+p.fraction)
	} else if rate := p.settings.RateBps; rate > 0 {
		work := int64(p.settings.wireBytes(int(p.current.size)))*8e9 + p.fraction
		p.finishAt += work / rate
		p.fraction = work % rate
	}
	if rate := p.settings.PacketsPerSecond; rate > 0 {
		work := int64(1e9) + p.packetFraction
		if finish := p.startAt + work/rate; finish > p.finishAt {
			p.finishAt = finish
			p.packetFraction = work % rate
		}
	}
	p.serving = true
}

// propagate puts a packet that left the bottleneck at the given time on the
// delay line.
func (p *pipe) propagate(packet wirePacket, left int64) {
	s := &p.settings
	if s.LossPlace == LossAfter {
		lost := p.dice.lose(&s.Loss)
		if p.loseByTrace(left) || lost {
			p.counters.Lost++
			p.drop(packet)
			return
		}
	}
	delay := int64(s.Delay)
	if p.trace != nil && p.trace.HasDelay() {
		step, _ := p.trace.at(left)
		delay = int64(step.Delay)
	}
	delay = max(delay+p.dice.jitterBy(s.Jitter), 0)
	held := p.dice.holdBack(&s.Reorder)
	if held {
		delay += int64(s.Reorder.Hold)
		p.counters.Reordered++
	}
	packet.at = left + delay
	p.line.push(packet, s.Jitter > 0 || held)
}

// next is the earliest time at which pop may return a packet; false if the pipe
// is empty.
func (p *pipe) next() (int64, bool) {
	due, pending := p.line.nextDue()
	const never = math.MaxInt64
	first := int64(never) // no packet can leave the bottleneck earlier
	switch {
	case p.serving:
		first = p.finishAt
	case p.trace != nil && p.waiting() > 0:
		first = p.readyAt
	}
	if p.burst.packets.len() > 0 { // those that follow are released later
		first = p.burst.releaseAt
		if p.serving && p.settings.Aggregate.Bytes > 0 {
			first = min(first, p.finishAt)
		}
	}
	if p.thinner != nil {
		if release, some := p.thinner.next(); some {
			first = min(first, release)
		}
	}
	if first == never {
		return due, pending
	}
	delay := int64(p.settings.Delay)
	if p.trace != nil && p.trace.HasDelay() {
		delay = p.trace.minDelay
	}
	if first += max(delay-int64(p.settings.Jitter), 0); !pending || first < due {
		return first, true
	}
	return due, pending
}

// loseMoreBefore reports whether a packet that arrives now is lost before the
// bottleneck by its rate or its trace.
func (p *pipe) loseMoreBefore(now int64, size int) (lost bool) {
	s := &p.settings
	if s.RateLoss.Share > 0 {
		lost = hit(p.dice.rateLoss.Uint64(), s.RateLoss.ShareAt(p.rate.add(now, size)))
	}
	if s.LossPlace == LossBefore {
		lost = p.loseByTrace(now) || lost
	}
	return lost
}

// loseByTrace reports whether the trace loses a packet at a time.
func (p *pipe) loseByTrace(at int64) bool {
	if p.trace == nil || !p.trace.hasLoss {
		return false
	}
	step, _ := p.trace.at(at)
	return hit(p.dice.traceLoss.Uint64(), step.Loss)
}

// pop removes the next packet that is due. The caller delivers it, calls done,
// and must have called advance(now) before.
func (p *pipe) pop(now int64) (wirePacket, bool) {
	return p.line.pop(now)
}

// done accounts for consecutive segments of one super-packet that the receiving
// kernel took or refused.
func (p *pipe) done(super *superPacket, packets, size int, delivered bool) {
	if delivered {
		p.counters.PacketsDelivered += uint64(packets)
		p.counters.BytesDelivered += uint64(size)
	} else {
		p.counters.WriteErrors += uint64(packets)
	}
	p.heldBytes -= size
	super.refs -= packets - 1
	p.unref(super)
}

func (p *pipe) drop(packet wirePacket) {
	p.heldBytes -= int(packet.size)
	p.unref(packet.super)
}

func (p *pipe) unref(super *superPacket) {
	super.refs--
	if super.refs == 0 && p.recycle != nil {
		p.recycle(super)
	}
}

// inFlight is the number of packets in the bottleneck and on the delay line.
func (p *pipe) inFlight() int {
	packets := p.waiting() + p.burst.packets.len() + p.line.len()
	if p.thinner != nil {
		packets += len(p.thinner.held)
	}
	if p.serving {
		packets++
	}
	return packets
}
