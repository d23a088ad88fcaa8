package pcap

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
)

// simulation is a transfer of a client to a server with all that happens to it, of which
// a capture is made at one place of the path. Its times are in ns, and its sequence
// numbers count from the SYN.
type simulation struct {
	setting
	random  *rand.Rand
	now     int64
	events  events
	number  int // of events
	capture *capture
	start   int64
	made    []*made // all packets that the capture has

	send    sender
	receive receiver
}

// setting is drawn at random.
type setting struct {
	name         string
	six          bool
	timestamps   bool
	sack         bool
	scale        int // -1: none
	mss          int // announced; 0: none
	segment      int // data of a full segment
	isn          [2]uint32
	trip         int64   // without extra delay
	place        float64 // of the capture, 0: at the sender, 1: at the receiver
	cwnd         int     // segments
	writes       []write
	buffer       int     // of the receiver
	readerStalls []span  // in which the receiver does not read
	loss         float64 // share of the data segments
	late         float64 // share that others overtake
	doubled      float64 // share that the path delivers twice
	delayedACKs  bool
	probeByte    bool // a zero window probe has a byte beyond the window
	keepAlive    int64
}

type write struct {
	at    int64
	bytes int
}

type span struct{ from, to int64 }

// made is a captured packet, with the truth.
type made struct {
	at        int64
	from      int
	seq, end  int64
	ack       int64
	window    int64 // in bytes
	raw       uint16
	again     bool // retransmission
	why       reason
	needless  bool // the receiver had it
	probe     bool
	keepAlive bool
	syn       bool
}

type event struct {
	at     int64
	number int
	do     func()
}

type events []event

func (e events) Len() int { return len(e) }

func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].number < e[j].number
}

func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

// Push implements heap.Interface.
func (e *events) Push(x any) { *e = append(*e, x.(event)) }

// Pop implements heap.Interface.
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func (s *simulation) after(d int64, do func()) {
	s.number++
	heap.Push(&s.events, event{s.now + d, s.number, do})
}

// sender is a simple TCP with a constant congestion window.
type sender struct {
	una, nxt, written int64
	pushes            []int64 // ends of writes
	segs              []simulated
	edge              int64 // of the peer's window
	duplicates        int
	recover           int64 // the end of a recovery; 0: none
	why               reason
	sackedTo          int64
	timerRun          int // number of the timer
	backoff           int64
	probeWait         int64
	tail              bool // the timer is for a tail probe, and one was not sent yet
	probing           bool
	lastSent          int64
	echo              uint32 // latest timestamp of the peer
}

type simulated struct {
	start, end int64
	sacked     bool
	again      int // retransmissions
	resent     bool
}

type receiver struct {
	next    int64
	later   []sackRange // out of order, latest first
	read    int64
	edge    int64
	waiting int // segments without an acknowledgement
	run     int // of the timer
	echo    uint32
}

const ms1 = int64(time.Millisecond)

// simulate runs a transfer up to its end.
func simulate(t testing.TB, set setting, random *rand.Rand, port uint16, start int64) (*simulation, *capture) {
	c := newCapture(t)
	c.six, c.isn, c.port = set.six, set.isn, port
	s := &simulation{setting: set, random: random, capture: c, start: start}
	s.handshake()
	for _, w := range set.writes {
		s.after(w.at, func() {
			s.send.written += int64(w.bytes)
			s.send.pushes = append(s.send.pushes, s.send.written)
			s.transmit()
		})
	}
	for _, stall := range set.readerStalls {
		s.after(stall.to, s.readOn)
	}
	if set.keepAlive > 0 {
		s.after(set.keepAlive, s.keepsAlive)
	}
	for n := 0; len(s.events) > 0; n++ {
		e := heap.Pop(&s.events).(event)
		s.now = e.at
		e.do()
		if n > 1_000_000 || s.now > int64(10*time.Minute) {
			t.Fatalf("%s: the transfer does not end: after %d events, at %v acknowledged %d of %d", set.name, n, time.Duration(s.now), s.send.una, s.send.written)
		}
	}
	slices.SortStableFunc(s.made, func(a, b *made) int { return int(a.at - b.at) })
	slices.SortStableFunc(c.records, func(a, b madeRecord) int { return a.at.Compare(b.at) })
	return s, c
}

// beforeCapture is the time of the way from an end to the capture.
func (s *simulation) beforeCapture(from int) int64 {
	part := int64(s.place * float64(s.trip/2))
	if from == server {
		return s.trip/2 - part
	}
	return part
}

func (s *simulation) clock() uint32 { return uint32(s.now/ms1) + 1 }

func (s *simulation) handshake() {
	options := func(echo uint32) (all []layers.TCPOption) {
		if s.mss > 0 {
			all = append(all, mssOption(uint16(s.mss)))
		}
		if s.sack {
			all = append(all, sackPermitted())
		}
		if s.timestamps {
			all = append(all, stampOption(s.clock(), echo))
		}
		if s.scale >= 0 {
			all = append(all, scaleOption(byte(s.scale)))
		}
		return all
	}
	window := uint16(min(s.buffer, 65535))
	capture := func(at int64, from int, flags string, seq, ack uint32, options []layers.TCPOption) {
		s.record(&made{at: at, from: from, seq: int64(seq), end: int64(seq), ack: int64(ack), syn: true, raw: window, window: int64(window)}, flags, options)
	}
	capture(s.beforeCapture(client), client, "S", 0, 0, options(0))
	s.now = s.trip / 2
	capture(s.now+s.beforeCapture(server), server, "SA", 0, 1, options(1))
	s.now = s.trip
	s.receive.echo, s.send.echo = 1, uint32(s.trip/2/ms1)+1
	s.send.una, s.send.nxt, s.send.written, s.send.edge = 1, 1, 1, 1+int64(window)
	s.receive.next, s.receive.read, s.receive.edge = 1, 1, 1+int64(window)
	s.record(&made{at: s.now + s.beforeCapture(client), from: client, seq: 1, end: 1, ack: 1, raw: 512}, "A", s.stamps(client))
}

func (s *simulation) stamps(from int) []layers.TCPOption {
	if !s.timestamps {
		return nil
	}
	if from == client {
		return []layers.TCPOption{stampOption(s.clock(), s.send.echo)}
	}
	return []layers.TCPOption{stampOption(s.clock(), s.receive.echo)}
}

// record captures a packet.
func (s *simulation) record(m *made, flags string, options []layers.TCPOption) {
	s.capture.add(seg{
		ms: float64(s.start+m.at) / 1e6, from: m.from, flags: flags, seq: uint32(m.seq), ack: uint32(m.ack), bytes: int(m.end - m.seq),
		window: m.raw, options: options,
	})
	s.made = append(s.made, m)
}

// put sends a data packet of the client over the path.
func (s *simulation) put(m *made) {
	flags := "A"
	if slices.Contains(s.send.pushes, m.end) {
		flags = "PA"
	}
	m.from, m.ack, m.raw = client, 1, 512
	s.send.lastSent = s.now
	stamp, options := s.clock(), s.stamps(client)
	before := s.beforeCapture(client)
	behind := s.trip/2 - before
	loss := s.loss
	if flags == "PA" && !m.again { // the last ones make tail probes
		loss *= 8
	}
	lost := m.end > m.seq && !m.probe && s.random.Float64() < loss
	captured := !lost || s.random.Float64() >= s.place
	if m.end > m.seq && !m.probe && !m.again && s.random.Float64() < s.late {
		extra := 300_000 + s.random.Int64N(min(s.trip/8, 2*ms1))
		if s.random.Float64() < s.place {
			before += extra
		} else {
			behind += extra
		}
	}
	copies := 1
	if !lost && m.end > m.seq && !m.probe && s.random.Float64() < s.doubled {
		copies = 2 // behind the capture
	}
	if captured {
		at := s.now + before
		s.after(before, func() {
			m.at = at
			s.record(m, flags, options)
		})
	}
	if lost {
		return
	}
	for range copies {
		s.after(before+behind, func() { s.arrive(m, stamp) })
	}
}

// has reports whether the receiver has all data of a range.
func (s *simulation) has(start, end int64) bool {
	r := &s.receive
	return end <= r.next || slices.ContainsFunc(r.later, func(b sackRange) bool { return b.start <= start && end <= b.end })
}

// transmit sends the next segment of new data if the windows allow, and then goes on.
func (s *simulation) transmit() {
	x := &s.send
	if n := s.allowed(); n > 0 {
		x.segs = append(x.segs, simulated{start: x.nxt, end: x.nxt + n})
		x.nxt += n
		s.put(&made{seq: x.nxt - n, end: x.nxt})
		x.tail = s.sack
		s.arm()
		// Packets do not leave at the same time.
		s.after(10_000+s.random.Int64N(50_000), s.transmit)
		return
	}
	if len(x.segs) == 0 && x.nxt < x.written && x.edge-x.nxt < 1 && !x.probing {
		x.probing = true
		x.probeWait = 300 * ms1
		s.after(x.probeWait, s.probe)
	}
}

// allowed is the size of the next segment; 0: none may be sent.
func (s *simulation) allowed() int64 {
	x := &s.send
	inFlight := 0
	for _, g := range x.segs {
		if !g.sacked {
			inFlight++
		}
	}
	n := min(int64(s.segment), x.written-x.nxt)
	if i := slices.IndexFunc(x.pushes, func(p int64) bool { return p > x.nxt }); i >= 0 {
		n = min(n, x.pushes[i]-x.nxt)
	}
	room := max(x.edge-x.nxt, 0)
	if inFlight >= s.cwnd || room < n && inFlight > 0 {
		return 0
	}
	return min(n, room)
}

// probe sends a zero window probe.
func (s *simulation) probe() {
	x := &s.send
	if x.edge > x.nxt || x.nxt >= x.written || len(x.segs) > 0 {
		x.probing = false
		s.transmit()
		return
	}
	if s.probeByte {
		s.put(&made{seq: x.nxt, end: x.nxt + 1, probe: true})
	} else {
		s.put(&made{seq: x.nxt - 1, end: x.nxt - 1, probe: true})
	}
	x.probeWait = min(2*x.probeWait, int64(5*time.Second))
	s.after(x.probeWait, s.probe)
}

// keepsAlive sends a keepalive after a silence.
func (s *simulation) keepsAlive() {
	x := &s.send
	if x.una == x.nxt && x.nxt == x.written && s.now-x.lastSent >= s.keepAlive {
		s.put(&made{seq: x.nxt - 1, end: x.nxt - 1, keepAlive: true, probe: true})
	}
	if s.now < s.writes[len(s.writes)-1].at {
		s.after(s.keepAlive, s.keepsAlive)
	}
}

// arm starts the retransmission timer.
func (s *simulation) arm() {
	x := &s.send
	x.timerRun++
	run := x.timerRun
	d := int64(time.Second) << min(x.backoff, 5)
	if x.tail && x.recover == 0 && x.sackedTo <= x.una {
		d = 2*s.trip + 2*ms1
	}
	if len(x.segs) == 0 {
		return
	}
	s.after(d, func() {
		if run == x.timerRun && len(x.segs) > 0 {
			s.expire()
		}
	})
}

// expire is the end of the retransmission timer.
func (s *simulation) expire() {
	x := &s.send
	if x.tail && x.recover == 0 {
		x.tail = false
		if x.sackedTo > x.una { // the usual timeout
			s.arm()
			return
		}
		last := &x.segs[len(x.segs)-1]
		last.again++
		s.put(&made{seq: last.start, end: last.end, again: true, why: tailProbe})
		s.arm()
		return
	}
	x.backoff++
	x.recover, x.why, x.duplicates = x.nxt, timeout, 0
	for i := range x.segs {
		x.segs[i].resent = false
	}
	s.resend(&x.segs[0])
	s.arm()
}

func (s *simulation) resend(g *simulated) {
	g.again++
	g.resent = true
	s.put(&made{seq: g.start, end: g.end, again: true, why: s.send.why})
}

// acknowledged processes an acknowledgement at the sender.
func (s *simulation) acknowledged(ack, edge int64, blocks []sackRange, stamp uint32) {
	x := &s.send
	x.echo = stamp
	moved := x.edge < edge
	x.edge = max(x.edge, edge)
	news := false
	for i := range x.segs {
		for _, b := range blocks {
			if g := &x.segs[i]; b.start <= g.start && g.end <= b.end && !g.sacked && b.end > ack {
				g.sacked, news = true, true
				x.sackedTo = max(x.sackedTo, g.end)
			}
		}
	}
	switch {
	case ack > x.una:
		for len(x.segs) > 0 && x.segs[0].end <= ack {
			x.segs = x.segs[1:]
		}
		x.una, x.nxt = ack, max(x.nxt, ack) // a probe's byte may be taken
		x.duplicates, x.backoff = 0, 0
		if x.una >= x.recover {
			x.recover = 0
		}
		s.arm()
	case ack == x.una && len(x.segs) > 0 && (news || !s.sack && !moved):
		x.duplicates++
	}
	switch {
	case x.recover == 0 && x.duplicates == 3:
		x.recover, x.why = x.nxt, fastRetransmit
		for i := range x.segs {
			x.segs[i].resent = false
		}
		s.resend(&x.segs[0])
		s.arm()
	case x.recover > 0:
		s.continueRecovery(ack)
	}
	s.transmit()
}

// continueRecovery sends the next lost segment again: what lies below a selective
// acknowledgement, the first after a partial one, or the rest after a timeout.
func (s *simulation) continueRecovery(ack int64) {
	x := &s.send
	i := slices.IndexFunc(x.segs, func(g simulated) bool { return !g.sacked && !g.resent && g.start < x.recover })
	if i < 0 {
		return
	}
	if g := &x.segs[i]; x.why == timeout || g.start == ack || s.sack && g.end < x.sackedTo-3*int64(s.segment) {
		s.resend(g)
		s.arm()
	}
}

// reading reports whether the receiver's program reads.
func (s *simulation) reading() bool {
	for _, stall := range s.readerStalls {
		if s.now >= stall.from && s.now < stall.to {
			return false
		}
	}
	return true
}

// readOn reads all that waits, and announces the window.
func (s *simulation) readOn() {
	if !s.reading() {
		return
	}
	if s.receive.read < s.receive.next {
		s.receive.read = s.receive.next
		s.acknowledge(nil)
	}
}

// arrive receives a data packet.
func (s *simulation) arrive(m *made, stamp uint32) {
	r := &s.receive
	m.needless = m.again && s.has(m.seq, m.end)
	if stamp > r.echo && m.seq <= r.next {
		r.echo = stamp
	}
	start, end := m.seq, min(m.end, r.edge)
	switch {
	case end <= start, m.keepAlive:
		s.acknowledge(nil)
		return
	case s.has(start, end):
		s.acknowledge(&sackRange{start, end})
		return
	case start > r.next:
		b := sackRange{start, end}
		r.later = slices.DeleteFunc(r.later, func(o sackRange) bool {
			if o.end < b.start || o.start > b.end {
				return false
			}
			b.start, b.end = min(b.start, o.start), max(b.end, o.end)
			return true
		})
		r.later = slices.Insert(r.later, 0, b)
		s.acknowledge(nil)
		return
	}
	filled := len(r.later) > 0
	r.next = end
	for again := true; again; {
		again = false
		r.later = slices.DeleteFunc(r.later, func(o sackRange) bool {
			if o.start > r.next {
				return false
			}
			r.next, again = max(r.next, o.end), true
			return true
		})
	}
	if s.reading() {
		r.read = r.next
	}
	r.waiting++
	if s.delayedACKs && !filled && r.waiting < 2 && s.reading() {
		run := r.run
		s.after(40*ms1, func() {
			if run == r.run && r.waiting > 0 {
				s.acknowledge(nil)
			}
		})
		return
	}
	s.acknowledge(nil)
}

// acknowledge sends an acknowledgement, with a report of a duplicate.
func (s *simulation) acknowledge(duplicate *sackRange) {
	r := &s.receive
	r.waiting = 0
	r.run++
	room := max(int64(s.buffer)-(r.next-r.read), 0)
	// A window opens by a segment at least (RFC 9293, section 3.8.6.2.2), and never
	// shrinks.
	if r.next+room < r.edge+min(int64(s.segment), int64(s.buffer)/2) {
		room = r.edge - r.next
	}
	shift := max(s.scale, 0)
	raw := min(room>>shift, 65535)
	window := raw << shift
	r.edge = max(r.edge, r.next+window)
	m := &made{from: server, seq: 1, end: 1, ack: r.next, window: window, raw: uint16(raw)}
	options := s.stamps(server)
	var blocks []sackRange
	if s.sack {
		if duplicate != nil {
			blocks = append(blocks, *duplicate)
		}
		blocks = append(blocks, r.later...)
		blocks = blocks[:min(len(blocks), 3)]
		var edges []uint32
		for _, b := range blocks {
			edges = append(edges, uint32(b.start), uint32(b.end))
		}
		if len(edges) > 0 {
			options = append(options, s.capture.sackOption(server, edges...))
		}
	}
	stamp := s.clock()
	edge := r.next + window
	if duplicate != nil && len(blocks) > 0 {
		blocks = blocks[1:]
	}
	before := s.beforeCapture(server)
	m.at = s.now + before
	s.after(before, func() { s.record(m, "A", options) })
	s.after(s.trip/2, func() { s.acknowledged(m.ack, edge, blocks, stamp) })
}
