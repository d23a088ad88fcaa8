package pcap

import (
	"slices"
	"sort"
	"time"
)

// half is one end of a connection as a sender: its packets, and the peer's
// feedback on them. Sequence numbers are extended to 64 bits.
type half struct {
	offer    Offer
	isn      int64 // of the SYN
	isnKnown bool
	answers  bool  // the SYN is a SYN-ACK
	synData  int64 // sequence number after data in the SYN (RFC 7413); 0: no data
	// synDataAcked: the first acknowledgement covered that data.
	synDataAcked bool

	begun    bool // a sequence number is known
	began    int64
	sends    bool // a packet of it was seen
	answered bool // an acknowledgement of the peer was seen
	una, nxt int64
	finSent  bool
	finEnd   int64 // sequence number after the FIN
	segs     []segment
	room     *int  // segments that all connections may still have
	seen     int64 // packets of both ends
	steps    int64 // over segments, for them

	// Outstanding packets, and the extent of selective acknowledgements.
	unacked, sacked int64
	highSacked      int64
	known           [4]sackRange // the latest processed blocks of the peer
	knownNext       int

	// Round trips as in RFC 6298, from a segment to its acknowledgement as
	// captured. Times are in ns.
	srtt, rttvar, minRTT int64
	echo                 [echoes]stamp
	echoNext             int
	minEcho              int64
	path                 int64 // whole round trip, as far as known

	// The peer's window; its bytes are known if the scale is.
	wnd      int64
	wndRaw   uint16 // from the header
	wndKnown bool
	probeEnd int64 // sequence number after a zero window probe

	// The times are counted up to clock.
	clock, busy, rwndLimited int64
	idleSince                int64 // start of the time without outstanding data; negative: data is outstanding
	shutAt, openedAt         int64 // when the window became too small, and large enough again; negative: it did not

	progress int64 // time of the peer's latest new acknowledgement

	// The flight in packets: its maximum in this and the previous round trip.
	flightMax, flightMaxBefore, flightSince int64

	// Delivery rate by the sender's algorithm of draft-ietf-ccwg-bbr, section
	// 4.1.
	delivered, deliveredAt, firstSent int64
	rateBps                           int64

	sizes  sizes
	bursts bursts

	count counts
}

// counts are totals since the capture began.
type counts struct {
	packets                 int64
	segsOut, dataSegsOut    int64
	segsIn, dataSegsIn      int64
	bytesSent               int64
	bytesResent, segsResent int64 // retransmitted, and captured before
	bytesFilled, segsFilled int64 // retransmitted, and missing before
	reordered               int64 // packets sent in order that arrived late
	deliveredSegs           int64
	dsackSegs               int64
	reordSeen               int64
	timeouts                int64
	zeroWindows, probes     int64
	superPackets            int64
	missing                 int64 // acknowledged bytes that were not captured
	stray                   int64 // packets with sequence numbers outside any window
	merged                  int64 // segments merged because of maxSegments
}

// segment is an outstanding packet, or a whole super-packet.
type segment struct {
	start, end     int64
	packets        int64
	resent, sacked bool
	data           bool   // not only a SYN or a FIN
	at, firstAt    int64  // of the last and the first transmission, ns
	tsval, firstTS uint32 // of these
	delivered      int64  // bytes delivered when it was sent
	deliveredAt    int64
	firstSent      int64
}

type sackRange struct{ start, end int64 }

// stamp is a timestamp of this end with the time of its first capture.
type stamp struct {
	value uint32
	at    int64
	open  bool
}

const (
	// maxSegments bounds the outstanding segments; further ones are merged into
	// the last. maxAllSegments bounds those of all connections together.
	maxSegments    = 32768
	maxAllSegments = 1 << 20
	// maxSteps bounds the steps over segments per packet, on average after the first
	// freePackets. Real connections need few; invented ones would need thousands.
	maxSteps    = 500
	freePackets = 1000
	echoes      = 32
	// minRTO is Linux's. The one second of RFC 6298 would miss its timeouts.
	minRTO = int64(200 * time.Millisecond)
	// firstRTO is the timeout before the first measurement (RFC 6298, section
	// 2.1).
	firstRTO = int64(time.Second)
	// coarseTimestamp exceeds the tick of usual timestamp clocks.
	coarseTimestamp = int64(2 * time.Millisecond)
	// farAway exceeds every window (RFC 7323, section 2.3).
	farAway = 1 << 30
)

func newHalf(at int64, room *int) half {
	return half{room: room, sizes: sizes{usual: ethernetSegment4}, clock: at, idleSince: at, shutAt: -1, openedAt: -1}
}

// begin adopts a sequence number as the first.
func (h *half) begin(seq uint32) {
	h.begun = true
	h.skipTo(1<<32 + int64(seq))
}

// skipTo skips data that was sent before the capture began.
func (h *half) skipTo(n int64) {
	h.began, h.una, h.nxt, h.highSacked = n, n, n, n
}

// number extends a sequence number relative to nxt.
func (h *half) number(seq uint32) int64 { return h.nxt + int64(int32(seq-uint32(h.nxt))) }

// base is the number from which acknowledged bytes count: the kernel counts the
// SYN of the connecting end.
func (h *half) base() int64 {
	if !h.answers {
		return h.isn
	}
	return h.isn + 1
}

// outstanding reports whether data is outstanding; a SYN is not data.
func (h *half) outstanding() bool {
	return h.nxt > h.una && !(h.isnKnown && h.una == h.isn)
}

// sent processes a packet of this end.
func (h *half) sent(p *packet, t int64) {
	c := &h.count
	c.packets++
	if p.rst {
		c.segsOut++
		return
	}
	if !h.begun {
		h.begin(p.seq)
	}
	start := h.number(p.seq)
	if far(start, h.nxt) {
		c.stray++
		return
	}
	if !h.sends {
		h.sends = true
		if start > h.nxt {
			h.skipTo(start)
		}
	}
	h.stamped(p, t)
	h.sizes.usual = usualSegment(p)
	if p.payload > 0 {
		h.sizes.saw(p.payload, p.push)
	}
	packets := h.packets(int64(p.payload))
	c.segsOut += max(1, packets)
	switch {
	case h.isProbe(p, start):
		h.probe(start+int64(p.payload), t)
		return
	case p.space() == 0:
		return
	}
	h.resume(start+p.space(), t)
	if p.payload > 0 {
		c.dataSegsOut += packets
		c.bytesSent += int64(p.payload)
		if packets > 1 {
			c.superPackets++
		}
	}
	if p.fin {
		h.finSent, h.finEnd = true, start+p.space()
	}
	h.place(p, start, start+p.space(), t)
	h.flew(t)
}

// The largest segments on Ethernet for IPv4 and IPv6.
const ethernetSegment4, ethernetSegment6 = 1460, 1440

// usualSegment is the size of full segments on Ethernet.
func usualSegment(p *packet) int {
	size := ethernetSegment4
	if p.src.Addr().Is6() {
		size = ethernetSegment6
	}
	if p.timestamps {
		size -= timestampBytes
	}
	return size
}

func far(a, b int64) bool { return a-b > farAway || b-a > farAway }

// isProbe recognises keepalives and zero window probes. A keepalive has the
// number before the first outstanding one, with or without a byte (RFC 9293,
// section 3.8.4). A zero window probe has a byte beyond the window (section
// 3.8.6.1).
func (h *half) isProbe(p *packet, start int64) bool {
	if p.payload > 1 || p.syn || p.fin || !h.answered {
		return false
	}
	return start == h.una-1 && (h.una == h.nxt || p.payload == 0) || h.wndRaw == 0 && start == h.una && p.payload == 1
}

// probe counts a probe. While the window is closed, a probe means that data
// waits to be sent.
func (h *half) probe(end, t int64) {
	h.count.probes++
	h.probeEnd = end
	if h.idleSince >= 0 && h.shutAt >= 0 && h.openedAt < 0 {
		h.busy += t - h.idleSince
		h.rwndLimited += t - max(h.shutAt, h.idleSince)
		h.idleSince, h.shutAt = t, t
	}
}

// stamped records the first capture of a timestamp.
func (h *half) stamped(p *packet, t int64) {
	last := (h.echoNext + echoes - 1) % echoes
	if !p.timestamps || h.echo[last].value == p.tsval && h.echo[last].at > 0 {
		return
	}
	h.echo[h.echoNext] = stamp{value: p.tsval, at: t, open: true}
	h.echoNext = (h.echoNext + 1) % echoes
}

// echoed measures the way to the peer and back by the first echo of a
// timestamp. It also works with pure acknowledgements: a blocked sender answers
// them at once.
func (h *half) echoed(p *packet, t int64) {
	if !p.timestamps || !p.hasAck {
		return
	}
	for i := range h.echo {
		if s := &h.echo[i]; s.open && s.value == p.tsecr {
			s.open = false
			h.minEcho = lesser(h.minEcho, t-s.at)
		}
	}
}

// lesser is the lower of two times, where 0 means unknown. Unmeasurably short
// times count as 1 ns.
func lesser(known, sample int64) int64 {
	sample = max(sample, 1)
	if known == 0 {
		return sample
	}
	return min(known, sample)
}

// toPeer is the lowest time from the capture to the peer and back.
func (h *half) toPeer() int64 {
	if h.minRTT == 0 || h.minEcho == 0 {
		return max(h.minRTT, h.minEcho)
	}
	return min(h.minRTT, h.minEcho)
}

// packets is the number of packets for a number of bytes.
func (h *half) packets(bytes int64) int64 {
	size := int64(h.sizes.segment())
	return (bytes + size - 1) / size
}

// resume ends a pause in sending. A pause shorter than a round trip counts as
// the sender's own. So does a pause that ends within a round trip after the
// peer's window opened.
func (h *half) resume(end, t int64) {
	if end <= h.nxt || h.idleSince < 0 {
		return
	}
	pause := t - h.idleSince
	switch {
	case h.shutAt >= 0 && h.openedAt < 0: // the data just fits the window
		h.busy += pause
		h.rwndLimited += t - max(h.shutAt, h.idleSince)
	case h.shutAt >= 0 && t-h.openedAt <= h.srtt:
		h.busy += pause
		h.rwndLimited += h.openedAt - max(h.shutAt, h.idleSince)
	case h.count.bytesSent > 0 && pause < h.srtt && h.shutAt < 0:
		h.busy += pause
	}
	h.idleSince, h.shutAt, h.openedAt = -1, -1, -1
}

// place inserts a packet into the outstanding segments.
func (h *half) place(p *packet, start, end, t int64) {
	if start < h.una {
		h.resent(p, start, min(end, h.una))
		start = h.una
	}
	for start < end {
		if start < h.nxt && !h.spend(1) {
			h.count.merged++
			start = h.nxt
			continue
		}
		if start >= h.nxt {
			h.add(len(h.segs), h.segment(p, start, end, t))
			h.nxt = end
			return
		}
		i := sort.Search(len(h.segs), func(i int) bool { return h.segs[i].end > start })
		switch {
		case i == len(h.segs): // a gap at the end: data sent before the capture began
			start = h.nxt
		case h.segs[i].start <= start:
			stop := min(end, h.segs[i].end)
			h.again(p, i, start, stop, t)
			start = stop
		default:
			stop := min(end, h.segs[i].start)
			h.fill(p, i, start, stop, t)
			start = stop
		}
	}
}

// segment makes a new segment.
func (h *half) segment(p *packet, start, end, t int64) segment {
	if h.unacked == 0 {
		h.firstSent, h.deliveredAt = t, t
	}
	return segment{
		start: start, end: end, packets: max(1, h.packets(end-start)), data: p.payload > 0,
		at: t, firstAt: t, tsval: p.tsval, firstTS: p.tsval,
		delivered: h.delivered, deliveredAt: h.deliveredAt, firstSent: h.firstSent,
	}
}

// spend takes steps over segments, and returns false if their bound is reached.
func (h *half) spend(steps int) bool {
	if h.steps+int64(steps) > maxSteps*(h.seen+freePackets) {
		return false
	}
	h.steps += int64(steps)
	return true
}

func (h *half) add(i int, s segment) {
	h.unacked += s.packets
	if len(h.segs) == 0 || len(h.segs) < maxSegments && *h.room > 0 && h.spend(len(h.segs)-i) {
		h.segs = slices.Insert(h.segs, i, s)
		*h.room--
		return
	}
	h.count.merged++
	last := &h.segs[max(0, i-1)]
	last.start, last.end = min(last.start, s.start), max(last.end, s.end)
	last.packets += s.packets
	if last.sacked {
		h.sacked += s.packets
	}
}

// resent counts a retransmission. A SYN or a FIN is a packet without bytes.
func (h *half) resent(p *packet, start, end int64) {
	bytes := min(end-start, int64(p.payload))
	h.count.bytesResent += bytes
	h.count.segsResent += max(1, h.packets(bytes))
}

// again handles the retransmission of segment i or a part of it.
func (h *half) again(p *packet, i int, start, end, t int64) {
	if i == 0 && start == h.una && h.timedOut(t) {
		h.count.timeouts++
	}
	h.resent(p, start, end)
	i = h.cut(i, start)
	if end < h.segs[i].end {
		h.cut(i, end)
	}
	s := &h.segs[i]
	s.resent, s.at, s.tsval = true, t, p.tsval
	s.delivered, s.deliveredAt, s.firstSent = h.delivered, h.deliveredAt, h.firstSent
}

// cut splits segment i at a sequence number, and returns the index of the part
// that begins there. At the bound of parts it returns i.
func (h *half) cut(i int, at int64) int {
	s := h.segs[i]
	if at <= s.start || at >= s.end || len(h.segs) >= 2*maxSegments || *h.room <= 0 || !h.spend(len(h.segs)-i) {
		return i
	}
	*h.room--
	head, tail := s, s
	head.end, tail.start = at, at
	head.packets = min(max(1, h.packets(head.end-head.start)), s.packets)
	tail.packets = s.packets - head.packets
	if tail.packets == 0 { // smaller than one segment
		tail.packets = 1
		h.unacked++
		if s.sacked {
			h.sacked++
		}
	}
	h.segs[i] = head
	h.segs = slices.Insert(h.segs, i+1, tail)
	return i + 1
}

// timedOut reports whether the retransmission of the first outstanding segment
// is a timeout: no feedback of the peer could have caused it. With SACK, the
// first retransmission of a single segment counts as a tail loss probe (RFC
// 8985, section 7). Such a probe comes no earlier than a timeout.
func (h *half) timedOut(t int64) bool {
	s := &h.segs[0]
	quiet := t - max(s.at, h.progress)
	rto := firstRTO
	if h.srtt > 0 {
		rto = max(minRTO, h.srtt+4*h.rttvar)
	}
	probe := len(h.segs) == 1 && !s.resent && h.offer.SACK && h.srtt > 0
	return !probe && quiet >= rto*9/10
}

// fill closes a gap before segment i. A packet sent later than the opener of
// the gap is a retransmission of a packet lost before the capture. A packet
// sent earlier was overtaken.
//
// Timestamps distinguish the two (RFC 3522), because a retransmission comes at
// least a round trip after the opener. Without usable timestamps, the time
// decides.
func (h *half) fill(p *packet, i int, start, end, t int64) {
	opener := &h.segs[i]
	late := t-opener.firstAt > max(h.path/2, int64(3*time.Millisecond))
	if p.timestamps && (p.tsval != opener.firstTS || h.path > coarseTimestamp) {
		late = int32(p.tsval-opener.firstTS) > 0
	}
	s := h.segment(p, start, end, t)
	if late {
		s.resent = true
		h.count.bytesFilled += end - start
		h.count.segsFilled += s.packets
	} else {
		h.count.reordered += s.packets
	}
	h.add(i, s)
}

// flew records the flight for the estimate of the congestion window.
func (h *half) flew(t int64) {
	if t-h.flightSince > max(h.srtt, int64(time.Millisecond)) {
		h.flightMaxBefore, h.flightMax, h.flightSince = h.flightMax, 0, t
	}
	h.flightMax = max(h.flightMax, h.unacked-h.sacked)
}

// shut reports whether the peer's window has no room for the next packet: a
// segment, or one of the sender's super-packets. Linux waits for room for a
// super-packet, up to a third of the window.
func (h *half) shut() bool {
	next := max(int64(h.sizes.segment()), min(int64(h.sizes.burst), h.wnd/3))
	return h.wndKnown && h.una+h.wnd-h.nxt < next
}

// run counts the times up to t.
func (h *half) run(t int64) {
	passed := t - h.clock
	h.clock = t
	if passed <= 0 || !h.outstanding() {
		return
	}
	h.busy += passed
	if h.shut() {
		h.rwndLimited += passed
	}
}
