package pair

import (
	"testing"
	"time"
)

func TestWindow(t *testing.T) {
	const rtt = 100 * time.Millisecond
	for _, test := range []struct {
		name   string
		rates  []float64 // MB/s, one after the other, each for a round trip
		full   bool
		rounds float64
		open   float64 // MB
		want   float64 // MB
	}{
		{"nothing is known", nil, false, 2, 0.1, 0.5},
		{"congestion windows while it grows", []float64{10, 20, 40}, false, 2, 6, 12},
		{"the rate, once it grows no more", []float64{40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40}, false, 2, 5, 8},
		{"congestion windows at least", []float64{40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40}, false, 2, 9, 9},
		{"the highest rate of late", []float64{40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 20}, false, 2, 1, 8},
		{"a rate that has fallen", []float64{40, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10}, false, 2, 1, 2},
		{"congestion windows while the window holds it back", []float64{40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 20}, true, 2, 6, 12},
		{"as much as a long fast path carries", []float64{900, 900}, false, 2, 1, 180},
	} {
		var w window
		now := stamp(time.Second)
		w.note(now, 0, rtt, false)
		for _, rate := range test.rates {
			now += stamp(rtt)
			w.note(now, rate*1e6*rtt.Seconds(), rtt, test.full)
		}
		if got := float64(w.size(now, test.rounds, test.open*1e6, rtt)) / 1e6; got < 0.99*test.want || got > 1.06*test.want {
			t.Errorf("%s: %.2f MB, want %.2f", test.name, got, test.want)
		}
	}
}

func TestBudget(t *testing.T) {
	const limit = 16 << 20
	var b budget
	b.limit.Store(limit)
	held := map[int]int{}
	for moved := true; moved; { // some stores take as much as they get
		moved = false
		for i := range 15 {
			if b.Take(32<<10, held[i]) {
				held[i], moved = held[i]+32<<10, true
			}
		}
	}
	for i := range held {
		if held[i] < limit/20 || held[i] > limit/15 {
			t.Errorf("store %d of 15 has %d of %d bytes", i, held[i], limit)
		}
	}
	if used := b.used.Load(); used > limit-limit/8 {
		t.Errorf("%d of %d bytes are taken", used, limit)
	}
	if !b.fits(limit/20, 0) {
		t.Error("nothing is left for another store")
	}
	b.Force(limit)
	if !b.Take(4<<10, 0) || b.Take(4<<10, leastHeld) {
		t.Error("a store has not just the least memory where none is left")
	}
}
