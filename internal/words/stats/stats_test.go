package stats

import (
	"math"
	"testing"
)

func TestMedian(t *testing.T) {
	itself := func(v float64) float64 { return v }
	for _, test := range []struct {
		values []float64
		want   float64
	}{{[]float64{3}, 3}, {[]float64{3, 1}, 2}, {[]float64{9, 1, 2}, 2}} {
		if got := Median(test.values, itself); got != test.want {
			t.Errorf("median of %v is %v, want %v", test.values, got, test.want)
		}
	}
	if got := Median(nil, itself); !math.IsNaN(got) {
		t.Errorf("median of nothing is %v, want none", got)
	}
}

func TestMean(t *testing.T) {
	if got := Mean([]float64{1, 2, 6}); got != 3 {
		t.Errorf("got %v, want 3", got)
	}
	if got := Mean(nil); !math.IsNaN(got) {
		t.Errorf("mean of nothing is %v, want none", got)
	}
}

func TestJain(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{0, 0}, 0}, {[]float64{3, 3, 3}, 1}, {[]float64{5, 0, 0, 0}, 0.25}} {
		if got := Jain(tt.values); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.values, got, tt.want)
		}
	}
}
