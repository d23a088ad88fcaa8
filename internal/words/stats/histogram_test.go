package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Every value is within the bounds of its bucket, also next to a bound; each bucket is 4.4 % wide.
func TestHistogramBuckets(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	values := []float64{1, 2, 0.5, 3, 1e9, math.Nextafter(1, 2), math.Nextafter(1, 0), math.Nextafter(HistogramZero, 1)}
	for range 10000 {
		values = append(values, math.Exp2(random.Float64()*55-15.9))
	}
	for _, v := range values {
		b := bucketOf(v)
		// Exp2 rounds: a bound may be off by the last bits.
		if lo, hi := Bound(b-1)*(1-1e-15), Bound(b)*(1+1e-15); v <= lo || v > hi {
			t.Errorf("%v is in bucket %d, from %v to %v", v, b, lo, hi)
		}
	}
	if b := bucketOf(1); b != 0 {
		t.Errorf("1 is in bucket %d, and is the upper bound of bucket 0", b)
	}
	if width := Bound(1) / Bound(0); width > 1.045 {
		t.Errorf("a bucket is wider than 4.5 %%: %v", width)
	}
}

// Whatever is observed, the histogram has a bound, counts all, and ignores what is no value.
func TestHistogramIsBounded(t *testing.T) {
	var h Histogram
	for _, v := range []float64{0, HistogramZero, 1e-300, math.MaxFloat64, math.Inf(1), 1e-3, 1} {
		h.Observe(v)
	}
	h.Observe(math.NaN())
	h.Observe(-1)
	sum := h.Zero
	for _, n := range h.Buckets {
		sum += n
	}
	if h.Count != 7 || sum != h.Count || h.Zero != 3 {
		t.Errorf("%d values counted, %d of them in buckets, %d in that of zero", h.Count, sum, h.Zero)
	}
	h.Observe(math.Nextafter(HistogramZero, 1))
	if len(h.Buckets) > MaxHistogramBuckets {
		t.Errorf("%d buckets, more than %d", len(h.Buckets), MaxHistogramBuckets)
	}
}

// The sum of histograms is the histogram of all values, in whatever order they are added.
func TestHistogramsAdd(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	var all, forth, back Histogram
	parts := make([]Histogram, 20)
	for i := range parts {
		for range 100 {
			v := math.Exp(random.NormFloat64()*3 + float64(i))
			all.Observe(v)
			parts[i].Observe(v)
		}
	}
	for i := range parts {
		forth.Add(&parts[i])
		back.Add(&parts[len(parts)-1-i])
	}
	for _, sum := range []*Histogram{&forth, &back} {
		if sum.Count != all.Count || sum.Zero != all.Zero || sum.First != all.First || !slices.Equal(sum.Buckets, all.Buckets) || math.Abs(sum.Sum-all.Sum) > 1e-9*all.Sum {
			t.Errorf("the sum has %d values from bucket %d: %v, want %d from %d: %v", sum.Count, sum.First, sum.Buckets, all.Count, all.First, all.Buckets)
		}
	}
	c := all.Clone()
	c.Observe(1)
	if all.Count == c.Count || slices.Equal(all.Buckets, c.Buckets) {
		t.Error("a clone shares its buckets")
	}
}

func BenchmarkHistogram(b *testing.B) {
	var h Histogram
	for i := range b.N {
		h.Observe(float64(i%1000) + 0.5)
	}
}

// The quantile of merged histograms is in the bucket that has that of all values, so it is within 4.4 % of it.
func TestQuantilesOfMergedHistograms(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	var merged Histogram
	var all []float64
	for i := range 50 {
		var one Histogram
		for range 200 {
			v := math.Exp(random.NormFloat64() + float64(i)/10)
			one.Observe(v)
			all = append(all, v)
		}
		merged.Add(&one)
	}
	slices.Sort(all)
	for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 0.999} {
		rank := uint64(math.Ceil(q * float64(len(all))))
		want, seen := all[rank-1], merged.Zero
		for i, n := range merged.Buckets {
			if seen += n; seen >= rank {
				if lo, hi := Bound(merged.First+i-1), Bound(merged.First+i); want <= lo*(1-1e-12) || want > hi*(1+1e-12) || hi/lo > 1.045 {
					t.Errorf("quantile %v is from %v to %v, want %v", q, lo, hi, want)
				}
				break
			}
		}
	}
}
