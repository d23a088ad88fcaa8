package web

import (
	"cmp"
	"iter"
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

// flowsOnly has flows and nothing else of a monitor; it counts those that it shows.
type flowsOnly struct {
	Monitor
	flows []monitor.Flow
	shown int
}

func (m *flowsOnly) Known() int { return len(m.flows) }

func (m *flowsOnly) Flows() iter.Seq[*monitor.Flow] {
	least := -1.0
	return m.Moving(&least)
}

func (m *flowsOnly) Moving(least *float64) iter.Seq[*monitor.Flow] {
	return func(yield func(*monitor.Flow) bool) {
		var one monitor.Flow
		for _, f := range m.flows {
			if bps := f.UpBps + f.DownBps; bps < *least || bps == 0 && *least >= 0 {
				continue
			}
			m.shown++
			if one = f; !yield(&one) {
				return
			}
		}
	}
}

// TestFastestFlows holds that pages of the fastest flows are those of all flows in order, and that few flows are looked at.
func TestFastestFlows(t *testing.T) {
	random := rand.New(rand.NewPCG(6, 1))
	m := &flowsOnly{flows: make([]monitor.Flow, 10_000)}
	for i := range m.flows {
		f := &m.flows[i]
		f.ID, f.Tunnel = flow.ID(i+1), []string{"t", "u"}[i%2]
		if i%4 != 0 {
			f.UpBps, f.DownBps = float64(random.IntN(50_000)), float64(random.IntN(2))
		}
	}
	inOrder := slices.Clone(m.flows)
	slices.SortFunc(inOrder, func(a, b monitor.Flow) int {
		return cmp.Or(cmp.Compare(b.UpBps+b.DownBps, a.UpBps+a.DownBps), cmp.Compare(a.ID, b.ID))
	})
	ids := func(flows []monitor.Flow) (all []flow.ID) {
		for _, f := range flows {
			all = append(all, f.ID)
		}
		return all
	}
	for _, page := range []int{1, 2, 250, 1000} {
		m.shown = 0
		s := selection{order: "rate", descending: true, Page: page, Size: 30}
		got := s.of(m)
		last := min(page, (len(m.flows)+29)/30)
		want := inOrder[(last-1)*30 : min(last*30, len(inOrder))]
		if !slices.Equal(ids(got.Flows), ids(want)) || got.Total != len(m.flows) || got.Matched != len(m.flows) || got.Page != last {
			t.Errorf("page %d: %v, want %v; %d flows, %d match, page %d", page, ids(got.Flows), ids(want), got.Total, got.Matched, got.Page)
		}
		if page == 1 && m.shown > 1000 {
			t.Errorf("the first page looks at %d flows", m.shown)
		}
	}
	one := selection{order: "rate", descending: true, Page: 1, Size: 10, Tunnel: "u"}
	if got, want := ids(one.top(m)), ids(one.of(m).Flows); !slices.Equal(got, want) || len(got) != 10 {
		t.Errorf("the top of a tunnel is %v, want %v", got, want)
	}
	if got := one.of(m); got.Matched != len(m.flows)/2 || got.Total != len(m.flows) {
		t.Errorf("%d of %d flows are of the tunnel", got.Matched, got.Total)
	}
}
