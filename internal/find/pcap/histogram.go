package pcap

import "math/bits"

// histogram has the distribution of positive values, whose quantiles are right within
// a sixtieth. Its size is bounded, however many values it has.
type histogram struct {
	first    int      // number of the first of the buckets, which begins a power of two
	buckets  []uint32 // 32 for each power of two
	total    int64
	min, max int64
}

const bucketBits = 5

// add adds a value.
func (h *histogram) add(v int64) {
	v = max(v, 0)
	if h.total == 0 {
		h.min, h.max = v, v
	}
	h.total++
	h.min, h.max = min(h.min, v), max(h.max, v)
	i := bucket(v)
	first := i &^ (1<<bucketBits - 1)
	if len(h.buckets) == 0 {
		h.first = first
	}
	if first < h.first {
		h.buckets = append(make([]uint32, h.first-first), h.buckets...)
		h.first = first
	}
	if i -= h.first; i >= len(h.buckets) {
		h.buckets = append(h.buckets, make([]uint32, i+1-len(h.buckets))...)
	}
	h.buckets[i]++
}

// bucket is the index of a value's bucket: its highest bits and their position.
func bucket(v int64) int {
	shift := max(0, bits.Len64(uint64(v))-bucketBits-1)
	return shift<<bucketBits + int(v>>shift)
}

// middle is the value in the middle of a bucket.
func middle(i int) int64 {
	if i < 2<<bucketBits {
		return int64(i)
	}
	shift := i>>bucketBits - 1
	return int64(i-shift<<bucketBits)<<shift + int64(1)<<shift/2
}

// quantile returns a quantile; 0 without values.
func (h *histogram) quantile(q float64) int64 {
	if h.total == 0 {
		return 0
	}
	rank := int64(q * float64(h.total-1))
	for i, n := range h.buckets {
		if rank -= int64(n); rank < 0 {
			return min(max(middle(h.first+i), h.min), h.max)
		}
	}
	return h.max
}
