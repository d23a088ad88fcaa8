package main

import (
	"fmt"
	"slices"
)

// pair names two relays of which the second is judged by the first.
type pair struct {
	Base  string `json:"base"`
	Other string `json:"other"`
}

// change is by how much a figure of the second relay of a pair differs from
// that of the first, which ran just before or after it: the median of all rounds'
// differences, as shares, and the bounds of its confidence interval.
type change struct {
	pair
	Measure string  `json:"measure"`
	Metric  string  `json:"metric"`
	Median  float64 `json:"median"`
	Low     float64 `json:"low"`
	High    float64 `json:"high"`
}

// changes compares the pairs by the metrics that are means of a whole
// measurement, those of its tail vary too much for shares of a percent.
func (r *result) changes(pairs []pair) (list []change) {
	for _, m := range r.Measures {
		for _, metric := range m.Metrics {
			if !metric.mean {
				continue
			}
			for _, p := range pairs {
				base, other := m.valuesOf(p.Base, metric.Name), m.valuesOf(p.Other, metric.Name)
				var shares []float64
				for i := range min(len(base), len(other)) {
					if base[i] > 0 {
						shares = append(shares, other[i]/base[i]-1)
					}
				}
				if len(shares) == 0 {
					continue
				}
				mid, _, _ := median(shares)
				low, high := medianInterval(shares)
				list = append(list, change{p, m.Name, metric.Name, mid, low, high})
			}
		}
	}
	return list
}

// medianInterval bounds the median with a confidence of at least 95 %, or as
// much as so few values give: the order statistics between which it lies by
// the binomial distribution, whatever that of the values is.
func medianInterval(values []float64) (low, high float64) {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	// The chance that k or fewer of n values are below the median.
	chance, term, k := 0.0, 1.0, 0
	for range n {
		term /= 2
	}
	for ; k < n/2; k++ {
		chance += term
		if 2*chance > 0.05 {
			break
		}
		term *= float64(n-k) / float64(k+1)
	}
	k = max(0, k-1)
	return sorted[k], sorted[n-1-k]
}

const changesTitle = "Change, round by round: median (95 % confidence)"

// changeTable is a table of them, a row for each measure and metric.
func (r *result) changeTable() (head []string, rows [][]string) {
	type line struct{ measure, metric string }
	var pairs []pair
	var lines []line
	cells := map[line]map[pair]string{}
	for _, c := range r.Changes {
		at := line{c.Measure, c.Metric}
		if cells[at] == nil {
			cells[at] = map[pair]string{}
			lines = append(lines, at)
		}
		if !slices.Contains(pairs, c.pair) {
			pairs = append(pairs, c.pair)
		}
		cells[at][c.pair] = fmt.Sprintf("%+.1f %% (%+.1f to %+.1f)", 100*c.Median, 100*c.Low, 100*c.High)
	}
	head = []string{"measure", "figure"}
	for _, p := range pairs {
		head = append(head, p.Other+", not "+p.Base)
	}
	for _, at := range lines {
		row := []string{at.measure, at.metric}
		for _, p := range pairs {
			row = append(row, cells[at][p])
		}
		rows = append(rows, row)
	}
	return head, rows
}
