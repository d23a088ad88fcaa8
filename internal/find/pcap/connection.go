package pcap

import (
	"cmp"
	"math"
	"net/netip"
	"time"

	"longhaul/internal/find/doctor"
)

// connection is a connection under analysis. Its halves belong to key.a and
// key.b.
type connection struct {
	key         key
	first, last int64 // ns since table.origin, without steps of the clock
	stepped     int64 // by how much the clock was set forward since the first packet, ns
	half        [2]half
	client      int // index of the end that connected; -1: not seen
	// The ends that were heard, and the network in which each sends.
	heard    [2]bool
	networks [2]network

	closer  int // index of the end that sent the first FIN or RST; -1: none yet
	reset   bool
	resetBy int // index of the end that reset it; -1: none

	optionsCut      bool  // of a SYN
	synAt, synAckAt int64 // first transmissions; negative: not seen
	handshakeRTT    int64 // 0: unknown

	copies copies
	epoch  int // of the clock, in the file
	steps  int // of the clock, in the connection

	next, every int64 // time of the next sample, and the interval
	samples     [2][]doctor.Sample
}

func newConnection(k key, at int64, room *int) *connection {
	return &connection{
		key: k, first: at, last: at, half: [2]half{newHalf(at, room), newHalf(at, room)},
		client: -1, closer: -1, resetBy: -1, synAt: -1, synAckAt: -1, next: at, every: int64(minInterval),
	}
}

// isReuse reports whether a packet begins a new connection between the same
// ports.
func (c *connection) isReuse(p *packet, from int) bool {
	h := &c.half[from]
	if !p.syn || !h.begun {
		return false
	}
	isn := h.number(p.seq)
	if h.isnKnown {
		return isn != h.isn
	}
	if peer := &c.half[1-from]; p.hasAck && peer.waitsForSYN() && peer.number(p.ack) == peer.nxt {
		return false // the end answered for an earlier connection before
	}
	return h.sends || isn != h.una-1 // unless the file has this SYN after its acknowledgement
}

// over reports whether the connection has ended.
func (c *connection) over() bool {
	return c.reset || c.half[0].finAcked() && c.half[1].finAcked()
}

func (h *half) finAcked() bool { return h.finSent && h.una >= h.finEnd }

// carried is the number of bytes that the connection moved, for sorting.
func (c *connection) carried() int64 {
	moved := func(h *half) int64 { return max(h.count.bytesSent, h.acknowledged()) }
	return moved(&c.half[0]) + moved(&c.half[1])
}

// maxSilence is the longest time between two packets of a connection. More is a step of
// the clock, and no time.
const maxSilence = int64(24 * time.Hour)

// ended is the time of the last packet, in ns since table.origin.
func (c *connection) ended() int64 { return c.last + c.stepped }

// packet processes a packet of end from. It returns false for a packet captured
// before.
func (c *connection) packet(p *packet, from int) bool {
	step := p.at - c.stepped - c.last
	if step > maxSilence {
		c.stepped += step
	}
	at := p.at - c.stepped
	t := max(at, c.last) // sorting is bounded
	if back := max(p.behind, t-at); back > 0 {
		n := &c.half[from].count
		n.backward++
		n.backwardBy = max(n.backwardBy, back)
	}
	if p.epoch != c.epoch || step > maxSilence {
		c.epoch = p.epoch
		c.steps++
		c.half[0].clockChanged(c.steps)
		c.half[1].clockChanged(c.steps)
	}
	if c.copies.has(p, from, t, c.half[0].room) {
		c.half[from].count.copies++
		return false
	}
	c.sampleUntil(t)
	c.last = t
	a, b := &c.half[from], &c.half[1-from]
	a.run(t)
	b.run(t)
	a.seen++
	b.seen++
	if p.syn {
		c.syn(p, from, t)
	}
	if (p.fin || p.rst) && !(p.rst && c.isForeignReset(p, from)) {
		c.closes(p, from)
	}
	b.heard(p, t, c.shift(from), a.isPrompt(p, t))
	a.path = a.toPeer() + b.toPeer()
	if a.sent(p, t) {
		b.peerSpoke, b.peerSpokeAt = true, t
	}
	n := a.packets(int64(p.payload))
	b.count.dataSegsIn += n
	b.count.segsIn += max(1, n)
	if c.synAckAt >= 0 && c.handshakeRTT == 0 && p.hasAck && !p.syn && from == c.client {
		c.handshake(t)
	}
	return true
}

// flags returns the header's flags, and a bit that is always set.
func (p *packet) flags() uint8 {
	f := uint8(1)
	for i, set := range []bool{p.syn, p.fin, p.rst, p.hasAck, p.push, p.ece, p.cwr} {
		if set {
			f |= 2 << i
		}
	}
	return f
}

// syn processes the offer in a SYN.
func (c *connection) syn(p *packet, from int, t int64) {
	h := &c.half[from]
	if !h.begun || !h.isnKnown && h.count.bytesSent == 0 && h.number(p.seq) != h.una-1 {
		h.begin(p.seq)
	}
	if !h.isnKnown {
		h.isn, h.isnKnown, h.answers = h.number(p.seq), true, p.hasAck
		c.opens(p, from, t)
	}
	if p.payload > 0 {
		h.synData = h.isn + 1 + int64(p.payload)
	}
	if h.offer.Seen || p.optionsCut {
		c.optionsCut = c.optionsCut || p.optionsCut
		return
	}
	h.offer = Offer{
		Seen: true, MSS: p.mss, WScale: p.wscale, SACK: p.sackPermitted, Timestamps: p.timestamps,
		ECN: p.ece && p.cwr != p.hasAck, // RFC 3168, section 6.1.1
	}
	if c.half[0].offer.Seen && c.half[1].offer.Seen {
		c.agree()
	}
}

// opens determines the client: the end whose SYN comes first or is answered.
func (c *connection) opens(p *packet, from int, t int64) {
	if p.hasAck {
		c.synAckAt = t
		from = 1 - from
	} else if c.synAt < 0 {
		c.synAt = t
	}
	if c.client < 0 {
		c.client = from
	}
}

// The MSS of an end that sent no option (RFC 9293, section 3.7.1).
const (
	defaultMSS4, defaultMSS6 = 536, 1220
	timestampBytes           = 12 // with padding (RFC 7323, appendix A)
)

// agree sets the bound of both ends' segments. An end announces the MSS it can
// receive; with one device, it cannot send more.
func (c *connection) agree() {
	usual := defaultMSS4
	if c.key.a.Addr().Is6() {
		usual = defaultMSS6
	}
	for i := range c.half {
		own, peers := c.half[i].offer.MSS, c.half[1-i].offer.MSS
		c.half[i].sizes.agree(min(cmp.Or(peers, usual), cmp.Or(own, math.MaxInt)), peers == 0, c.optionBytes())
	}
}

// optionBytes is the length of the options in every segment.
func (c *connection) optionBytes() int {
	if c.half[0].offer.Timestamps && c.half[1].offer.Timestamps {
		return timestampBytes
	}
	return 0
}

// shift is the scale of an end's announced window; -1: unknown. Scaling
// requires the option of both ends (RFC 7323, section 2.2).
func (c *connection) shift(of int) int {
	mine, peers := &c.half[of].offer, &c.half[1-of].offer
	switch {
	case mine.Seen && mine.WScale < 0, peers.Seen && peers.WScale < 0:
		return 0
	case mine.Seen && peers.Seen:
		return mine.WScale
	}
	return -1
}

// closes records the end that closed the connection first.
func (c *connection) closes(p *packet, from int) {
	if c.closer < 0 {
		c.closer = from
	}
	if p.rst && !c.over() {
		c.reset, c.resetBy = true, from
		for i := range c.half {
			c.half[i].resetOutstanding = c.half[i].dataOutstanding()
		}
	}
}

// isForeignReset reports whether a RST is of an earlier connection between the ports.
func (c *connection) isForeignReset(p *packet, from int) bool {
	h, peer := &c.half[from], &c.half[1-from]
	if p.hasAck && peer.waitsForSYN() {
		return peer.number(p.ack) != peer.nxt // RFC 9293, section 3.10.7.3
	}
	if !h.begun || !h.sends {
		return false
	}
	n := h.number(p.seq)
	return h.waitsForSYN() && n != h.nxt || h.isForeign(n)
}

// handshake measures the round trip at the end of a handshake. After a
// retransmitted SYN it is unknown which SYN was answered.
func (c *connection) handshake(t int64) {
	if c.synAt >= 0 && c.half[0].count.flagsResent+c.half[1].count.flagsResent == 0 {
		c.handshakeRTT = t - c.synAt
	}
}

// place determines the position of the capture for the data of an end, by the
// parts of the round trip on either side.
func (c *connection) place(of int) Place {
	if c.key.a.Addr() == c.key.b.Addr() {
		return AtSender // both ends are here
	}
	toPeer, toSender := c.half[of].toPeer(), c.half[1-of].toPeer()
	if toPeer == 0 || toSender == 0 {
		return PlaceUnknown
	}
	total := toPeer + toSender
	switch near := min(toPeer, toSender); {
	// On a very short round trip, the host's own delay counts.
	case near*10 > total && total > int64(time.Millisecond):
		return Between
	case toSender <= toPeer:
		return AtSender
	}
	return AtReceiver
}

// finish makes the result of the connection.
func (c *connection) finish(began time.Time) *Connection {
	for i := range c.half {
		c.samples[i] = append(c.samples[i], c.snapshot(i, c.last))
	}
	client := c.client
	if client < 0 {
		client = 0
		if c.key.a.Port() < c.key.b.Port() {
			client = 1
		}
	}
	ends := [2]int{client, 1 - client}
	addresses := [2]netip.AddrPort{c.key.a, c.key.b}
	out := &Connection{
		Client: addresses[client], Server: addresses[1-client],
		Start: began.Add(time.Duration(c.first)), End: began.Add(time.Duration(c.ended())),
		Handshake: Handshake{Client: c.half[client].offer, Server: c.half[1-client].offer, RTT: time.Duration(c.handshakeRTT), OptionsCut: c.optionsCut},
		Reset:     c.reset,
		Network:   c.network(client),
	}
	switch c.closer {
	case client:
		out.ClosedBy = Client
	case 1 - client:
		out.ClosedBy = Server
	}
	for i, side := range []Side{Client, Server} {
		if c.oneWay(ends[i]) {
			out.OneWay = side
		}
	}
	for i, end := range ends {
		out.Directions[i] = c.direction(end)
		out.Directions[i].Observation.Local = addresses[end]
		out.Directions[i].Observation.Remote = addresses[1-end]
	}
	return out
}

// answeredBytes are more than an end sends without an answer, if it repeats few of them.
const answeredBytes = 64 << 10

// oneWay reports whether packets of an end alone were captured, and show answers.
func (c *connection) oneWay(of int) bool {
	h, peer := &c.half[of], &c.half[1-of]
	if !c.heard[of] || c.heard[1-of] {
		return false
	}
	handshake := h.isnKnown && !h.answers && peer.begun
	goesOn := h.count.bytesSent > answeredBytes && h.count.bytesResent < h.count.bytesSent/10
	return handshake || goesOn || peer.count.missing > 0
}

// network names the networks of the connection's packets, the client's first.
func (c *connection) network(client int) string {
	a, b := c.networks[client], c.networks[1-client]
	switch {
	case !c.heard[client]:
		a = b
	case !c.heard[1-client]:
		b = a
	}
	if a == b {
		return a.String()
	}
	return cmp.Or(a.String(), "none") + " and " + cmp.Or(b.String(), "none")
}

// direction makes the result for the data of an end.
func (c *connection) direction(of int) Direction {
	h := &c.half[of]
	n := &h.count
	d := Direction{
		Place: c.place(of), Packets: n.packets, Bytes: n.bytesSent,
		Delivered:     h.dataAcknowledged(),
		Retransmitted: n.segsResent + n.segsFilled, LostBefore: n.segsFilled, Reordered: n.reordered,
		ZeroWindows: h.closed.times, Probes: n.probes, SuperPackets: n.superPackets,
		Missing: n.missing > 0, MissingBytes: n.missing, Stray: n.stray, Merged: n.merged,
	}
	capture := &doctor.Capture{
		AtSender: d.Place == AtSender, Handshake: h.offer.Seen && c.half[1-of].offer.Seen, Counts: c.counts(of, d.Place),
		Time: time.Duration(c.last - c.first), PlaceUnknown: d.Place == PlaceUnknown,
	}
	if capture.AtSender {
		capture.BurstBps, capture.Bursts = h.bursts.rate()
	}
	if capture.Handshake && h.offer.MSS > 0 && !h.sizes.assumed {
		capture.AgreedMSS, capture.SenderMSS = h.sizes.bound, h.offer.MSS-c.optionBytes()
	}
	d.Observation.Capture = capture
	known := c.known(of, d.Place)
	d.Observation.Samples = c.samples[of] // without a copy: all together are many
	for i := range d.Observation.Samples {
		complete(&d.Observation.Samples[i], known, d.Place, c.half[1-of].toPeer(), c.first)
	}
	settle(d.Observation.Samples)
	return d
}

// settle moves the times of the sender's clocks to where they passed. What a pause was
// is known at its end, and no clock runs faster than time.
func settle(samples []doctor.Sample) {
	for i := len(samples) - 1; i > 0; i-- {
		before, info := &samples[i-1].Info, &samples[i].Info
		passed := samples[i].At - samples[i-1].At
		before.BusyTime = max(before.BusyTime, info.BusyTime-passed)
		before.RwndLimited = max(before.RwndLimited, info.RwndLimited-passed)
	}
}

// acknowledged is the number of acknowledged bytes as the kernel counts them:
// including the connecting end's SYN, and the FIN.
func (h *half) acknowledged() int64 {
	if !h.begun {
		return 0
	}
	if !h.isnKnown {
		return h.una - h.began
	}
	return max(0, h.una-h.base())
}

// dataAcknowledged excludes the SYN and the FIN.
func (h *half) dataAcknowledged() int64 {
	n := h.acknowledged()
	if h.isnKnown && !h.answers && n > 0 {
		n--
	}
	if h.finAcked() {
		n--
	}
	return max(0, n)
}
