package web

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
)

// TestFirstOf: a page is that of the whole list in order, and one near the begin takes few comparisons.
func TestFirstOf(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 2))
	for range 300 {
		flows := make([]*monitor.Flow, random.IntN(200))
		for i := range flows {
			flows[i] = &monitor.Flow{ID: flow.ID(i), UpBps: float64(random.IntN(20))}
		}
		compared := 0
		compare := func(a, b *monitor.Flow) int {
			compared++
			return cmp.Or(cmp.Compare(b.UpBps, a.UpBps), cmp.Compare(a.ID, b.ID))
		}
		n := 1 + random.IntN(len(flows)+1)
		want := slices.Clone(flows)
		slices.SortFunc(want, compare)
		got := firstOf(flows, n, compare)
		if !slices.EqualFunc(got, want[:min(n, len(want))], func(a, b *monitor.Flow) bool { return a.ID == b.ID }) {
			t.Fatalf("%d of %d are not the first", n, len(flows))
		}
	}
	flows, compared := make([]*monitor.Flow, 10_000), 0
	for i := range flows {
		flows[i] = &monitor.Flow{ID: flow.ID(i), UpBps: random.Float64()}
	}
	kept := firstOf(flows, 50, func(a, b *monitor.Flow) int { compared++; return cmp.Compare(b.UpBps, a.UpBps) })
	if compared > 2*len(flows) || cap(kept) > 2*128 {
		t.Errorf("50 of %d take %d comparisons and room for %d", len(flows), compared, cap(kept))
	}
	compared = 0
	slices.SortFunc(flows, func(a, b *monitor.Flow) int { return cmp.Compare(a.UpBps, b.UpBps) })
	firstOf(flows, len(flows)/8, func(a, b *monitor.Flow) int { compared++; return cmp.Compare(b.UpBps, a.UpBps) })
	if compared > 9*len(flows) {
		t.Errorf("one part of 8 of %d in reverse order takes %d comparisons", len(flows), compared)
	}
}

// firstOf returns the first n flows in order; it reuses the one that it adds, as a monitor does.
func firstOf(flows []*monitor.Flow, n int, compare func(a, b *monitor.Flow) int) []*monitor.Flow {
	first := firstFlows{n: n, compare: compare}
	var one monitor.Flow
	for _, f := range flows {
		one = *f
		first.add(&one)
	}
	return first.list()
}
