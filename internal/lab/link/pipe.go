package link

// maxHeldBytes bounds the memory of one direction. Only a flood over a link
// without a rate reaches it; excess packets count as dropped by the queue.
const maxHeldBytes = 1 << 30

// pipe decides the fate of every packet of one direction. It uses no clock and
// no device. All methods take the time in nanoseconds of any origin, which must
// never go backwards.
//
//	arrive -> outage? -> MTU? -> loss before? -> policer -> queue -> CoDel -> bottleneck -> loss after? -> delay line -> pop
type pipe struct {
	settings   Settings
	queueLimit int // bytes; 0 means no bound
	dice       *dice

	bucket bucket
	codel  codelState

	queue       fifo[wirePacket]
	queuedBytes int // of the queue, including the packet in service

	// The bottleneck runs on exact virtual time. The head of the queue is in
	// service from max(arrival, freeAt) until finishAt. The remaining fraction
	// of a nanosecond is carried to the next packet.
	serving          bool
	startAt          int64
	finishAt, freeAt int64
	fraction         int64 // in 1/rate ns
	packetFraction   int64 // in 1/PacketsPerSecond ns

	line      delayLine
	heldBytes int

	counters   Counters // the plain sums
	queueDelay *histogram

	// recycle takes back super-packets without remaining segments.
	recycle func(*superPacket)
}

func newPipe(s Settings, queueLimit int, recycle func(*superPacket)) *pipe {
	return &pipe{
		settings:   s,
		queueLimit: queueLimit,
		dice:       newDice(s.Seed),
		queueDelay: new(histogram),
		recycle:    recycle,
	}
}

// set changes the settings for everything that the bottleneck has not yet
// served. The packet in service continues at the new rate.
func (p *pipe) set(now int64, s Settings, queueLimit int) {
	p.advance(now)
	if p.serving && s.RateBps != p.settings.RateBps {
		left := p.finishAt - now
		if s.RateBps == 0 {
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
	if s.CoDel != p.settings.CoDel {
		p.codel = codelState{}
	}
	p.settings, p.queueLimit = s, queueLimit
	p.advance(now)
}

// arrive processes a packet, or all segments of a super-packet, that reaches
// the link now.
func (p *pipe) arrive(now int64, super *superPacket) {
	p.advance(now)
	s, c := &p.settings, &p.counters
	mtu := s.mtu()
	for i := range super.segments {
		size := super.segmentSize(i)
		c.PacketsIn++
		c.BytesIn += uint64(size)
		switch {
		case s.Down:
			c.Outage++
		case size > mtu:
			c.TooBig++
		case s.LossPlace == LossBefore && p.dice.lose(&s.Loss):
			c.Lost++
		case s.Policer.RateBps > 0 && !p.bucket.admit(now, size, s.Policer):
			c.Policed++
		case s.RateBps > 0 && p.queuedBytes+size > p.queueLimit, p.heldBytes+size > maxHeldBytes:
			c.QueueDrops++
		default:
			super.refs++
			p.queuedBytes += size
			p.heldBytes += size
			p.queue.push(wirePacket{super: super, index: int32(i), size: int32(size), at: now})
		}
	}
	// Drop the own reference last, so that a drop of the last segment recycles
	// the super-packet exactly once.
	super.refs++
	p.advance(now)
	p.unref(super)
}

// advance serves the queue up to now.
func (p *pipe) advance(now int64) {
	for p.queue.len() > 0 {
		if !p.serving {
			if p.overdue(p.queue.front()) {
				p.counters.CoDelDrops++
				packet := p.queue.pop()
				p.queuedBytes -= int(packet.size)
				p.drop(packet)
				continue
			}
			p.serve(p.queue.front())
		}
		if p.finishAt > now {
			return
		}
		packet := p.queue.pop()
		p.queuedBytes -= int(packet.size)
		p.serving = false
		p.freeAt = p.finishAt
		if p.settings.RateBps > 0 {
			p.queueDelay.add(p.startAt - packet.at)
		}
		p.propagate(packet, p.finishAt)
	}
}

// overdue reports whether CoDel drops the packet at the head of the queue.
func (p *pipe) overdue(packet *wirePacket) bool {
	leaves := max(p.freeAt, packet.at)
	behind := p.queuedBytes - int(packet.size)
	return p.codel.drop(leaves, leaves-packet.at, behind, p.settings.mtu(), p.settings.CoDel)
}

// serve starts the transmission of a packet.
func (p *pipe) serve(packet *wirePacket) {
	p.startAt = p.freeAt
	if packet.at > p.freeAt {
		p.startAt, p.fraction, p.packetFraction = packet.at, 0, 0
	}
	p.finishAt = p.startAt
	if rate := p.settings.RateBps; rate > 0 {
		work := int64(p.settings.wireBytes(int(packet.size)))*8e9 + p.fraction
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
	if s.LossPlace == LossAfter && p.dice.lose(&s.Loss) {
		p.counters.Lost++
		p.drop(packet)
		return
	}
	delay := max(int64(s.Delay)+p.dice.jitterBy(s.Jitter), 0)
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
	if p.serving {
		// No queued packet can be due earlier than this.
		if first := p.finishAt + int64(p.settings.Delay-p.settings.Jitter); !pending || first < due {
			due, pending = first, true
		}
	}
	return due, pending
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

// inFlight is the number of packets in the queue and on the delay line.
func (p *pipe) inFlight() int { return p.queue.len() + p.line.len() }
