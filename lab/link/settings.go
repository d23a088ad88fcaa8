// Package link emulates a point-to-point link in user space. Real packets of
// the kernel's own TCP enter on one side and leave on the other. Between them
// are the configured delay, rate, loss and queue. Every packet is accounted
// for, and the same seed loses the same packets.
package link

import (
	"math"
	"time"
)

// Settings configure one direction of a link. The zero value is a perfect link:
// no delay, no bound on the rate, no loss.
type Settings struct {
	Delay  time.Duration // propagation delay, one way
	Jitter time.Duration // uniform ±Jitter added per packet, so packets may overtake

	// RateBps is the bottleneck's rate in bits per second, counting whole IP
	// packets; 0 means unlimited.
	RateBps int64

	// Trace is the bottleneck's rate over time in place of RateBps. Its delays, if
	// it has some, replace Delay, which then should be their mean. Its losses are in
	// addition to Loss, at the same place. It begins with the link, or when Set
	// changes it.
	Trace *Trace

	// ATM makes the bottleneck carry packets in cells: 48 bytes of payload take
	// 53 bytes of the rate (see CarriesBps).
	ATM bool
	// PacketsPerSecond bounds the bottleneck's packet rate, like a host whose
	// CPU needs the same time for a packet of any size; 0 means unlimited. It
	// needs RateBps.
	PacketsPerSecond int64

	Loss      Loss
	LossPlace LossPlace
	RateLoss  RateLoss // before the bottleneck, in addition to Loss

	// QueueBytes bounds the bottleneck's queue; 0 means QueueBDP applies.
	QueueBytes int
	// QueueBDP bounds the queue in bandwidth-delay products of RateBps and the
	// RTT (the sum of both directions' Delay). 0 with QueueBytes 0 means one
	// BDP, at least 64 full packets.
	QueueBDP float64

	// AQM drops packets of the bottleneck's queue in addition to those that do
	// not fit. It needs a bottleneck.
	AQM AQM
	// MarkAbove marks every packet of an ECN-capable transport that has waited in
	// the bottleneck's queue at least this long, as shallow queues for DCTCP (RFC
	// 8257) and L4S (RFC 9331) do; 0 marks none. It needs a bottleneck.
	MarkAbove time.Duration

	// MTU is the largest IP packet that passes; larger ones are dropped and
	// counted. 0 means 1500.
	MTU int

	Reorder Reorder

	Policer Policer

	// ACKThinning passes one of so many pure acknowledgements of a flow, the latest,
	// and holds each back for 5 ms at most; 0 and 1 pass all.
	ACKThinning int

	Aggregate Aggregation

	// Alter is the share of TCP segments of which a bit of the payload changes on the
	// way, in [0, 1]. No checksum shows it, as when a device on the path makes it anew.
	Alter float64

	// Down is an outage: every arriving packet is dropped and counted.
	Down bool

	// Seed makes the random choices repeatable: the same seed drops the same
	// packet numbers.
	Seed uint64
}

// Loss is random loss: Bernoulli if only Probability is set, and the
// Gilbert-Elliott model if ToBad is.
//
// In the Gilbert-Elliott model (E. N. Elliott, "Estimates of error rates for
// codes on burst-noise channels", BSTJ 1963) a two-state Markov chain makes
// one step per packet: good to bad with probability ToBad, bad to good with
// ToGood. A packet is lost with Probability in the good state and with
// BadProbability in the bad one.
type Loss struct {
	Probability    float64 // in [0, 1]
	ToBad          float64 // in [0, 1]
	ToGood         float64 // in (0, 1] where ToBad is set
	BadProbability float64 // in [0, 1]
}

// LossPlace is the side of the bottleneck on which packets are lost.
type LossPlace uint8

// The places of loss. A packet lost before the bottleneck takes none of its
// capacity; one lost after it has used its share.
const (
	LossBefore LossPlace = iota
	LossAfter
)

func (p LossPlace) String() string {
	if p == LossAfter {
		return "after"
	}
	return "before"
}

// Reorder holds back a share of the packets, so that later ones overtake them.
type Reorder struct {
	Probability float64       // share of packets held back, in [0, 1]
	Hold        time.Duration // additional delay
}

// Policer drops packets above a rate, before the bottleneck and without a
// queue. It is a token bucket, as access networks use to enforce a customer's
// rate. The zero value passes everything.
type Policer struct {
	RateBps    int64 // bits per second of whole IP packets
	BurstBytes int   // depth of the bucket: the burst that passes after a pause
	PerFlow    bool  // a bucket for each flow of addresses, protocol and ports
}

// Counters counts the packets of one direction since the link began. Every
// packet is accounted for: PacketsIn = PacketsDelivered + Lost + Thinned + Policed +
// QueueDrops + AQMDrops + TooBig + Outage + WriteErrors + InFlight. A super-packet of
// segmentation offload counts as its packets on the wire.
type Counters struct {
	PacketsIn, BytesIn               uint64
	PacketsDelivered, BytesDelivered uint64
	Lost                             uint64 // by the loss models
	Thinned                          uint64 // acknowledgements that a later one replaced
	Policed                          uint64 // exceeded the policer's rate
	QueueDrops                       uint64 // the queue was full
	AQMDrops                         uint64 // by the queue's AQM
	Marked                           uint64 // delivered or on the way with CE that the link set
	TooBig                           uint64 // larger than the MTU
	Outage                           uint64 // the link was down
	Reordered                        uint64 // held back by Reorder
	Altered                          uint64 // with a changed bit, by Alter
	DeviceDrops                      uint64 // lost between the kernel and the emulator; should be zero
	WriteErrors                      uint64 // the receiving kernel refused the packet
	InFlight                         uint64 // packets in the queue and on the delay line now
	QueuedBytes                      int    // in the bottleneck's queue now

	// Waiting time for the bottleneck without the own transmission; upper
	// bounds of buckets 3 % wide. Zero without a bottleneck.
	QueueDelayP50, QueueDelayP95, QueueDelayP99, QueueDelayMax time.Duration
}

// The sizes of ATM (RFC 2684, section 5.1: LLC encapsulation in AAL5).
const (
	cellBytes        = 53
	cellPayloadBytes = 48
	atmTrailerBytes  = 8 + 8 // of AAL5 and LLC/SNAP, padded to whole cells
)

// MeanBps is the bottleneck's mean rate in bits per second; 0 means unlimited.
func (s Settings) MeanBps() int64 {
	if s.Trace != nil {
		return s.Trace.MeanBps()
	}
	return s.RateBps
}

// bounded reports whether there is a bottleneck.
func (s *Settings) bounded() bool { return s.RateBps > 0 || s.Trace != nil }

// CarriesBps is the bottleneck's rate for packets of a size, in bits per second
// of whole IP packets; +Inf without a bound.
func (s Settings) CarriesBps(packet int) float64 {
	carries := math.Inf(1)
	if rate := s.MeanBps(); rate > 0 {
		carries = float64(rate) * float64(packet) / float64(s.wireBytes(packet))
	}
	if s.PacketsPerSecond > 0 {
		carries = min(carries, float64(s.PacketsPerSecond)*float64(packet)*8)
	}
	return carries
}

// wireBytes is the number of bytes of the bottleneck's rate that a packet uses.
func (s Settings) wireBytes(packet int) int {
	if !s.ATM {
		return packet
	}
	return (packet + atmTrailerBytes + cellPayloadBytes - 1) / cellPayloadBytes * cellBytes
}

// Share is the long-term share of packets that the model loses.
func (l Loss) Share() float64 {
	bad := l.badShare()
	return (1-bad)*l.Probability + bad*l.BadProbability
}

// Sigma is the standard deviation of the share lost of n packets. States of the
// Gilbert-Elliott chain k packets apart have the correlation
// (1-ToBad-ToGood)^k; Sigma sums over all k.
func (l Loss) Sigma(n int) float64 {
	p := l.Share()
	variance := p * (1 - p)
	if l.ToBad > 0 {
		bad, memory := l.badShare(), 1-l.ToBad-l.ToGood
		contrast := l.BadProbability - l.Probability
		variance += 2 * bad * (1 - bad) * contrast * contrast * memory / (1 - memory)
	}
	return math.Sqrt(max(variance, 0) / float64(n))
}

func (l Loss) badShare() float64 {
	if l.ToBad == 0 {
		return 0
	}
	return l.ToBad / (l.ToBad + l.ToGood)
}
