package monitor

import (
	"maps"
	"math"
	"math/bits"
	"slices"
)

// rtts counts the round-trip times of flows that exist, in microseconds, by buckets of which 64 are an octave.
// So a quantile is within 1.6 %, and exact where all values of a bucket are the same.
type rtts map[uint16]rttBucket

type rttBucket struct {
	flows int
	sum   uint64 // microseconds
}

// bucketOfRTT is in the order of the values.
func bucketOfRTT(us uint32) uint16 {
	const fine = 6 // bits behind the first one
	octave := max(bits.Len32(us)-1-fine, 0)
	return uint16(octave<<fine) + uint16(us>>octave)
}

// add counts a value, or with -1 for flows takes it out again. 0 is unknown.
func (r rtts) add(us uint32, flows int) {
	if us == 0 {
		return
	}
	key := bucketOfRTT(us)
	b := r[key]
	b.flows += flows
	b.sum += uint64(int64(flows) * int64(us))
	if r[key] = b; b.flows == 0 {
		delete(r, key)
	}
}

// quantiles returns some of them, in the order asked; zeros of no value.
func (r rtts) quantiles(q ...float64) []uint32 {
	out, all := make([]uint32, len(q)), 0
	for _, b := range r {
		all += b.flows
	}
	keys, seen, i := slices.Sorted(maps.Keys(r)), 0, 0
	for _, key := range keys {
		b := r[key]
		for seen += b.flows; i < len(q) && int(math.Round(q[i]*float64(all-1))) < seen; i++ {
			out[i] = uint32(b.sum / uint64(b.flows))
		}
	}
	return out
}
