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
	holes    int64 // bytes of the outstanding ones that were not captured
	// flightWithHoles is the maximum of outstanding bytes since there are holes.
	flightWithHoles int64
	beyond          int64 // latest sequence number beyond the peer's windows; 0: none
	finSent         bool
	finEnd          int64 // sequence number after the FIN
	segs            []segment
	room            *int  // segments that all connections may still have
	seen            int64 // packets of both ends
	steps           int64 // over segments, for them

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
	epoch                int   // of the clock

	// The peer's window; its bytes are known if the scale is.
	wnd      int64
	wndKnown bool
	wndMax   int64
	closed   zeroWindows
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

	lacks            [16]lack // the latest that the capture lacks, a ring
	nextLack         int
	rtts, windows    histogram
	recovery         recovery
	stall            stall
	dataAt           int64 // time of its latest data
	peerSpoke        bool  // the peer has sent data since
	peerSpokeAt      int64
	resetOutstanding int64 // bytes outstanding when the connection was reset

	count counts
}

// counts are totals since the capture began.
type counts struct {
	packets                 int64
	segsOut, dataSegsOut    int64
	segsIn, dataSegsIn      int64
	bytesSent               int64
	bytesResent, segsResent int64 // data retransmitted, and captured before
	bytesFilled, segsFilled int64 // data retransmitted, and missing before
	flagsResent             int64 // SYN and FIN without data, retransmitted
	segsNeedless            int64 // of segsResent, acknowledged before
	because                 [reasons]int64
	reordered               int64 // packets sent in order that arrived late
	overtaken, extent       int64
	fullSegs                int64
	windowFull              int64
	maxFlight               int64 // bytes
	pauses, turns           int64
	pauseTime               int64 // ns
	waitedForPeer           int64 // ns
	copies, backward        int64 // packets
	backwardBy              int64 // ns
	deliveredSegs           int64
	dsackSegs               int64
	dsackAgain              int64 // of segsResent and segsFilled, as reported by DSACK
	reordSeen               int64
	timeouts                int64
	probes, windowProbes    int64
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
	epoch          int    // of the clock, at the last transmission
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
	// hostDelay bounds the time by which a host captures packets in another order.
	hostDelay = int64(3 * time.Millisecond)
	// coarseTimestamp exceeds the tick of usual timestamp clocks.
	coarseTimestamp = int64(2 * time.Millisecond)
	// farAway exceeds every window (RFC 7323, section 2.3).
	farAway = 1 << 30
)

func newHalf(at int64, room *int) half {
	return half{room: room, sizes: sizes{usual: ethernetSegment4}, clock: at, idleSince: at, shutAt: -1, openedAt: -1, closed: zeroWindows{since: -1, until: -1}, stall: stall{progress: at}}
}

// begin adopts a sequence number as the first.
func (h *half) begin(seq uint32) {
	h.begun = true
	h.skipTo(1<<32 + int64(seq))
}

// skipTo skips data that was sent before the capture began.
func (h *half) skipTo(n int64) {
	h.began, h.una, h.nxt, h.highSacked, h.holes = n, n, n, n, 0
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

// dataOutstanding is the number of outstanding bytes, without SYN and FIN.
func (h *half) dataOutstanding() int64 {
	n := h.nxt - h.una
	if h.isnKnown && h.una == h.isn {
		n--
	}
	if h.finSent && h.una < h.finEnd {
		n--
	}
	return max(0, n)
}

// inFlight counts the bytes in flight. Those that the capture lacks count once it has them:
// they may have been acknowledged long ago.
func (h *half) inFlight() {
	all := h.dataOutstanding()
	if h.holes > 0 && h.wndKnown && h.nxt-h.una > h.wndMax {
		return
	}
	if h.holes == 0 {
		h.count.maxFlight = max(h.count.maxFlight, all, h.flightWithHoles)
		h.flightWithHoles = 0
		return
	}
	h.count.maxFlight = max(h.count.maxFlight, all-h.holes)
	h.flightWithHoles = max(h.flightWithHoles, all)
}

// sent processes a packet of this end, and reports whether it has new data.
func (h *half) sent(p *packet, t int64) bool {
	c := &h.count
	c.packets++
	if p.rst {
		c.segsOut++
		return false
	}
	if !h.begun {
		h.begin(p.seq)
	}
	start := h.number(p.seq)
	if (h.sends || h.answered) && h.isForeign(start+p.space()) {
		c.stray++
		return false
	}
	if !h.sends {
		h.sends = true
		if start > h.nxt && !h.answered { // else what is before it was sent since the capture began
			h.skipTo(start)
		}
	}
	h.stamped(p, t)
	h.sizes.usual = usualSegment(p)
	if h.isProbe(p, start, t) {
		c.segsOut++
		h.probe(start+int64(p.payload), t)
		return false
	}
	var full int64
	if p.payload > 0 {
		full = h.sizes.saw(p.payload, p.push)
	}
	packets := h.packets(int64(p.payload))
	c.segsOut += max(1, packets)
	if p.space() == 0 {
		return false
	}
	end := start + p.space()
	isNew := p.payload > 0 && end > h.nxt
	if isNew {
		h.spoke(t)
	}
	h.resume(end, t)
	if p.payload > 0 {
		c.dataSegsOut += packets
		c.fullSegs += full
		c.bytesSent += int64(p.payload)
		if packets > 1 {
			c.superPackets++
		}
	}
	if p.fin {
		h.finSent, h.finEnd = true, end
	}
	w := &placed{start: start, bytes: int64(p.payload)}
	if p.syn {
		w.start++
	}
	h.place(p, w, start, end, t)
	h.countAgain(w, t)
	h.flew(t)
	if p.payload > 0 {
		h.dataAt = t
		h.inFlight()
	}
	if left := h.una + h.wnd - end; isNew && h.wndKnown && left >= 0 && left < h.usefulWindow() {
		c.windowFull++
	}
	return isNew
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

// isPrompt reports whether a packet of this end is no probe and no retransmission,
// which a timer may have caused.
func (h *half) isPrompt(p *packet, t int64) bool {
	if !h.begun {
		return true
	}
	start := h.number(p.seq)
	return !h.isProbe(p, start, t) && (p.space() == 0 || start >= h.nxt)
}

func far(a, b int64) bool { return a-b > farAway || b-a > farAway }

// isForeign reports whether a sequence number, of a packet or of an acknowledgement,
// is farther from this end's data than the peer's windows allow: an earlier connection
// may have it (RFC 5961, section 5). A capture that lacks more than a window shows
// several packets near each other beyond it.
func (h *half) isForeign(n int64) bool {
	allowed := int64(farAway)
	if h.wndKnown {
		allowed = 2*h.wndMax + firstWindow
	}
	switch {
	case n >= h.una-allowed && n <= h.nxt+allowed, h.beyond > 0 && n != h.beyond && n > h.una && !far(n, h.nxt) &&
		n >= h.beyond-allowed && n <= h.beyond+allowed:
		h.beyond = 0
		return false
	case far(n, h.nxt), n <= h.nxt:
		return true
	}
	h.beyond = n
	return true
}

// waitsForSYN reports whether only the SYN was sent, and not acknowledged.
func (h *half) waitsForSYN() bool { return h.isnKnown && h.una == h.isn && h.count.bytesSent == 0 }

// firstWindow is the largest window without a scale.
const firstWindow = 1 << 16

// isProbe recognises keepalives and zero window probes. A keepalive has the
// number before the first outstanding one, with or without a byte (RFC 9293,
// section 3.8.4). A zero window probe has a byte beyond the window (section
// 3.8.6.1); where the capture has the window's opening first, the probe was sent before.
func (h *half) isProbe(p *packet, start, t int64) bool {
	if p.payload > 1 || p.syn || p.fin || !h.answered {
		return false
	}
	return start == h.una-1 && (h.una == h.nxt || p.payload == 0) || h.wasClosed(t) && start == h.una && p.payload == 1
}

// wasClosed reports whether the peer's window was 0 for the sender of a packet.
func (h *half) wasClosed(t int64) bool {
	return h.closed.since >= 0 || h.closed.until >= 0 && t-h.closed.until <= h.path
}

// probe counts a probe. While the window is closed, a probe means that data
// waits to be sent.
func (h *half) probe(end, t int64) {
	h.count.probes++
	if h.wasClosed(t) {
		h.count.windowProbes++
	}
	h.probeEnd = end
	if h.idleSince >= 0 && h.shutAt >= 0 && h.openedAt < 0 {
		h.busy += t - h.idleSince
		h.rwndLimited += t - max(h.shutAt, h.idleSince)
		h.idleSince, h.shutAt = t, t
	}
}

// clockChanged forgets the times of what is outstanding.
func (h *half) clockChanged(epoch int) {
	h.epoch = epoch
	h.echo = [echoes]stamp{}
	h.bursts.interrupted()
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
func (h *half) echoed(p *packet, t int64, prompt bool) {
	if !p.timestamps || !p.hasAck {
		return
	}
	for i := range h.echo {
		if s := &h.echo[i]; s.open && s.value == p.tsecr {
			s.open = false
			if prompt {
				h.minEcho = lesser(h.minEcho, t-s.at)
			}
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
	h.stall.heard = 0
}

// placed has the data of a packet, and how much of it was sent before, in bytes.
type placed struct {
	start, bytes int64
	resent       int64 // captured before
	needless     int64 // of those, acknowledged before
	filled       int64 // sent before and missed by the capture
	late         int64 // sent once, before data that the capture has before it
	flags        bool  // a SYN or a FIN was captured before
	waiting      bool  // some of what was sent before waits for its acknowledgement
	since        int64 // when the first outstanding data was sent first
	why          reason
}

// data is the number of bytes of data between two sequence numbers.
func (w *placed) data(start, end int64) int64 {
	return max(0, min(end, w.start+w.bytes)-max(start, w.start))
}

// place inserts a packet into the outstanding segments.
func (h *half) place(p *packet, w *placed, start, end, t int64) {
	if start < h.una {
		stop := min(end, h.una)
		switch {
		case start == h.probeEnd-1 && stop == h.probeEnd: // the peer has taken a probe's byte
		case h.lacked(start, stop, t): // the file has it behind its acknowledgement
			h.count.missing -= stop - start
		default:
			h.resent(w, start, stop)
			w.needless = w.data(start, stop)
		}
		if w.needless > 0 {
			w.why = h.why(start, stop, h.dataAt, t, false)
		}
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
			h.holes += start - h.nxt
			h.nxt = end
			return
		}
		i := sort.Search(len(h.segs), func(i int) bool { return h.segs[i].end > start })
		switch {
		case i == len(h.segs): // a gap at the end: data sent before the capture began
			start = h.nxt
		case h.segs[i].start <= start:
			stop := min(end, h.segs[i].end)
			h.again(p, w, i, start, stop, t)
			start = stop
		default:
			stop := min(end, h.segs[i].start)
			h.fill(p, w, i, start, stop, t)
			start = stop
		}
	}
}

// lack is data that was acknowledged before the capture had it.
type lack struct {
	sackRange
	at int64
}

// lacked reports whether the capture lacked data until now, and has it too soon for a
// retransmission: acknowledgements may come before it in the file.
func (h *half) lacked(start, end, t int64) bool {
	for i := range h.lacks {
		l := &h.lacks[i]
		if l.start > start || l.end < end || t-l.at > max(h.path/2, hostDelay) {
			continue
		}
		rest := sackRange{end, l.end}
		l.end = start
		if l.start == l.end {
			l.sackRange = rest
		} else if rest.start < rest.end {
			h.lack(rest, l.at)
		}
		return true
	}
	return false
}

// lack notes data that the capture lacks.
func (h *half) lack(b sackRange, t int64) {
	h.lacks[h.nextLack] = lack{b, t}
	h.nextLack = (h.nextLack + 1) % len(h.lacks)
}

// countAgain counts what a packet has of data that was sent before. A packet counts
// for all of its parts, however many segments they were before.
func (h *half) countAgain(w *placed, t int64) {
	n := &h.count
	all := h.packets(w.bytes)
	resent := h.packets(w.resent)
	filled := min(h.packets(w.filled), all-resent)
	n.bytesResent += w.resent
	n.segsResent += resent
	n.segsNeedless += h.packets(w.needless)
	n.bytesFilled += w.filled
	n.segsFilled += filled
	n.reordered += min(h.packets(w.late), all-resent-filled)
	n.because[w.why] += resent + filled
	if resent+filled > 0 {
		h.recovery.sentAgain(sackRange{w.start, w.start + w.bytes})
	}
	switch {
	case w.flags && resent+filled == 0:
		n.flagsResent++
	case w.waiting && resent+filled > 0:
		h.stall.sentAgain(w.since, t, resent+filled, min(w.bytes, int64(h.sizes.segment())))
	}
}

// segment makes a new segment.
func (h *half) segment(p *packet, start, end, t int64) segment {
	if h.unacked == 0 {
		h.firstSent, h.deliveredAt = t, t
	}
	return segment{
		start: start, end: end, packets: max(1, h.packets(end-start)), data: p.payload > 0,
		epoch: h.epoch, at: t, firstAt: t, tsval: p.tsval, firstTS: p.tsval,
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

// resent notes a retransmission.
func (h *half) resent(w *placed, start, end int64) {
	bytes := w.data(start, end)
	w.resent += bytes
	w.flags = w.flags || bytes < end-start
}

// again handles the retransmission of segment i or a part of it.
func (h *half) again(p *packet, w *placed, i int, start, end, t int64) {
	if !w.waiting {
		w.waiting, w.since = true, h.segs[0].firstAt
		w.why = h.why(start, end, h.segs[i].at, t, h.segs[i].resent)
	}
	h.resent(w, start, end)
	i = h.cut(i, start)
	if end < h.segs[i].end {
		h.cut(i, end)
	}
	s := &h.segs[i]
	s.resent, s.at, s.tsval, s.epoch = true, t, p.tsval, h.epoch
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

// rto is the timeout of RFC 6298, with Linux's minimum.
func (h *half) rto() int64 {
	if h.srtt == 0 {
		return firstRTO
	}
	return max(minRTO, h.srtt+4*h.rttvar)
}

// fill closes a gap before segment i. A packet sent later than the opener of
// the gap is a retransmission of a packet lost before the capture. A packet
// sent earlier was overtaken.
//
// Timestamps distinguish the two (RFC 3522), because a retransmission comes at
// least a round trip after the opener. Without usable timestamps, the time
// decides.
func (h *half) fill(p *packet, w *placed, i int, start, end, t int64) {
	h.holes = max(0, h.holes-(end-start))
	opener := &h.segs[i]
	late := t-opener.firstAt > max(h.path/2, hostDelay)
	if p.timestamps && (p.tsval != opener.firstTS || h.path > coarseTimestamp) {
		late = int32(p.tsval-opener.firstTS) > 0
	}
	s := h.segment(p, start, end, t)
	if late {
		if !w.waiting {
			w.waiting, w.since = true, h.segs[0].firstAt
			w.why = h.why(start, end, h.dataAt, t, false)
		}
		s.resent = true
		w.filled += w.data(start, end)
	} else {
		w.late += w.data(start, end)
		h.overtook(i)
	}
	h.add(i, s)
}

// overtook notes that the segments from i on have overtaken one before them.
func (h *half) overtook(i int) {
	if !h.spend(len(h.segs) - i) {
		return
	}
	var n int64
	for ; i < len(h.segs); i++ {
		n += h.segs[i].packets
	}
	h.count.extent = max(h.count.extent, n)
}

// flew records the flight for the estimate of the congestion window.
func (h *half) flew(t int64) {
	if t-h.flightSince > max(h.srtt, int64(time.Millisecond)) {
		h.flightMaxBefore, h.flightMax, h.flightSince = h.flightMax, 0, t
	}
	h.flightMax = max(h.flightMax, h.unacked-h.sacked)
}

// usefulWindow is the least room in the peer's window for which a sender sends: a
// segment, or half of a window that is smaller (RFC 9293, section 3.8.6.2.1).
func (h *half) usefulWindow() int64 {
	return min(int64(h.sizes.segment()), max(h.wndMax/2, 1))
}

// shut reports whether the peer's window has no room for the next packet: a
// segment, or one of the sender's super-packets. Linux waits for room for a
// super-packet, up to a third of the window.
func (h *half) shut() bool {
	if h.closed.since >= 0 {
		return true
	}
	next := max(h.usefulWindow(), min(int64(h.sizes.burst), h.wnd/3))
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
