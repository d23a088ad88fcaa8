package plot

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// scale maps values of an axis to [0, 1].
type scale struct {
	kind     Scale
	min, max float64   // of the values; of their logarithms if kind is Log10
	steps    []float64 // ascending, if kind is Steps
	ticks    []tick
}

type tick struct {
	value float64
	label string // empty for a minor tick
}

// newScale makes the scale of an axis for the values that occur on it, with
// about that many ticks.
func newScale(a Axis, values []float64, ticks int) scale {
	s := scale{kind: a.Scale}
	switch a.Scale {
	case Steps:
		s.steps = slices.Clone(values)
		slices.Sort(s.steps)
		s.steps = slices.Compact(s.steps)
		for _, v := range s.steps {
			s.ticks = append(s.ticks, tick{v, number(v)})
		}
	case Log10:
		lo, hi := bounds(a, values, 1, 10)
		s.min, s.max = math.Log10(lo), math.Log10(hi)
		if a.Min == a.Max { // whole decades, unless the user chose
			s.min, s.max = math.Floor(s.min), math.Ceil(s.max)
			if s.min == s.max {
				s.max++
			}
		}
		s.ticks = logTicks(s.min, s.max)
	default:
		lo, hi := bounds(a, values, 0, 1)
		if a.Min == a.Max {
			lo = min(lo, 0)
			if hi <= lo {
				hi = lo + 1
			}
		}
		step := niceStep((hi - lo) / float64(ticks))
		if a.Min == a.Max {
			lo, hi = math.Floor(lo/step)*step, math.Ceil(hi/step-1e-9)*step
		}
		s.min, s.max = lo, hi
		for i := math.Ceil(lo/step - 1e-9); i*step <= hi+step*1e-9; i++ {
			s.ticks = append(s.ticks, tick{i * step, number(i * step)})
		}
	}
	return s
}

// bounds are the axis's own, or those of the data, or the given ones.
func bounds(a Axis, values []float64, lo, hi float64) (float64, float64) {
	if a.Min != a.Max {
		return a.Min, a.Max
	}
	if len(values) == 0 {
		return lo, hi
	}
	return slices.Min(values), slices.Max(values)
}

// at is where a value lies, 0 at the axis's beginning and 1 at its end.
func (s scale) at(v float64) float64 {
	switch s.kind {
	case Steps:
		if len(s.steps) < 2 {
			return 0.5
		}
		i, _ := slices.BinarySearch(s.steps, v)
		return float64(i) / float64(len(s.steps)-1)
	case Log10:
		v = math.Log10(v)
	}
	return (v - s.min) / (s.max - s.min)
}

// within says whether a value lies between the axis's bounds.
func (s scale) within(v float64) bool {
	at := s.at(v)
	return at >= -1e-9 && at <= 1+1e-9
}

// niceStep is the least of 1, 2 and 5 times a power of ten that is not below
// the step.
func niceStep(step float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(step)))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= step*(1-1e-9) {
			return m * power
		}
	}
	return 10 * power
}

// logTicks labels every power of ten, and 2 and 5 times it where there is room.
func logTicks(lo, hi float64) []tick {
	var ticks []tick
	for decade := math.Floor(lo); decade <= hi; decade++ {
		for m := 1.0; m < 10; m++ {
			v := m * math.Pow(10, decade)
			if at := math.Log10(v); at < lo-1e-9 || at > hi+1e-9 {
				continue
			}
			t := tick{value: v}
			if m == 1 || hi-lo <= 2 && (m == 2 || m == 5) {
				t.label = number(v)
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}

// number writes a value with as many digits as it needs, at most 6, and a
// prefix in place of many zeros.
func number(v float64) string {
	switch size := math.Abs(v); {
	case size < 1e-12:
		return "0"
	case size >= 1e9:
		return number(v/1e9) + "G"
	case size >= 1e6:
		return number(v/1e6) + "M"
	case size >= 1e4:
		return number(v/1e3) + "k"
	case size < 1e-3:
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	s := strconv.FormatFloat(v, 'f', 4, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}
