package lab

import (
	"math"
	"testing"

	"longhaul/lab/link"
)

func TestLimit(t *testing.T) {
	tenth := link.Loss{Probability: 0.1}
	for _, test := range []struct {
		c    Conditions
		want float64
	}{
		{Conditions{MTUAB: 1500}, 0},
		{Conditions{RateBps: 100e6, MTUAB: 1500}, 100e6 * 1448 / 1500},
		{Conditions{RateBps: 100e6, MTUAB: 9180, ATM: true}, 100e6 * 9128 / (192 * 53)},
		{Conditions{RateBps: 100e6, MTUAB: 1500, PacketsPerSecond: 1000}, 1000 * 1448 * 8},
		{Conditions{RateBps: 1e6, MTUAB: 1500, PacketsPerSecond: 1000}, 1e6 * 1448 / 1500.},
		{Conditions{RateBps: 1e9, MTUAB: 1500, Loss: tenth}, 1e9 * 1448 / 1500},
		{Conditions{RateBps: 1e9, MTUAB: 1500, Loss: tenth, LossPlace: link.LossAfter}, 0.9 * 1e9 * 1448 / 1500},
	} {
		if got := test.c.LimitBps(); math.Abs(got-test.want) > 1 {
			t.Errorf("%+v: the limit is %.0f, want %.0f", test.c, got, test.want)
		}
	}
}

func TestBurstsKeepTheMean(t *testing.T) {
	for _, p := range []float64{0, 0.001, 0.1, 0.5, 1} {
		for _, length := range []float64{1, 2, 10} {
			got := inBursts(link.Loss{Probability: p}, length).Share()
			// Bursts need at least one delivered packet between them.
			if want := p; math.Abs(got-want) > 1e-9 {
				t.Errorf("loss %g in bursts of %g: mean %g", p, length, got)
			}
		}
	}
}
