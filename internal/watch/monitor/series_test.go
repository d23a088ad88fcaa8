package monitor

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// bytesOf is the number of bytes of a series.
func bytesOf(bps []float32, step, life time.Duration) (sum float64) {
	for i, v := range bps {
		span := step
		if i == len(bps)-1 {
			span = life - time.Duration(i)*step
		}
		sum += float64(v) / 8 * span.Seconds()
	}
	return sum
}

func TestSeries(t *testing.T) {
	type piece struct {
		to       time.Duration
		up, down int64
	}
	const s, ms = time.Second, time.Millisecond
	for _, tt := range []struct {
		name   string
		pieces []piece
		life   time.Duration
		step   time.Duration
		up     []float32 // bytes per second
	}{
		{"nothing", nil, 5 * s, 0, nil},
		{"a short one", []piece{{200 * ms, 1000, 0}}, 200 * ms, s, []float32{5000}},
		{"less than a step at the end", []piece{{s, 100, 0}, {1500 * ms, 100, 0}}, 1500 * ms, s, []float32{100, 200}},
		{"too little at the end to be a step", []piece{{s, 100, 0}, {1050 * ms, 5, 0}}, 1050 * ms, s, []float32{100}},
		{"one look over many steps", []piece{{4 * s, 400, 0}}, 4 * s, s, []float32{100, 100, 100, 100}},
		{"looks between the steps", []piece{{500 * ms, 50, 0}, {1500 * ms, 100, 0}, {2 * s, 50, 0}}, 2 * s, s, []float32{100, 100}},
		{"silence at the end", []piece{{s, 100, 0}}, 4 * s, s, []float32{100, 0, 0, 0}},
		{"silence at the beginning", []piece{{2 * s, 0, 0}, {3 * s, 100, 0}}, 3 * s, s, []float32{0, 0, 100}},
		{"a life of no time", []piece{{0, 100, 0}}, 0, s, []float32{}},
		{"a look that is later than the life", []piece{{1100 * ms, 110, 0}}, s, s, []float32{110}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got series
			from := time.Duration(0)
			for _, p := range tt.pieces {
				got.add(s, from, p.to, p.up, p.down)
				from = p.to
			}
			v := got.view(tt.life)
			if v.Step.Duration() != tt.step || len(v.UpBps) != len(v.DownBps) {
				t.Errorf("a series is impossible: %+v", v)
			}
			if len(tt.pieces) == 0 {
				return
			}
			if len(v.UpBps) != len(tt.up) {
				t.Fatalf("%v, want %d steps", v.UpBps, len(tt.up))
			}
			for i, want := range tt.up {
				if got := float64(v.UpBps[i]) / 8; math.Abs(got-float64(want)) > 0.05*float64(want)+0.001 {
					t.Errorf("step %d: %v bytes a second, want %v", i, got, want)
				}
			}
		})
	}
}

// TestSeriesKeepWhatWasMoved: for any life and any views, there are at most
// SeriesLen steps, and they add up to the moved bytes.
func TestSeriesKeepWhatWasMoved(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var s series
		var up, down int64
		at := time.Duration(0)
		for range 1 + random.IntN(2000) {
			next := at + time.Duration(random.ExpFloat64()*float64(time.Second))
			if random.IntN(50) == 0 {
				next += time.Duration(random.IntN(1000)) * time.Second
			}
			u, d := random.Int64N(1e9), int64(0)
			if random.IntN(3) == 0 {
				u, d = 0, random.Int64N(1e6)
			}
			s.add(time.Second, at, next, u, d)
			up, down, at = up+u, down+d, next
		}
		v := s.view(at)
		if n := len(v.UpBps); n > SeriesLen || n != len(v.DownBps) || n == 0 {
			t.Fatalf("%d steps", n)
		}
		if step := v.Step.Duration(); step%time.Second != 0 || (step/time.Second)&(step/time.Second-1) != 0 {
			t.Fatalf("a step of %v", v.Step)
		}
		if at > 3*SeriesLen*time.Second && len(v.UpBps) < SeriesLen/2-1 {
			t.Errorf("only %d steps of %v in %v", len(v.UpBps), v.Step, at)
		}
		for _, dir := range []struct {
			got  []float32
			want int64
		}{{v.UpBps, up}, {v.DownBps, down}} {
			if got := bytesOf(dir.got, v.Step.Duration(), at); math.Abs(got-float64(dir.want)) > 1e-4*float64(dir.want)+1 {
				t.Fatalf("%d bytes became %.0f in %d steps of %v over %v", dir.want, got, len(dir.got), v.Step, at)
			}
		}
	}
}
