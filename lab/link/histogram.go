package link

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// histogram counts durations in log-linear buckets: 32 per power of two, so a
// bucket is at most 1/32 of its value wide. One goroutine adds; any may read at
// the same time.
type histogram struct {
	buckets [(maxExponent - subBits + 1) << subBits]atomic.Uint64
	max     atomic.Int64
}

const (
	subBits     = 5
	maxExponent = 44 // 2^44 ns is nearly 5 hours; longer durations are clamped
)

func bucketOf(ns int64) int {
	v := uint64(min(max(ns, 0), 1<<maxExponent-1))
	if v < 1<<subBits {
		return int(v)
	}
	shift := bits.Len64(v) - subBits - 1
	return (shift+1)<<subBits + int(v>>shift) - 1<<subBits
}

// bucketTop is the largest duration that counts in bucket i.
func bucketTop(i int) int64 {
	if i < 1<<subBits {
		return int64(i)
	}
	shift := i>>subBits - 1
	return int64(i&(1<<subBits-1)+1<<subBits+1)<<shift - 1
}

func (h *histogram) add(ns int64) {
	h.buckets[bucketOf(ns)].Add(1)
	if ns > h.max.Load() {
		h.max.Store(ns)
	}
}

// quantiles returns for every q of the ascending qs the lowest bucket top that
// at least that share of durations does not exceed.
func (h *histogram) quantiles(qs ...float64) []time.Duration {
	var counts [len(h.buckets)]uint64
	var total uint64
	for i := range h.buckets {
		counts[i] = h.buckets[i].Load()
		total += counts[i]
	}
	out := make([]time.Duration, len(qs))
	if total == 0 {
		return out
	}
	var seen uint64
	bucket := -1
	for i, q := range qs {
		for float64(seen) < q*float64(total) || bucket < 0 {
			bucket++
			seen += counts[bucket]
		}
		out[i] = time.Duration(min(bucketTop(bucket), h.max.Load()))
	}
	return out
}
