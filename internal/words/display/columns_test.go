package display

import (
	"math"
	"testing"
	"time"
)

func TestShare(t *testing.T) {
	for share, want := range map[float64]string{
		0: "0%", 0.0001: "<.1%", 0.0123: "1.2%", 0.0994: "9.9%", 0.0996: "10%", 0.996: "100%", 1: "100%", -1: "-", math.NaN(): "-",
	} {
		if got := Share(share); got != want {
			t.Errorf("%v: %s, want %s", share, got, want)
		}
	}
}

func TestSpan(t *testing.T) {
	for seconds, want := range map[float64]string{
		0.000012: "12µs", 0.0009996: "1.0ms", 0.0063: "6.3ms", 0.0631: "63ms", 0.9996: "1.0s", 12: "12s", math.NaN(): "-",
	} {
		if got := SpanSeconds(seconds); got != want {
			t.Errorf("%v: %s, want %s", seconds, got, want)
		}
	}
	for d, want := range map[time.Duration]string{-1: "-", 0: "0µs", 63 * time.Millisecond: "63ms", 3 * time.Hour: "3h"} {
		if got := Span(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestSparkline(t *testing.T) {
	for _, tt := range []struct {
		figures []float64
		width   int
		want    string
	}{
		{[]float64{0, 1, 2, 7}, 9, "▁▂▃█"},
		{[]float64{0, 1, 2, 7}, 2, "▃█"},
		{[]float64{0, 0, math.NaN()}, 9, "▁▁ "},
		{[]float64{math.NaN(), 5}, 9, " █"},
		{nil, 9, ""},
	} {
		if got := Sparkline(tt.figures, tt.width); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.figures, got, tt.want)
		}
	}
	if got := SparklineTo([]float64{0, 1}, 7); got != "▁▂" {
		t.Errorf("to 7: %q", got)
	}
}
