package main

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"longhaul/bench/kit/congestion"
)

// Verdict is the outcome of a cell.
type Verdict string

// The verdicts.
const (
	Pass   Verdict = "pass"
	Fail   Verdict = "FAIL"
	NotRun Verdict = "not run"
)

// CellResult is a cell's outcome.
type CellResult struct {
	Name    string        `json:"name"`
	About   string        `json:"about"`
	Verdict Verdict       `json:"verdict"`
	Sure    bool          `json:"sure"` // the intervals lie on the verdict's side of the bounds
	Runs    int           `json:"runs"` // the least of its trials
	Reason  string        `json:"reason,omitempty"`
	Claims  []ClaimResult `json:"claims,omitempty"`
	// Excluded: no flow at all could hold every claim. The verdict stands nevertheless.
	Excluded bool `json:"bounds_exclude_each_other,omitempty"`
}

// ClaimResult is the outcome of a claim.
type ClaimResult struct {
	Title string       `json:"title"`
	OK    bool         `json:"ok"`
	Parts []PartResult `json:"parts"`
}

// PartResult is a figure with its bounds.
type PartResult struct {
	Label string           `json:"label,omitempty"`
	Value congestion.Value `json:"value"`
	Low   congestion.Value `json:"low_95"` // of the interval of 95 %; null with less than minResampled runs
	High  congestion.Value `json:"high_95"`
	Least congestion.Value `json:"least"` // bounds; null for none
	Most  congestion.Value `json:"most"`
	OK    bool             `json:"ok"`
	Sure  bool             `json:"sure"`

	unit unit
}

// Intervals are percentile bootstrap intervals (B. Efron, "Bootstrap methods: another look
// at the jackknife", 1979): every trial's runs are drawn again with replacement, apart
// from the other trials', and the figure is computed anew, medians included. With 5 runs
// the interval of a single median is the range of the runs, which covers the true median
// with probability 1 - 2/2^5 = 94 %.
const (
	resamples    = 1000
	minResampled = 3 // runs of each trial
	tail         = 0.025
)

// judge compares a cell's runs with its claims. Without runs the reason is why.
func (c cell) judge(r runs, why string) CellResult {
	result := CellResult{Name: c.name, About: c.about, Verdict: NotRun}
	result.Runs = math.MaxInt
	for _, name := range c.roles() {
		if n := len(r[name]); n > 0 || !c.isOptional(name) {
			result.Runs = min(result.Runs, n)
		}
	}
	if result.Runs == 0 {
		result.Reason = cmp.Or(why, "not measured yet")
		return result
	}
	drawn := resample(c.roles(), r, result.Runs)
	result.Verdict, result.Sure = Pass, true
	var unsure, surelyFailed bool
	for _, cl := range c.claims {
		if cl.of != "" && len(r[cl.of]) == 0 {
			continue
		}
		judged := ClaimResult{Title: cl.title, OK: true}
		for _, p := range cl.parts {
			one := p.judge(r, drawn)
			judged.Parts, judged.OK = append(judged.Parts, one), judged.OK && one.OK
			unsure = unsure || !one.Sure
			surelyFailed = surelyFailed || !one.OK && one.Sure
		}
		result.Claims = append(result.Claims, judged)
		if !judged.OK {
			result.Verdict = Fail
		}
	}
	if why := broken(c.roles(), r); why != "" {
		result.Verdict, result.Reason, surelyFailed = Fail, why, true
	}
	result.Sure = result.Verdict == Pass && !unsure || surelyFailed
	result.Excluded = result.Verdict == Fail && c.excludes != nil && c.excludes(r)
	return result
}

// broken returns why a connection ended early, if one did.
func broken(roles []role, r runs) string {
	for _, name := range roles {
		for _, m := range r[name] {
			why := m.Broken
			if why == "" && m.Fault != nil {
				why = m.Fault.Broken
			}
			if why != "" {
				return "a connection ended early: " + why
			}
		}
	}
	return ""
}

// resample draws the runs again and again; nil with too few.
func resample(roles []role, r runs, n int) []runs {
	if n < minResampled {
		return nil
	}
	random := rand.New(rand.NewPCG(1, 9743)) // the same document each time
	drawn := make([]runs, resamples)
	for i := range drawn {
		drawn[i] = runs{}
		for _, name := range roles {
			all := r[name]
			again := make([]measured, len(all))
			for k := range again {
				again[k] = all[random.IntN(len(all))]
			}
			drawn[i][name] = again
		}
	}
	return drawn
}

// judge compares a figure with its bounds.
func (p part) judge(r runs, drawn []runs) PartResult {
	bound := func(f func(runs) float64, r runs, missing float64) float64 {
		if f == nil {
			return missing
		}
		return f(r)
	}
	margin := func(r runs) float64 { // at least 0 within the bounds
		v := p.value(r)
		return min(v-bound(p.least, r, math.Inf(-1)), bound(p.most, r, math.Inf(1))-v)
	}
	result := PartResult{
		Label: p.label, unit: p.unit, Value: figure(p.value(r)), Low: congestion.None, High: congestion.None,
		Least: figure(bound(p.least, r, math.NaN())), Most: figure(bound(p.most, r, math.NaN())),
	}
	// A missing figure, NaN, is within no bounds.
	result.OK = result.Value.Some() && margin(r) >= 0
	if drawn == nil {
		return result
	}
	var values []float64
	within := 0
	for _, again := range drawn {
		if v := p.value(again); v == v {
			values = append(values, v)
		}
		if margin(again) >= 0 {
			within++
		}
	}
	result.Low, result.High = interval(values)
	inside := float64(within) / float64(len(drawn))
	result.Sure = result.OK && inside >= 1-tail || !result.OK && inside <= tail
	return result
}

// interval returns the quantiles that leave tail on both sides.
func interval(values []float64) (lo, hi congestion.Value) {
	if len(values) == 0 {
		return congestion.None, congestion.None
	}
	slices.Sort(values)
	at := func(q float64) congestion.Value {
		return figure(values[min(int(q*float64(len(values))), len(values)-1)])
	}
	return at(tail), at(1 - tail)
}

// figure is a value that may be missing.
func figure(v float64) congestion.Value {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return congestion.None
	}
	return congestion.Value(v)
}
