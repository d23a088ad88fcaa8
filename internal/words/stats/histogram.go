package stats

import (
	"math"
	"slices"
)

// The buckets of a Histogram are those of schema 4 of Prometheus' native histograms: 16 to an octave, so a
// bucket is 4.4 % wide, and no quantile is further off. Values outside of the octaves count at the ends.
const (
	HistogramSchema = 4
	perOctave       = 1 << HistogramSchema
	leastOctave     = -16 // 15 µs, or 15 µB/s
	octavesTop      = 40  // 1 TB/s, or 35 000 years

	// HistogramZero is the upper bound of the bucket of the least values.
	HistogramZero = 1. / (1 << -leastOctave)
	// MaxHistogramBuckets bounds the memory of a Histogram: 8 bytes each.
	MaxHistogramBuckets = (octavesTop - leastOctave) * perOctave
)

// Histogram counts values in buckets that are the same in every process, so that sums of histograms are those
// of all values.
type Histogram struct {
	Count uint64
	Sum   float64
	Zero  uint64 // values up to HistogramZero
	// Buckets i counts values above Bound(First+i-1) up to Bound(First+i).
	First   int
	Buckets []uint64
}

// octave has the bounds of an octave's buckets, from 0.5.
var octave = func() (bounds [perOctave]float64) {
	for i := range bounds {
		bounds[i] = math.Exp2(float64(i)/perOctave - 1)
	}
	return bounds
}()

// Bound is the upper bound of a bucket.
func Bound(bucket int) float64 { return math.Exp2(float64(bucket) / perOctave) }

// bucketOf is the bucket of a value above 0.
func bucketOf(v float64) int {
	if math.IsInf(v, 1) {
		return octavesTop * perOctave
	}
	fraction, exponent := math.Frexp(v)
	i, _ := slices.BinarySearch(octave[:], fraction)
	return min((exponent-1)*perOctave+i, octavesTop*perOctave)
}

// Observe counts a value. It ignores NaN and what is negative.
func (h *Histogram) Observe(v float64) {
	if !(v >= 0) {
		return
	}
	h.Count++
	h.Sum += v
	if v <= HistogramZero {
		h.Zero++
		return
	}
	h.Buckets[h.room(bucketOf(v))]++
}

// room returns the index of a bucket in Buckets, which it extends.
func (h *Histogram) room(bucket int) int {
	if len(h.Buckets) == 0 {
		h.First = bucket
	}
	if before := h.First - bucket; before > 0 {
		h.Buckets = slices.Insert(h.Buckets, 0, make([]uint64, before)...)
		h.First = bucket
	}
	if more := bucket - h.First + 1 - len(h.Buckets); more > 0 {
		h.Buckets = append(h.Buckets, make([]uint64, more)...)
	}
	return bucket - h.First
}

// Add adds the values of another histogram.
func (h *Histogram) Add(o *Histogram) {
	h.Count, h.Sum, h.Zero = h.Count+o.Count, h.Sum+o.Sum, h.Zero+o.Zero
	for i, n := range o.Buckets {
		if n > 0 {
			h.Buckets[h.room(o.First+i)] += n
		}
	}
}

// Clone returns a copy.
func (h *Histogram) Clone() *Histogram {
	c := *h
	c.Buckets = slices.Clone(h.Buckets)
	return &c
}
