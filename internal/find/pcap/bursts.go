package pcap

import (
	"math"
	"slices"
	"time"
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
	steady []float64
}

// burstAck is an acknowledgement, with the time at which its last segment was sent.
type burstAck struct{ at, end, sent int64 }

// acknowledged processes an acknowledgement of data that was sent once and in order.
func (b *bursts) acknowledged(ack burstAck, segment int64) {
	if len(b.rates) >= maxBursts {
		return
	}
	b.acks = append(b.acks, ack)
	first := b.acks[0]
	bytes := ack.end - first.end
	if bytes < burstSegments*segment {
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
func (b *bursts) interrupted() { b.acks = b.acks[:0] }

// burstQuantile is above the median: a short pause within a burst lowers its rate, and
// little raises one.
const burstQuantile = 0.7

// rate returns the usual rate of the bursts, and their number; 0 if they are few.
func (b *bursts) rate() (bps float64, count int) {
	if len(b.rates) < minBursts {
		return 0, len(b.rates)
	}
	bps = quantile(b.rates, burstQuantile)
	if len(b.steady) >= minSteady {
		bps = max(bps, quantile(b.steady, 0.5))
	}
	return bps, len(b.rates)
}

// minSteady is the minimum number of windows that show a steady rate.
const minSteady = 20

func quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(math.Round(q*float64(len(sorted)-1)))]
}
