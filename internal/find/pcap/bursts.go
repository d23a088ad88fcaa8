package pcap

import (
	"slices"
	"time"

	"longhaul/internal/words/stats"
)

const (
	// burstSegments is the number of segments whose acknowledgements show a rate.
	burstSegments = 8
	// burstSpread is the minimum of acknowledgements' spread ÷ the segments'. Less
	// shows the sender's own rate, and not that of the path.
	burstSpread = 1.5
	// minSpread is the minimum spread: acknowledgements that a device delivers
	// together show no rate.
	minSpread = int64(200 * time.Microsecond)
	// burstEvenness is the maximum time of an acknowledgement ÷ the usual one for as
	// much data. A link spreads segments evenly; a pause of the sender does not.
	burstEvenness = 2.5
	// maxBurstAcks bounds the acknowledgements of a burst. Smaller segments show no rate,
	// and each acknowledgement is compared with all.
	maxBurstAcks = 8 * burstSegments
	// minBursts is the minimum number of bursts that show a rate together, and
	// maxBursts bounds those kept.
	minBursts, maxBursts = 2, 1000
)

// bursts measures the rate at which bursts of an end's segments cross the path. The
// path's slowest link spreads segments that were sent faster, and their
// acknowledgements keep that spread (packet train dispersion).
type bursts struct {
	// The acknowledgements since the last burst, oldest first.
	acks  []burstAck
	rates []float64 // bits per second
	// steady are the rates of segments that came about as fast as they were sent.
	// The path carries at least that.
	steady  []float64
	carried sustained
}

// sustained finds the most bytes that were acknowledged within a span of time. A device
// that hands over packets together makes short bursts faster than the path.
type sustained struct {
	bytes [sustainedParts]int64 // acknowledged in each of the latest parts of the span
	part  int64                 // the latest
	at    int64                 // of the latest acknowledgement
	end   int64                 // what it acknowledges; 0: none
	most  int64
}

const (
	sustainedSpan  = 10 * time.Millisecond
	sustainedParts = 10
)

func (s *sustained) acknowledged(at, end int64) {
	part := at / (int64(sustainedSpan) / sustainedParts)
	for k := max(s.part+1, part-sustainedParts+1); k <= part; k++ {
		s.bytes[k%sustainedParts] = 0
	}
	s.part = part
	if s.end > 0 {
		// One acknowledgement of much data says nothing of when it arrived since the last.
		waited := max(at-s.at, int64(sustainedSpan))
		s.bytes[part%sustainedParts] += int64(float64(end-s.end) * float64(sustainedSpan) / float64(waited))
	}
	s.at, s.end = at, end
	// Segments that arrive together at both ends of the span would count once too often.
	var sum, together int64
	for _, n := range s.bytes {
		sum, together = sum+n, max(together, n)
	}
	s.most = max(s.most, (sum-together)*sustainedParts/(sustainedParts-1))
}

// bps is the rate of the span with the most bytes.
func (s *sustained) bps() float64 { return float64(s.most) * 8 / sustainedSpan.Seconds() }

// burstAck is an acknowledgement, with the time at which its last segment was sent.
type burstAck struct{ at, end, sent int64 }

// acknowledged processes an acknowledgement of data that was sent once and in order.
func (b *bursts) acknowledged(ack burstAck, segment int64) {
	b.carried.acknowledged(ack.at, ack.end)
	if len(b.rates) >= maxBursts {
		return
	}
	b.acks = append(b.acks, ack)
	first := b.acks[0]
	bytes := ack.end - first.end
	if bytes < burstSegments*segment {
		if len(b.acks) >= maxBurstAcks {
			b.acks = append(b.acks[:0], ack)
		}
		return
	}
	spread, sent := ack.at-first.at, ack.sent-first.sent
	if spread >= minSpread && b.isEven(bytes, spread) {
		rate := float64(bytes) * 8e9 / float64(spread)
		if float64(spread) >= burstSpread*float64(sent) {
			b.rates = append(b.rates, rate)
			b.acks = append(b.acks[:0], ack)
			return
		}
		if len(b.steady) < maxBursts {
			b.steady = append(b.steady, rate)
		}
	}
	// The burst may begin later.
	b.acks = slices.Delete(b.acks, 0, 1)
}

// isEven reports whether no acknowledgement came long after the one before, for the
// data that it acknowledges.
func (b *bursts) isEven(bytes, spread int64) bool {
	for k := 1; k < len(b.acks); k++ {
		usual := float64(spread) * float64(b.acks[k].end-b.acks[k-1].end) / float64(bytes)
		if float64(b.acks[k].at-b.acks[k-1].at) > burstEvenness*usual {
			return false
		}
	}
	return true
}

// interrupted forgets the acknowledgements: a loss delays those that follow.
func (b *bursts) interrupted() {
	b.acks = b.acks[:0]
	b.carried.end = 0
}

// burstQuantile is above the median: a short pause within a burst lowers its rate, and
// little raises one.
const burstQuantile = 0.7

// rate returns the usual rate of the bursts, and their number; 0 if they are few.
func (b *bursts) rate() (bps float64, count int) {
	if len(b.rates) < minBursts {
		return 0, len(b.rates)
	}
	bps = stats.At(slices.Sorted(slices.Values(b.rates)), burstQuantile)
	if len(b.steady) >= minSteady {
		bps = max(bps, stats.At(slices.Sorted(slices.Values(b.steady)), 0.5))
	}
	bps = min(bps, b.carried.bps())
	return bps, len(b.rates)
}

// minSteady is the minimum number of windows that show a steady rate.
const minSteady = 20
