package link

import "time"

// Aggregation releases packets behind the bottleneck in bursts, as Wi-Fi and LTE do:
// Every after the first of a burst, or as soon as the burst has Bytes. The zero value
// releases each at once.
type Aggregation struct {
	Every time.Duration
	Bytes int // 0: no bound
}

// burst is the packets that wait for their release. Times are in nanoseconds.
type burst struct {
	packets   fifo[wirePacket]
	bytes     int
	releaseAt int64
}

// gather adds a packet that left the bottleneck to the burst.
func (p *pipe) gather(packet wirePacket, left int64) {
	a := p.settings.Aggregate
	p.releaseBurst(left)
	if p.burst.packets.len() == 0 {
		p.burst.releaseAt = left + int64(a.Every)
	}
	p.burst.packets.push(packet)
	p.burst.bytes += int(packet.size)
	if a.Bytes > 0 && p.burst.bytes >= a.Bytes {
		p.burst.releaseAt = left
		p.releaseBurst(left)
	}
}

// releaseBurst releases the burst if that is due.
func (p *pipe) releaseBurst(now int64) {
	if p.burst.releaseAt > now {
		return
	}
	for p.burst.packets.len() > 0 {
		p.propagate(p.burst.packets.pop(), p.burst.releaseAt)
	}
	p.burst.bytes = 0
}
