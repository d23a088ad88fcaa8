package pcap

import "sort"

// heard processes the peer's feedback in a packet about this end's data. shift
// is the scale of the peer's window; negative: unknown. A packet that is not
// prompt comes when a timer of the peer expires.
func (h *half) heard(p *packet, t int64, shift int, prompt bool) {
	h.echoed(p, t, prompt)
	if !p.hasAck || p.rst {
		return
	}
	if !h.begun {
		h.begin(p.ack)
	}
	ack := h.number(p.ack)
	if h.waitsForSYN() && (ack <= h.isn || ack > h.nxt+firstWindow) || h.isForeign(ack) {
		h.count.stray++
		return
	}
	h.answered = true
	if ack > h.nxt {
		h.holes += ack - h.nxt
		h.nxt = ack
	}
	r := rates{before: h.highSacked, firstAt: -1, lastAt: -1, sackedAt: -1}
	if ack > h.una {
		h.pop(p, ack, t, &r)
	}
	h.selective(p, ack, t, &r)
	switch {
	case r.resent || h.sacked > 0 || p.sacks > 0:
		h.bursts.interrupted()
	case r.firstAt >= 0:
		h.bursts.acknowledged(burstAck{t, ack, r.lastAt}, int64(h.sizes.segment()))
	}
	switch {
	case r.newly:
		h.progress = t
		h.stall.ended(t)
		h.recovery.duplicates = 0
	case h.isDuplicate(p, ack, shift):
		h.progress = t
		h.recovery.duplicates++
	}
	if !r.newly {
		h.stall.heard++
	}
	if r.reordered {
		h.count.reordSeen++
	}
	if ack != h.probeEnd { // else a probe's byte may be taken, sent long before the data
		h.measure(p, t, &r)
	}
	if ack >= h.una {
		h.window(p, t, shift)
	}
}

// isDuplicate recognises a duplicate acknowledgement, which reports an arrival
// without SACK (RFC 5681, section 2).
func (h *half) isDuplicate(p *packet, ack int64, shift int) bool {
	return !h.offer.SACK && ack == h.una && int64(p.window)<<max(shift, 0) == h.wnd && p.payload == 0 && !p.syn && !p.fin && h.outstanding()
}

// unseen handles acknowledged data that the capture missed, or a probe's byte. What was
// sent before much of it may have been acknowledged long ago, and shows no round trip.
func (h *half) unseen(start, end, t int64, r *rates) {
	h.holes, h.flightWithHoles = max(0, h.holes-(end-start)), 0
	if end == h.probeEnd {
		end--
	}
	if start < end {
		h.count.missing += end - start
		h.lack(sackRange{start, end}, t)
	}
	if end-start > burstSegments*int64(h.sizes.segment()) {
		r.firstAt, r.lastAt = -1, -1
	}
}

// rates collects the information of one acknowledgement.
type rates struct {
	before          int64 // highSacked before it
	newly           bool
	reordered       bool
	firstAt, lastAt int64 // transmissions of the first and last segment that was never resent
	sackedAt        int64
	resent          bool // it acknowledges a retransmission
	resentSeg       segment
	newest          segment // the latest sent segment that it acknowledges
}

// pop removes acknowledged segments.
func (h *half) pop(p *packet, ack, t int64, r *rates) {
	cursor, n, hole := h.una, 0, false
	for n < len(h.segs) && h.segs[n].start < ack {
		if h.segs[n].end > ack {
			h.cut(n, ack)
		}
		s := &h.segs[n]
		if s.start > cursor {
			h.unseen(cursor, s.start, t, r)
		}
		cursor = s.end
		h.unacked -= s.packets
		overtaken := !s.sacked && !s.resent && s.end <= r.before
		if overtaken && !hole {
			h.count.overtaken++
			h.count.extent = max(h.count.extent, h.sacked)
		}
		hole = overtaken
		if s.sacked {
			h.sacked -= s.packets
		} else {
			h.deliver(s, t, r)
			r.reordered = r.reordered || overtaken
		}
		if s.resent {
			r.resent, r.resentSeg = true, *s
		} else if !s.sacked && s.epoch == h.epoch {
			if r.firstAt < 0 {
				r.firstAt = s.at
			}
			r.lastAt = s.at
		}
		n++
	}
	if cursor < ack {
		h.unseen(cursor, ack, t, r)
	}
	h.segs = h.segs[n:]
	*h.room += n
	if len(h.segs) == 0 {
		h.segs = nil
	}
	if h.synData > 0 && h.una == h.isn {
		h.synDataAcked = ack >= h.synData
	}
	h.una, r.newly = ack, true
	h.highSacked = max(h.highSacked, ack)
	if h.una == h.nxt {
		h.idleSince, h.holes = t, 0
	}
}

// deliver counts a segment that has reached the peer.
func (h *half) deliver(s *segment, t int64, r *rates) {
	h.count.deliveredSegs += s.packets
	h.delivered += s.end - s.start
	h.deliveredAt = t
	if s.data {
		h.stall.answered = max(h.stall.answered, min(s.end-s.start, int64(h.sizes.segment())))
	}
	if s.data && s.epoch == h.epoch && (r.newest.end == 0 || s.at >= r.newest.at) {
		r.newest = *s
	}
}

// selective processes SACK blocks (RFC 2018, RFC 2883).
func (h *half) selective(p *packet, ack, t int64, r *rates) {
	for i := range p.sacks {
		b := sackRange{h.number(p.sack[i].start), h.number(p.sack[i].end)}
		if b.end <= b.start || far(b.start, h.nxt) || far(b.end, h.nxt) {
			continue
		}
		if i == 0 && h.isDSACK(p, b, ack) {
			n := max(1, h.packets(b.end-b.start))
			h.count.dsackSegs += n
			h.count.dsackAgain += min(n, h.recovery.needless(b, h.packets))
			h.count.deliveredSegs += n // the kernel counts duplicates as delivered
			continue
		}
		b.start, b.end = max(b.start, h.una), min(b.end, h.nxt)
		h.news(b, len(h.known), func(b sackRange) { h.mark(b, t, r) })
		h.known[h.knownNext] = b
		h.knownNext = (h.knownNext + 1) % len(h.known)
	}
}

// isDSACK reports whether the first block reports duplicate data: below the
// acknowledgement, or inside the second block (RFC 2883, section 4).
func (h *half) isDSACK(p *packet, b sackRange, ack int64) bool {
	if b.end <= ack {
		return true
	}
	return p.sacks > 1 && b.start >= h.number(p.sack[1].start) && b.end <= h.number(p.sack[1].end)
}

// news calls fn with the parts of a block outside the first n known ones. A
// receiver repeats its blocks in many acknowledgements.
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

// mark marks the segments of a block as received.
func (h *half) mark(b sackRange, t int64, r *rates) {
	i := sort.Search(len(h.segs), func(i int) bool { return h.segs[i].end > b.start })
	hole := false
	for ; i < len(h.segs) && h.segs[i].start < b.end && h.spend(1); i++ {
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
			if s.end <= r.before && !hole {
				r.reordered, hole = true, true
				h.count.overtaken++
				h.count.extent = max(h.count.extent, h.sacked-1)
			}
			if r.sackedAt < 0 && s.epoch == h.epoch {
				r.sackedAt = s.at
			}
		}
	}
	h.highSacked = max(h.highSacked, b.end)
}

// measure updates round trips and the delivery rate from an acknowledgement.
func (h *half) measure(p *packet, t int64, r *rates) {
	sample := int64(-1)
	switch {
	case r.firstAt >= 0 && !r.resent:
		sample = t - r.firstAt
		h.minRTT = lesser(h.minRTT, t-r.lastAt)
		h.rtts.add(max(1, t-r.lastAt))
	case r.resent && r.resentSeg.epoch == h.epoch && p.timestamps && p.tsecr == r.resentSeg.tsval && r.resentSeg.tsval != r.resentSeg.firstTS:
		sample = t - r.resentSeg.at // the echo identifies the transmission (RFC 7323, section 4)
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

// estimate smooths the round trip (RFC 6298, section 2).
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

// window updates the peer's window.
func (h *half) window(p *packet, t int64, shift int) {
	if p.syn {
		shift = 0 // RFC 7323, section 2.2
	}
	if !p.syn {
		h.closed.window(p.window == 0, t)
	}
	h.wndKnown = shift >= 0
	h.wnd = int64(p.window) << max(shift, 0)
	if h.wndKnown {
		h.wndMax = max(h.wndMax, h.wnd)
	}
	if !p.syn && (h.wndKnown || p.window == 0) {
		h.windows.add(h.wnd)
	}
	if h.idleSince < 0 || !h.wndKnown && p.window > 0 && h.shutAt < 0 {
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
