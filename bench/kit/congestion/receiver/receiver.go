// Package receiver is a TCP receiver in user space that may misbehave: it divides
// acknowledgements, conceals losses, acknowledges data before they arrive, or conceals
// marks of congestion (S. Savage et al., "TCP congestion control with a misbehaving
// receiver", CCR 29(5), 1999; RFC 3168, section 18). It takes and returns IPv4 packets,
// and drops the data.
package receiver

import (
	"slices"
	"time"
)

// Behaviour is what a receiver does. The zero value is no receiver of this package.
type Behaviour uint8

// The behaviours.
const (
	Honest Behaviour = iota + 1
	// DividesACKs acknowledges each segment in many parts.
	DividesACKs
	// ConcealsLoss acknowledges whatever is missing.
	ConcealsLoss
	// Optimistic also acknowledges data that are still under way.
	Optimistic
	// ConcealsMarks never reports a mark of congestion (ECN).
	ConcealsMarks
)

func (b Behaviour) String() string {
	switch b {
	case DividesACKs:
		return "divides each ACK"
	case ConcealsLoss:
		return "conceals losses"
	case Optimistic:
		return "acknowledges data under way"
	case ConcealsMarks:
		return "conceals marks"
	}
	return "is honest"
}

const (
	divisions = 10 // ACKs for each segment of DividesACKs
	// optimisticLead is how long before its arrival Optimistic acknowledges data. The
	// sender must have sent them: it drops an ACK of later data.
	optimisticLead = 10 * time.Millisecond
	rateOver       = 100 * time.Millisecond // for the lead in bytes

	windowScale = 10
	window      = 65535 // × 2^windowScale
	mss         = 1460
	firstSeq    = 1000 // of the receiver's own, which sends no data
)

// Receiver is the receiver's end of one connection at a time. A SYN begins anew.
type Receiver struct {
	does Behaviour

	local, peer endpoint
	firstByte   uint32 // sequence number of the first byte of data
	open        bool
	sack, ecn   bool
	seenCE      bool // and not yet answered by CWR

	// Offsets of data from the first byte.
	next    int64  // all before it have arrived, or count as arrived
	highest int64  // end of the highest segment
	gaps    []span // arrived beyond next, ascending
	unacked int    // segments in order since the last ACK

	rateFrom  time.Time
	rateBytes int64
	perSecond float64

	received int64
}

type endpoint struct {
	address [4]byte
	port    uint16
}

type span struct{ from, to int64 }

// New returns a receiver without a connection.
func New(does Behaviour) *Receiver { return &Receiver{does: does} }

// Received returns the bytes of data that have arrived, repetitions included.
func (r *Receiver) Received() int64 { return r.received }

// Handle takes a packet, and returns the packets to send.
func (r *Receiver) Handle(packet []byte, now time.Time) [][]byte {
	s, ok := parse(packet)
	switch {
	case !ok:
		return nil
	case s.flags&flagRST != 0:
		r.open = false
		return nil
	case s.flags&flagSYN != 0:
		return [][]byte{r.accept(s, now)}
	case !r.open || s.from != r.peer || s.to != r.local || len(s.data) == 0:
		return nil
	}
	if s.flags&flagCWR != 0 {
		r.seenCE = false
	}
	if s.isCE {
		r.seenCE = true
	}
	r.received += int64(len(s.data))
	r.countRate(int64(len(s.data)), now)
	// The offset nearest to the next byte: sequence numbers wrap.
	from := r.next + int64(int32(s.seq-r.firstByte-uint32(r.next)))
	return r.data(span{from, from + int64(len(s.data))})
}

// accept answers a SYN.
func (r *Receiver) accept(s segment, now time.Time) []byte {
	*r = Receiver{does: r.does, received: r.received, local: s.to, peer: s.from, firstByte: s.seq + 1, open: true, sack: s.sackPermitted, rateFrom: now}
	flags := byte(flagSYN | flagACK)
	if s.flags&(flagECE|flagCWR) == flagECE|flagCWR {
		r.ecn, flags = true, flags|flagECE
	}
	return build(r.local, r.peer, firstSeq, r.firstByte, flags, synOptions(r.sack))
}

func (r *Receiver) countRate(bytes int64, now time.Time) {
	r.rateBytes += bytes
	if took := now.Sub(r.rateFrom); took >= rateOver {
		r.perSecond = float64(r.rateBytes) / took.Seconds()
		r.rateFrom, r.rateBytes = now, 0
	}
}

// data takes a segment, and returns the ACKs for it.
func (r *Receiver) data(arrived span) [][]byte {
	before, wasNew := r.next, arrived.to > r.highest
	r.highest = max(r.highest, arrived.to)
	if r.does == ConcealsLoss || r.does == Optimistic {
		r.next = r.highest
		ack := r.next
		if r.does == Optimistic && wasNew {
			ack += int64(r.perSecond * optimisticLead.Seconds())
		}
		return [][]byte{r.ack(ack, nil)}
	}
	hadGaps := len(r.gaps) > 0
	r.insert(arrived)
	if r.does == DividesACKs && r.next > before {
		var acks [][]byte
		for i := int64(1); i <= divisions; i++ {
			acks = append(acks, r.ack(before+(r.next-before)*i/divisions, r.blocks(arrived)))
		}
		return acks
	}
	// A delayed ACK for every second segment, and at once for anything unusual (RFC
	// 5681, section 4.2).
	if r.unacked++; r.unacked < 2 && !hadGaps && len(r.gaps) == 0 && arrived.from == before && !r.seenCE {
		return nil
	}
	return [][]byte{r.ack(r.next, r.blocks(arrived))}
}

// insert notes data that arrived.
func (r *Receiver) insert(s span) {
	if s.to <= r.next {
		return
	}
	r.gaps = append(r.gaps, s)
	slices.SortFunc(r.gaps, func(a, b span) int { return int(a.from - b.from) })
	merged := r.gaps[:0]
	for _, g := range r.gaps {
		if last := len(merged) - 1; last >= 0 && g.from <= merged[last].to {
			merged[last].to = max(merged[last].to, g.to)
		} else {
			merged = append(merged, g)
		}
	}
	r.gaps = merged
	if r.gaps[0].from <= r.next {
		r.next = r.gaps[0].to
		r.gaps = r.gaps[1:]
	}
}

// blocks returns the SACK blocks: first that of the latest segment (RFC 2018, section 4).
func (r *Receiver) blocks(latest span) []span {
	if !r.sack {
		return nil
	}
	const most = 4
	var blocks []span
	for _, g := range r.gaps {
		if g.from <= latest.from && latest.to <= g.to {
			blocks = append(blocks, g)
		}
	}
	for i := len(r.gaps) - 1; i >= 0 && len(blocks) < most; i-- {
		if !slices.Contains(blocks, r.gaps[i]) {
			blocks = append(blocks, r.gaps[i])
		}
	}
	return blocks
}

// ack returns an ACK of all data before an offset.
func (r *Receiver) ack(to int64, blocks []span) []byte {
	r.unacked = 0
	flags := byte(flagACK)
	if r.ecn && r.seenCE && r.does != ConcealsMarks {
		flags |= flagECE
	}
	return build(r.local, r.peer, firstSeq+1, r.firstByte+uint32(to), flags, sackOption(r.firstByte, blocks))
}
