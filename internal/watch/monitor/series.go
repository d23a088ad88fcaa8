package monitor

import (
	"math"
	"time"

	"longhaul/internal/words/units"
)

// series sums a flow's bytes by steps of its life. The zero value has no step
// yet; see add.
type series struct {
	step  time.Duration
	bytes [][2]float32 // up and down, of each step; missing steps are 0
}

// add spreads the bytes moved between two times of the flow's life evenly over
// that span.
func (s *series) add(first, from, to time.Duration, up, down int64) {
	if up == 0 && down == 0 {
		return
	}
	if s.step == 0 {
		s.step = first
	}
	from = max(0, min(from, to))
	s.fit(to)
	begin, end := int(from/s.step), s.steps(to)-1
	for len(s.bytes) <= max(begin, end) {
		s.bytes = append(s.bytes, [2]float32{})
	}
	span := float64(to - from)
	for i := begin; i <= end; i++ {
		share := 1.0
		if begin < end {
			part := min(to, time.Duration(i+1)*s.step) - max(from, time.Duration(i)*s.step)
			share = float64(part) / span
		}
		s.bytes[i][0] += float32(share * float64(up))
		s.bytes[i][1] += float32(share * float64(down))
	}
}

// steps is the number of steps in a life.
func (s *series) steps(life time.Duration) int {
	return max(1, int((life+s.step-1)/s.step))
}

// fit merges neighbours until a life has at most SeriesLen steps.
func (s *series) fit(life time.Duration) {
	for s.steps(life) > SeriesLen && s.step < math.MaxInt64/4 {
		s.step *= 2
		s.bytes = merged(s.bytes)
	}
}

// merged sums pairs of neighbours, in place.
func merged(v [][2]float32) [][2]float32 {
	n := 0
	for i := 0; i < len(v); i += 2 {
		sum := v[i]
		if i+1 < len(v) {
			sum[0] += v[i+1][0]
			sum[1] += v[i+1][1]
		}
		v[n] = sum
		n++
	}
	return v[:n]
}

// minRest is the share of a step at or above which the rest of a life becomes a
// step. A rate over a shorter time says little.
const minRest = 0.1

// view returns the series of a flow of this age.
func (s *series) view(life time.Duration) Series {
	if s.step == 0 || life <= 0 {
		return Series{Step: units.Seconds(s.step), UpBps: []float32{}, DownBps: []float32{}}
	}
	s.fit(life)
	n := s.steps(life)
	rest := life - time.Duration(n-1)*s.step
	if n > 1 && float64(rest) < minRest*float64(s.step) {
		n--
		rest += s.step
	}
	return Series{Step: units.Seconds(s.step), UpBps: s.rates(0, n, rest), DownBps: s.rates(1, n, rest)}
}

// rates converts the bytes of one direction to n values in bits per second; the last
// value covers everything behind it.
func (s *series) rates(direction, n int, rest time.Duration) []float32 {
	out := make([]float32, n)
	for i, b := range s.bytes {
		out[min(i, n-1)] += b[direction] * 8
	}
	for i := range out[:n-1] {
		out[i] /= float32(s.step.Seconds())
	}
	out[n-1] /= float32(rest.Seconds())
	return out
}
