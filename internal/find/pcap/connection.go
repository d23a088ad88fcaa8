package pcap

import (
	"net/netip"
	"time"

	"longhaul/internal/find/doctor"
)

// connection is a connection under analysis. Its halves belong to key.a and
// key.b.
type connection struct {
	key         key
	first, last int64 // ns since the capture's first packet
	half        [2]half
	client      int // index of the end that connected; -1: not seen

	closer int // index of the end that sent the first FIN or RST; -1: none yet
	reset  bool

	synAt, synAckAt int64 // first transmissions; negative: not seen
	handshakeRTT    int64 // 0: unknown

	recent     [recentPackets]fingerprint
	recentNext int

	next, every int64 // time of the next sample, and the interval
	samples     [2][]snapshot
}

// fingerprint holds the fields that two captures of one packet share.
type fingerprint struct {
	at       int64
	from     int8
	seq, ack uint32
	tsval    uint32
	payload  int
	window   uint16
	ipID     uint16
	flags    uint8
	device   int
}

const (
	recentPackets = 32
	// Bounds of the time between two captures of a packet: on one interface it
	// follows at once; on its way through a host it may wait.
	sameDevice  = int64(time.Millisecond)
	otherDevice = int64(500 * time.Millisecond)
)

func newConnection(k key, at int64, room *int) *connection {
	return &connection{
		key: k, first: at, last: at, half: [2]half{newHalf(at, room), newHalf(at, room)},
		client: -1, closer: -1, synAt: -1, synAckAt: -1, next: at, every: int64(minInterval),
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

// packet processes a packet of end from. It returns false for a packet captured
// before.
func (c *connection) packet(p *packet, from int) bool {
	// Packets of several queues may be out of order in the file.
	t := max(p.at, c.last)
	if c.isCopy(p, from, t) {
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
	if p.fin || p.rst {
		c.closes(p, from)
	}
	b.heard(p, t, c.shift(from))
	a.path = a.toPeer() + b.toPeer()
	a.sent(p, t)
	n := a.packets(int64(p.payload))
	b.count.dataSegsIn += n
	b.count.segsIn += max(1, n)
	if c.synAckAt >= 0 && c.handshakeRTT == 0 && p.hasAck && !p.syn && from == c.client {
		c.handshake(t)
	}
	return true
}

// isCopy recognises a packet captured twice: on several interfaces, or on both
// ways through the loopback device. A retransmission differs in its timestamp
// or IPv4 identification.
func (c *connection) isCopy(p *packet, from int, t int64) bool {
	f := fingerprint{
		at: t, from: int8(from), seq: p.seq, ack: p.ack, tsval: p.tsval, payload: p.payload,
		window: p.window, ipID: p.ipID, flags: p.flags(), device: p.device,
	}
	for i := range c.recent {
		r := &c.recent[i]
		within := sameDevice
		if r.device != f.device {
			within = otherDevice
		} else if f.ipID == 0 && (f.payload == 0 || !p.timestamps) {
			continue // could be a duplicate acknowledgement or a retransmission
		}
		was := *r
		was.at, was.device = f.at, f.device
		if was == f && r.flags != 0 && t-r.at <= within {
			return true
		}
	}
	c.recent[c.recentNext] = f
	c.recentNext = (c.recentNext + 1) % recentPackets
	return false
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
	if !h.begun {
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
		return
	}
	h.offer = Offer{
		Seen: true, MSS: p.mss, WScale: p.wscale, SACK: p.sackPermitted, Timestamps: p.timestamps,
		ECN: p.ece && p.cwr != p.hasAck, // RFC 3168, section 6.1.1
	}
	if a, b := &c.half[0].offer, &c.half[1].offer; a.Seen && b.Seen {
		c.agree(a, b)
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

// agree sets the bound of both ends' segments.
func (c *connection) agree(a, b *Offer) {
	other := defaultMSS4
	if c.key.a.Addr().Is6() {
		other = defaultMSS6
	}
	mss := func(o *Offer) int {
		if o.MSS == 0 {
			return other
		}
		return o.MSS
	}
	// An end announces the MSS it can receive; with one device, it cannot send
	// more.
	bound := min(mss(a), mss(b)) - c.optionBytes()
	for i := range c.half {
		c.half[i].sizes.bound = max(bound, 1)
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
		c.reset = true
	}
}

// handshake measures the round trip at the end of a handshake. After a
// retransmitted SYN it is unknown which SYN was answered.
func (c *connection) handshake(t int64) {
	if c.synAt >= 0 && c.half[0].count.segsResent+c.half[1].count.segsResent == 0 {
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
		Start: began.Add(time.Duration(c.first)), End: began.Add(time.Duration(c.last)),
		Handshake: Handshake{Client: c.half[client].offer, Server: c.half[1-client].offer, RTT: time.Duration(c.handshakeRTT)},
		Reset:     c.reset,
	}
	switch c.closer {
	case client:
		out.ClosedBy = Client
	case 1 - client:
		out.ClosedBy = Server
	}
	for i, end := range ends {
		out.Directions[i] = c.direction(end)
		out.Directions[i].Observation.Local = addresses[end]
		out.Directions[i].Observation.Remote = addresses[1-end]
	}
	return out
}

// direction makes the result for the data of an end.
func (c *connection) direction(of int) Direction {
	h := &c.half[of]
	n := &h.count
	d := Direction{
		Place: c.place(of), Packets: n.packets, Bytes: n.bytesSent,
		Delivered:     h.dataAcknowledged(),
		Retransmitted: n.segsResent + n.segsFilled, LostBefore: n.segsFilled, Reordered: n.reordered,
		ZeroWindows: n.zeroWindows, Probes: n.probes, SuperPackets: n.superPackets,
		Missing: n.missing > 0, MissingBytes: n.missing, Stray: n.stray, Merged: n.merged,
	}
	capture := &doctor.Capture{AtSender: d.Place == AtSender, Handshake: h.offer.Seen && c.half[1-of].offer.Seen}
	if capture.AtSender {
		capture.BurstBps, capture.Bursts = h.bursts.rate()
	}
	if capture.Handshake && h.offer.MSS > 0 {
		capture.AgreedMSS, capture.SenderMSS = h.sizes.bound, h.offer.MSS-c.optionBytes()
	}
	d.Observation.Capture = capture
	known := c.known(of, d.Place)
	for _, s := range c.samples[of] {
		d.Observation.Samples = append(d.Observation.Samples, s.sample(known, d.Place, c.half[1-of].toPeer(), c.first))
	}
	return d
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
