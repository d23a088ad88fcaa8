package monitor

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"longhaul/internal/words/stats"
)

// TestRTTs holds that quantiles of flows that come and go are within 1.6 % of the exact ones, and exact for equal
// values; and that nothing is left of flows that have gone.
func TestRTTs(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	r, values := rtts{}, []uint32{}
	want := []float64{0, 0.5, 0.99}
	for range 2000 {
		if len(values) > 0 && random.IntN(3) == 0 {
			i := random.IntN(len(values))
			r.add(values[i], -1)
			values = slices.Delete(values, i, i+1)
		} else {
			us := uint32(math.Exp2(random.Float64() * 31.9))
			r.add(us, 1)
			values = append(values, us)
		}
		sorted := slices.Sorted(slices.Values(values))
		for i, got := range r.quantiles(want...) {
			if exact := stats.At(sorted, want[i]); math.Abs(float64(got)-float64(exact)) > float64(exact)/63 {
				t.Fatalf("of %d values quantile %v is %d, want %d", len(values), want[i], got, exact)
			}
		}
	}
	for _, us := range values {
		r.add(us, -1)
	}
	r.add(0, 1)
	if len(r) != 0 || !slices.Equal(r.quantiles(want...), []uint32{0, 0, 0}) {
		t.Errorf("what is left is %v", r)
	}
	for range 5 {
		r.add(80_123, 1)
	}
	if got := r.quantiles(want...); !slices.Equal(got, []uint32{80_123, 80_123, 80_123}) {
		t.Errorf("of equal values: %v", got)
	}
}

// TestRTTBuckets holds that buckets are in the order of values.
func TestRTTBuckets(t *testing.T) {
	last := bucketOfRTT(1)
	for us := uint32(2); us < 1<<20; us++ {
		b := bucketOfRTT(us)
		if b < last || b > last+1 {
			t.Fatalf("%d is in bucket %d, behind %d", us, b, last)
		}
		last = b
	}
	if b := bucketOfRTT(math.MaxUint32); b <= last {
		t.Errorf("the largest value is in bucket %d", b)
	}
}
