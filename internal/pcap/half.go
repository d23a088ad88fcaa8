package pcap

import (
	"slices"
	"sort"
	"time"
)

// half is one end of a connection as a sender: what it sent, and what its peer
// said of that. Sequence numbers are counted on beyond 32 bits.
type half struct {
	offer    Offer
	isn      int64 // of the SYN
	isnKnown bool
	answers  bool  // the SYN is a SYN-ACK
	synData  int64 // sequence number after data in the SYN (RFC 7413), 0: none
	// synDataAcked: the first acknowledgement was of those, too.
	synDataAcked bool

	begun    bool // something of its sequence numbers is known
	began    int64
	sends    bool // a packet of it was seen
	answered bool // an acknowledgement of the peer was seen
	una, nxt int64
	finSent  bool
	finEnd   int64 // sequence number after the FIN
	segs     []segment

	// What is outstanding, in packets, and how far the peer has acknowledged
	// selectively.
	unacked, sacked int64
	highSacked      int64
	known           [4]sackRange // blocks of the peer's that were taken in
	knownNext       int

	// RFC 6298, from what the capture shows: from a segment to its
	// acknowledgement. All times are ns.
	srtt, rttvar, minRTT int64
	echo                 [echoes]stamp
	echoNext             int
	minEcho              int64
	path                 int64 // whole round trip, as far as it is known

	// The peer's window. Its bytes are known where the shift is.
	wnd      int64
	wndRaw   uint16 // as it stands in the header
	wndKnown bool
	probeEnd int64 // sequence number after a probe of a window of 0

	// The clocks run up to clock.
	clock, busy, rwndLimited int64
	idleSince                int64 // nothing outstanding since; negative while there is
	shutAt, openedAt         int64 // the window was too small meanwhile; negative: no

	progress int64 // when the peer last acknowledged something new

	// The flight, in packets: its maximum of this and the last round trip.
	flightMax, flightMaxBefore, flightSince int64

	// Delivery rate, by the sender's algorithm of
	// draft-ietf-ccwg-bbr, 4.1.
	delivered, deliveredAt, firstSent int64
	rateBps                           int64

	sizes sizes

	count counts
}

// counts are totals since the capture began.
type counts struct {
	packets                 int64
	segsOut, dataSegsOut    int64
	segsIn, dataSegsIn      int64
	bytesSent               int64
	bytesResent, segsResent int64 // of what the capture had seen before
	bytesFilled, segsFilled int64 // of what was missing until then and was sent again
	reordered               int64 // packets that came late, sent in order
	deliveredSegs           int64
	dsackSegs               int64
	reordSeen               int64
	timeouts                int64
	zeroWindows, probes     int64
	superPackets            int64
	missing                 int64 // bytes that were acknowledged and never seen
	stray                   int64 // packets whose sequence numbers fit nothing
	merged                  int64 // segments beyond the bound of those kept apart
}

// segment is a packet that is outstanding. A super-packet is one.
type segment struct {
	start, end     int64
	packets        int64
	resent, sacked bool
	data           bool   // and not only a SYN or a FIN
	at, firstAt    int64  // of the last and the first transmission, ns
	tsval, firstTS uint32 // of these
	delivered      int64  // bytes delivered when it was sent
	deliveredAt    int64
	firstSent      int64
}

type sackRange struct{ start, end int64 }

// stamp is a timestamp of this end and when it was first seen.
type stamp struct {
	value uint32
	at    int64
	open  bool
}

const (
	// maxSegments bounds the outstanding segments that are kept apart: those
	// beyond are counted as part of the last.
	maxSegments = 32768
	echoes      = 32
	// leastRTO is Linux's; RFC 6298's of one second would take its timeouts
	// for something else.
	leastRTO = int64(200 * time.Millisecond)
	// firstRTO is that before there is a measurement (RFC 6298, 2.1).
	firstRTO = int64(time.Second)
	// coarseTimestamp is above the tick of the clock of usual timestamps.
	coarseTimestamp = int64(2 * time.Millisecond)
	// farAway is a distance of sequence numbers that no window has (RFC 7323,
	// 2.3).
	farAway = 1 << 30
)

func newHalf(at int64) half {
	return half{sizes: sizes{usual: ethernetSegment4}, clock: at, idleSince: at, shutAt: -1, openedAt: -1}
}

// begin takes a sequence number for the first.
func (h *half) begin(seq uint32) {
	h.begun = true
	h.skipTo(1<<32 + int64(seq))
}

// skipTo leaves out what was sent before the capture began.
func (h *half) skipTo(n int64) {
	h.began, h.una, h.nxt, h.highSacked = n, n, n, n
}

// number is a sequence number counted on from those before.
func (h *half) number(seq uint32) int64 { return h.nxt + int64(int32(seq-uint32(h.nxt))) }

// base is the number from which acknowledged bytes are counted: the kernel
// counts the SYN of the end that connects.
func (h *half) base() int64 {
	if !h.answers {
		return h.isn
	}
	return h.isn + 1
}

// outstanding says whether data are. The SYN is none.
func (h *half) outstanding() bool {
	return h.nxt > h.una && !(h.isnKnown && h.una == h.isn)
}

// sent takes in a packet of this end.
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

// The largest segments on an Ethernet, of IPv4 and IPv6.
const ethernetSegment4, ethernetSegment6 = 1460, 1440

// usualSegment is the size of full segments on an Ethernet.
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

// isProbe recognises what asks the peer for a sign of life: the number before
// the first that is outstanding, with a byte or without (RFC 9293, 3.8.4), or a
// byte beyond a window of 0 (3.8.6.1).
func (h *half) isProbe(p *packet, start int64) bool {
	if p.payload > 1 || p.syn || p.fin || !h.answered {
		return false
	}
	return start == h.una-1 && (h.una == h.nxt || p.payload == 0) || h.wndRaw == 0 && start == h.una && p.payload == 1
}

// probe counts one. While the window is shut, it says that there are data to
// send.
func (h *half) probe(end, t int64) {
	h.count.probes++
	h.probeEnd = end
	if h.idleSince >= 0 && h.shutAt >= 0 && h.openedAt < 0 {
		h.busy += t - h.idleSince
		h.rwndLimited += t - max(h.shutAt, h.idleSince)
		h.idleSince, h.shutAt = t, t
	}
}

// stamped notes when a timestamp was first seen.
func (h *half) stamped(p *packet, t int64) {
	last := (h.echoNext + echoes - 1) % echoes
	if !p.timestamps || h.echo[last].value == p.tsval && h.echo[last].at > 0 {
		return
	}
	h.echo[h.echoNext] = stamp{value: p.tsval, at: t, open: true}
	h.echoNext = (h.echoNext + 1) % echoes
}

// echoed measures the way to the peer and back from the first echo of a
// timestamp. It works on acknowledgements, too: a sender that is held back
// answers them at once.
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

// lesser is the less of two times, of which 0 is unknown. What is too short
// to be measured is 1 ns.
func lesser(known, sample int64) int64 {
	sample = max(sample, 1)
	if known == 0 {
		return sample
	}
	return min(known, sample)
}

// toPeer is the least time from the place of the capture to the peer and back.
func (h *half) toPeer() int64 {
	if h.minRTT == 0 || h.minEcho == 0 {
		return max(h.minRTT, h.minEcho)
	}
	return min(h.minRTT, h.minEcho)
}

// packets is how many packets carry so many bytes.
func (h *half) packets(bytes int64) int64 {
	size := int64(h.sizes.segment())
	return (bytes + size - 1) / size
}

// resume ends a pause. One of less than a round trip is taken for the
// sender's own, as it is one in which the peer's window was shut until less
// than a round trip ago.
func (h *half) resume(end, t int64) {
	if end <= h.nxt || h.idleSince < 0 {
		return
	}
	pause := t - h.idleSince
	switch {
	case h.shutAt >= 0 && h.openedAt < 0: // what is sent is all that the window has room for
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

// place enters what was sent among what is outstanding.
func (h *half) place(p *packet, start, end, t int64) {
	if start < h.una {
		h.resent(p, start, min(end, h.una))
		start = h.una
	}
	for start < end {
		if start >= h.nxt {
			h.add(len(h.segs), h.segment(p, start, end, t))
			h.nxt = end
			return
		}
		i := sort.Search(len(h.segs), func(i int) bool { return h.segs[i].end > start })
		switch {
		case i == len(h.segs): // a gap at the end: sent before the capture began
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

// segment is a new one.
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

func (h *half) add(i int, s segment) {
	h.unacked += s.packets
	if len(h.segs) < maxSegments {
		h.segs = slices.Insert(h.segs, i, s)
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

// resent counts what was seen before. A SYN and a FIN are packets without
// bytes.
func (h *half) resent(p *packet, start, end int64) {
	bytes := min(end-start, int64(p.payload))
	h.count.bytesResent += bytes
	h.count.segsResent += max(1, h.packets(bytes))
}

// again is the retransmission of a part of segment i, or of all of it.
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

// cut splits segment i at a sequence number, and gives the index of the part
// that begins there: i itself where there are too many parts already.
func (h *half) cut(i int, at int64) int {
	s := h.segs[i]
	if at <= s.start || at >= s.end || len(h.segs) >= 2*maxSegments {
		return i
	}
	head, tail := s, s
	head.end, tail.start = at, at
	head.packets = min(max(1, h.packets(head.end-head.start)), s.packets)
	tail.packets = s.packets - head.packets
	if tail.packets == 0 { // smaller than the segments are now
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

// timedOut says whether the retransmission of the first outstanding segment is
// that of a timeout: nothing was heard of the peer that could have caused it.
// The first retransmission of a single segment is taken for a tail loss probe
// (RFC 8985, 7) where the ends use SACK, as it comes no earlier than a timeout.
func (h *half) timedOut(t int64) bool {
	s := &h.segs[0]
	quiet := t - max(s.at, h.progress)
	rto := firstRTO
	if h.srtt > 0 {
		rto = max(leastRTO, h.srtt+4*h.rttvar)
	}
	probe := len(h.segs) == 1 && !s.resent && h.offer.SACK && h.srtt > 0
	return !probe && quiet >= rto*9/10
}

// fill closes a gap before segment i. What was sent later than the packet that
// opened the gap is a retransmission of a packet that was lost before it came
// to the place of the capture; what was sent earlier has been overtaken. The
// timestamps tell (RFC 3522), as a retransmission comes at least a round trip
// after the packet that opened the gap, and where they do not, the time.
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

// flew notes the flight for the estimate of the congestion window.
func (h *half) flew(t int64) {
	if t-h.flightSince > max(h.srtt, int64(time.Millisecond)) {
		h.flightMaxBefore, h.flightMax, h.flightSince = h.flightMax, 0, t
	}
	h.flightMax = max(h.flightMax, h.unacked-h.sacked)
}

// heard takes in what a packet of the peer says of this end's data. shift is
// that of the peer's window, negative where it is unknown.
func (h *half) heard(p *packet, t int64, shift int) {
	h.echoed(p, t)
	if !p.hasAck || p.rst {
		return
	}
	if !h.begun {
		h.begin(p.ack)
	}
	ack := h.number(p.ack)
	if far(ack, h.nxt) {
		h.count.stray++
		return
	}
	h.answered = true
	if ack > h.nxt {
		h.unseen(ack)
	}
	r := rates{before: h.highSacked, firstAt: -1, lastAt: -1, sackedAt: -1}
	if ack > h.una {
		h.pop(p, ack, t, &r)
	}
	h.selective(p, ack, t, &r)
	if r.newly || h.isDuplicate(p, ack) {
		h.progress = t
	}
	if r.reordered {
		h.count.reordSeen++
	}
	h.measure(p, t, &r)
	if ack >= h.una {
		h.window(p, t, shift)
	}
}

// isDuplicate recognises an acknowledgement that says that something arrived,
// where that is not told by SACK (RFC 5681, 2).
func (h *half) isDuplicate(p *packet, ack int64) bool {
	return !h.offer.SACK && ack == h.una && p.window == h.wndRaw && p.payload == 0 && !p.syn && !p.fin && h.outstanding()
}

// unseen is about data that the capture missed, or the byte of a probe that the
// peer has taken.
func (h *half) unseen(ack int64) {
	if ack != h.probeEnd {
		h.count.missing += ack - h.nxt
	}
	h.nxt = ack
}

// rates gathers what one acknowledgement tells.
type rates struct {
	before          int64 // highSacked before it
	newly           bool
	reordered       bool
	firstAt, lastAt int64 // transmissions of the first and last segment that was never resent
	sackedAt        int64
	resent          bool // it acknowledges something resent
	resentSeg       segment
	newest          segment // the one sent last
}

// pop takes away what is acknowledged.
func (h *half) pop(p *packet, ack, t int64, r *rates) {
	cursor, n := h.una, 0
	for n < len(h.segs) && h.segs[n].start < ack {
		if h.segs[n].end > ack {
			h.cut(n, ack)
		}
		s := &h.segs[n]
		if s.start > cursor {
			h.count.missing += s.start - cursor
		}
		cursor = s.end
		h.unacked -= s.packets
		switch {
		case s.sacked:
			h.sacked -= s.packets
		default:
			h.deliver(s, t, r)
			r.reordered = r.reordered || !s.resent && s.end <= r.before
		}
		if s.resent {
			r.resent, r.resentSeg = true, *s
		} else if !s.sacked {
			if r.firstAt < 0 {
				r.firstAt = s.at
			}
			r.lastAt = s.at
		}
		n++
	}
	h.segs = h.segs[n:]
	if len(h.segs) == 0 {
		h.segs = nil
	}
	if h.synData > 0 && h.una == h.isn {
		h.synDataAcked = ack >= h.synData
	}
	h.una, r.newly = ack, true
	h.highSacked = max(h.highSacked, ack)
	if h.una == h.nxt {
		h.idleSince = t
	}
}

// deliver counts a segment that the peer has got.
func (h *half) deliver(s *segment, t int64, r *rates) {
	h.count.deliveredSegs += s.packets
	h.delivered += s.end - s.start
	h.deliveredAt = t
	if s.data && (r.newest.end == 0 || s.at >= r.newest.at) {
		r.newest = *s
	}
}

// selective takes in the blocks of SACK (RFC 2018, RFC 2883).
func (h *half) selective(p *packet, ack, t int64, r *rates) {
	for i := range p.sacks {
		b := sackRange{h.number(p.sack[i].start), h.number(p.sack[i].end)}
		if b.end <= b.start || far(b.start, h.nxt) || far(b.end, h.nxt) {
			continue
		}
		if i == 0 && h.isDSACK(p, b, ack) {
			n := max(1, h.packets(b.end-b.start))
			h.count.dsackSegs += n
			h.count.deliveredSegs += n // the kernel counts what was delivered twice
			continue
		}
		b.start, b.end = max(b.start, h.una), min(b.end, h.nxt)
		h.news(b, len(h.known), func(b sackRange) { h.mark(b, t, r) })
		h.known[h.knownNext] = b
		h.knownNext = (h.knownNext + 1) % len(h.known)
	}
}

// isDSACK says whether the first block is about data that came twice: below
// the acknowledgement, or inside of the second block (RFC 2883, 4).
func (h *half) isDSACK(p *packet, b sackRange, ack int64) bool {
	if b.end <= ack {
		return true
	}
	return p.sacks > 1 && b.start >= h.number(p.sack[1].start) && b.end <= h.number(p.sack[1].end)
}

// news gives the parts of a block that are in none of the first n known ones. A
// receiver repeats its blocks in acknowledgement after acknowledgement.
func (h *half) news(b sackRange, n int, fn func(sackRange)) {
	if b.start >= b.end {
		return
	}
	if n == 0 {
		fn(b)
		return
	}
	k := h.known[n-1]
	if k.end <= b.start || k.start >= b.end {
		h.news(b, n-1, fn)
		return
	}
	h.news(sackRange{b.start, min(b.end, k.start)}, n-1, fn)
	h.news(sackRange{max(b.start, k.end), b.end}, n-1, fn)
}

// mark notes that a block has arrived.
func (h *half) mark(b sackRange, t int64, r *rates) {
	i := sort.Search(len(h.segs), func(i int) bool { return h.segs[i].end > b.start })
	for ; i < len(h.segs) && h.segs[i].start < b.end; i++ {
		if h.segs[i].sacked {
			continue
		}
		i = h.cut(i, b.start)
		if h.segs[i].end > b.end {
			h.cut(i, b.end)
		}
		s := &h.segs[i]
		s.sacked, r.newly = true, true
		h.sacked += s.packets
		h.deliver(s, t, r)
		if !s.resent {
			r.reordered = r.reordered || s.end <= r.before
			if r.sackedAt < 0 {
				r.sackedAt = s.at
			}
		}
	}
	h.highSacked = max(h.highSacked, b.end)
}

// measure takes round trips and the rate of delivery from an acknowledgement.
func (h *half) measure(p *packet, t int64, r *rates) {
	sample := int64(-1)
	switch {
	case r.firstAt >= 0 && !r.resent:
		sample = t - r.firstAt
		h.minRTT = lesser(h.minRTT, t-r.lastAt)
	case r.resent && p.timestamps && p.tsecr == r.resentSeg.tsval && r.resentSeg.tsval != r.resentSeg.firstTS:
		sample = t - r.resentSeg.at // the echo says which transmission it was (RFC 7323, 4)
	case r.sackedAt >= 0:
		sample = t - r.sackedAt
	}
	if sample >= 0 {
		h.estimate(sample)
	}
	if r.newest.end == 0 {
		return
	}
	h.firstSent = r.newest.at
	interval := max(r.newest.at-r.newest.firstSent, t-r.newest.deliveredAt)
	if interval >= max(h.minRTT, 1) {
		h.rateBps = int64(float64(h.delivered-r.newest.delivered) * 8e9 / float64(interval))
	}
}

// estimate smooths the round trip (RFC 6298, 2).
func (h *half) estimate(sample int64) {
	sample = max(sample, 1)
	if h.srtt == 0 {
		h.srtt, h.rttvar = sample, sample/2
		return
	}
	off := h.srtt - sample
	if off < 0 {
		off = -off
	}
	h.rttvar += (off - h.rttvar) / 4
	h.srtt += (sample - h.srtt) / 8
}

// window takes in the peer's window.
func (h *half) window(p *packet, t int64, shift int) {
	if p.syn {
		shift = 0 // RFC 7323, 2.2
	}
	if p.window == 0 && h.wndRaw != 0 {
		h.count.zeroWindows++
	}
	h.wndRaw = p.window
	h.wndKnown = shift >= 0
	h.wnd = int64(p.window) << max(shift, 0)
	if h.idleSince < 0 || !h.wndKnown {
		return
	}
	switch {
	case h.shut():
		if h.shutAt < 0 {
			h.shutAt = t
		}
		h.openedAt = -1
	case h.shutAt >= 0 && h.openedAt < 0:
		h.openedAt = t
	}
}

// shut says whether the peer's window has no room for what would be sent next:
// a segment, or one of the super-packets that the sender makes. Linux waits for
// room for one of those, up to a third of the window.
func (h *half) shut() bool {
	next := max(int64(h.sizes.segment()), min(int64(h.sizes.burst), h.wnd/3))
	return h.wndKnown && h.una+h.wnd-h.nxt < next
}

// run lets the clocks run up to t.
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

// sizes finds the size of a sender's segments from what was captured, which
// may be before segmentation (super-packets of many segments) or after. It is
// the bound, unless what is sent shows that the path carries less.
type sizes struct {
	bound int // by the MSS that the two ends announced; 0 where unknown
	usual int // taken for the bound where it is unknown
	size  int // found; 0 where nothing was
	max   int // largest payload of one segment
	// burst is the largest payload of the last packets.
	burst, burstNow int

	last  [sizesOver]int // payloads of the last packets that may be full
	seen  int
	total int
}

const (
	leastSegment = 256 // smaller common divisors are those of chance
	sizesOver    = 16  // packets
)

// limit is the bound, or what is taken for it.
func (s *sizes) limit() int {
	if s.bound > 0 {
		return s.bound
	}
	return s.usual
}

// segment is the size, in bytes of payload.
func (s *sizes) segment() int {
	if s.size > 0 {
		return s.size
	}
	return s.limit()
}

// saw takes in the payload of a packet. A small one with PSH ends what the
// program wrote, and may be of any size.
func (s *sizes) saw(payload int, push bool) {
	s.max = max(s.max, min(payload, s.limit()))
	s.burstNow = max(s.burstNow, payload)
	if s.total++; s.total%sizesOver == 0 {
		s.burst, s.burstNow = s.burstNow, 0
	}
	if push && payload <= s.limit() {
		return
	}
	s.last[s.seen%sizesOver] = payload
	s.seen++
	if s.seen < sizesOver || s.seen%(sizesOver/2) != 0 {
		return
	}
	if size := s.found(); size > 0 {
		s.size = size
	}
}

// found is the size of which most of the last packets are whole multiples: the
// bound, the largest packet below it, or what goes into all of them; 0 where
// they show none.
func (s *sizes) found() int {
	largest, common := 0, 0
	for _, n := range s.last {
		common = divisor(common, n)
		if n <= s.limit() {
			largest = max(largest, n)
		}
	}
	best, most := 0, sizesOver/4
	for _, size := range []int{s.limit(), largest, common, common / max(1, (common+s.limit()-1)/s.limit())} {
		if size < leastSegment || s.bound > 0 && size > s.bound {
			continue
		}
		multiples := 0
		for _, n := range s.last {
			if n%size == 0 {
				multiples++
			}
		}
		if multiples > most {
			best, most = size, multiples
		}
	}
	return best
}

func divisor(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
