package main

import (
	"math/bits"
	"time"
)

// histogram counts durations in buckets whose width is 1/64 of their value or
// less, so a quantile is right to 1.6 %.
type histogram struct {
	count   int64
	buckets [64 * 64]int64
}

const subBits = 6

func bucket(ns uint64) int {
	if ns < 1<<subBits {
		return int(ns)
	}
	shift := bits.Len64(ns) - 1 - subBits
	return (shift+1)<<subBits + int(ns>>shift) - 1<<subBits
}

// lowest is the smallest value of a bucket.
func lowest(b int) uint64 {
	if b < 1<<subBits {
		return uint64(b)
	}
	shift := b>>subBits - 1
	return uint64(b&(1<<subBits-1)+1<<subBits) << shift
}

func (h *histogram) add(d time.Duration) {
	h.count++
	h.buckets[bucket(uint64(max(d, 0)))]++
}

// quantile returns the value that a share q of the durations do not exceed, 0
// where there are none.
func (h *histogram) quantile(q float64) time.Duration {
	rank := int64(q * float64(h.count))
	for b, n := range h.buckets {
		if rank < n {
			return time.Duration(lowest(b))
		}
		rank -= n
	}
	return 0
}
