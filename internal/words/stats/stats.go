// Package stats summarizes figures over several runs of an experiment.
package stats

import (
	"math"
	"slices"
)

// Mean returns the mean of values; NaN of none.
func Mean(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	total := 0.0
	for _, v := range values {
		total += v
	}
	return total / float64(len(values))
}

// Jain is Jain's index of fairness: 1 if all values are the same, 1/n if one has all; 0 of none.
func Jain(values []float64) float64 {
	var sum, squares float64
	for _, v := range values {
		sum, squares = sum+v, squares+v*v
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(values)) * squares)
}

// Median of a figure over several runs; NaN of none.
func Median[T any](runs []T, figure func(T) float64) float64 {
	values := Sorted(runs, figure)
	n := len(values)
	if n == 0 {
		return math.NaN()
	}
	return (values[(n-1)/2] + values[n/2]) / 2
}

// Spread is the least and the largest of a figure over several runs; NaN of none.
func Spread[T any](runs []T, figure func(T) float64) (lo, hi float64) {
	values := Sorted(runs, figure)
	if len(values) == 0 {
		return math.NaN(), math.NaN()
	}
	return values[0], values[len(values)-1]
}

// Quantile of a figure, by the nearest rank; NaN of no run.
func Quantile[T any](runs []T, q float64, figure func(T) float64) float64 {
	values := Sorted(runs, figure)
	if len(values) == 0 {
		return math.NaN()
	}
	return values[min(max(int(math.Ceil(q*float64(len(values))))-1, 0), len(values)-1)]
}

// Sorted are the figure's values over several runs, in ascending order.
func Sorted[T any](runs []T, figure func(T) float64) []float64 {
	values := make([]float64, len(runs))
	for i, r := range runs {
		values[i] = figure(r)
	}
	slices.Sort(values)
	return values
}

// At returns a quantile of values in ascending order; zero of none.
func At[T any](sorted []T, q float64) (v T) {
	if len(sorted) == 0 {
		return v
	}
	return sorted[int(math.Round(q*float64(len(sorted)-1)))]
}
