package link

import (
	"encoding/binary"
	"time"
)

// ackHold is the longest time that a thinned link holds an acknowledgement back for
// its successor. It is of the order of a cable modem's wait for the next grant.
const ackHold = 5 * time.Millisecond

// ackThinner keeps one of several pure acknowledgements of a flow, as cable modems and
// Wi-Fi devices do: a newer one takes the place of one that waits. The last of a burst
// is never lost; it leaves after ackHold at the latest.
type ackThinner struct {
	held  map[uint64]*heldACK // by flow
	order fifo[*heldACK]      // by deadline; some have left already
}

type heldACK struct {
	packet   wirePacket
	flow     uint64
	flags    byte
	count    int // of acknowledgements that came while one waited, this included
	deadline int64
	left     bool
}

// next is the next deadline.
func (t *ackThinner) next() (int64, bool) {
	for t.order.len() > 0 {
		if h := *t.order.front(); !h.left {
			return h.deadline, true
		}
		t.order.pop()
	}
	return 0, false
}

// take removes a flow's held acknowledgement.
func (t *ackThinner) take(flow uint64) (wirePacket, bool) {
	h := t.held[flow]
	if h == nil {
		return wirePacket{}, false
	}
	delete(t.held, flow)
	h.left = true
	return h.packet, true
}

// pureACK reports whether a packet is a TCP segment without data that only
// acknowledges, and returns its flags.
func pureACK(packet []byte) (flags byte, pure bool) {
	var tcp, end int
	switch {
	case len(packet) >= ipv4MinHeader && packet[0]>>4 == 4 && packet[9] == protocolTCP:
		tcp, end = int(packet[0]&0xf)*4, int(binary.BigEndian.Uint16(packet[2:]))
		if binary.BigEndian.Uint16(packet[6:])&moreFragmentsAndOffset != 0 {
			return 0, false
		}
	case len(packet) >= ipv6Header && packet[0]>>4 == 6 && packet[6] == protocolTCP:
		tcp, end = ipv6Header, ipv6Header+int(binary.BigEndian.Uint16(packet[4:]))
	default:
		return 0, false
	}
	if len(packet) < tcp+tcpMinHeader || tcp < ipv4MinHeader {
		return 0, false
	}
	const ack, others = 0x10, 0x01 | 0x02 | 0x04 | 0x20 // FIN, SYN, RST, URG
	flags = packet[tcp+tcpFlagsOffset]
	return flags, flags&ack != 0 && flags&others == 0 && tcp+int(packet[tcp+12]>>4)*4 == end
}

// thin passes a packet on, or holds an acknowledgement back.
func (p *pipe) thin(now int64, packet wirePacket) {
	t := p.thinner
	flow := packet.super.flow(p.settings.Seed)
	flags, pure := pureACK(packet.super.packet)
	h := t.held[flow]
	if h != nil && (!pure || flags != h.flags) { // keep the order, and the echo of ECN
		p.release(now, flow)
		h = nil
	}
	switch {
	case !pure || packet.super.segments > 1:
		p.enqueue(now, packet)
		return
	case h != nil:
		p.counters.Thinned++
		p.drop(h.packet)
		h.packet = packet
		h.count++
	default:
		h = &heldACK{packet: packet, flow: flow, flags: flags, count: 1, deadline: now + int64(ackHold)}
		t.held[flow] = h
		t.order.push(h)
	}
	if h.count >= p.settings.ACKThinning {
		p.release(now, flow)
	}
}

// release passes a flow's held acknowledgement on.
func (p *pipe) release(now int64, flow uint64) {
	if packet, some := p.thinner.take(flow); some {
		packet.at = now
		p.enqueue(now, packet)
	}
}

// releaseUntil passes on the acknowledgements that have waited long enough, each at
// its time.
func (p *pipe) releaseUntil(now int64) {
	for {
		due, some := p.thinner.next()
		if !some || due > now {
			return
		}
		p.serveUntil(due)
		p.release(due, (*p.thinner.order.front()).flow)
	}
}
