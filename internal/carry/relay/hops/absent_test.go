package hops

import (
	"fmt"
	"testing"
)

// TestDrainedHopReturns: a drained hop that a service leaves out is drained when it returns, also in the next
// process. Others begin anew, and so do all without KeepDrained.
func TestDrainedHopReturns(t *testing.T) {
	all := targets([2]int{1, 1}, [2]int{1, 1})
	with, without := all, all[:1]
	next := func(was *Set, forward []Target, keep bool) *Set {
		s := New(forward, Ordered, Health{}.WithDefaults(), was)
		if keep {
			s.KeepDrained(was)
		}
		return s
	}
	for _, keep := range []bool{true, false} {
		first := next(nil, with, keep)
		first.All()[1].Drain(true)
		gone := next(next(first, without, keep), without, keep)
		if back := next(gone, with, keep); back.All()[1].Drained() != keep || back.All()[0].Drained() {
			t.Errorf("kept: %t, drained: %t", keep, back.All()[1].Drained())
		}
		inherited := next(nil, without, keep)
		inherited.Remember("t", gone.Memory("t"), keep)
		if back := next(inherited, with, keep); back.All()[1].Drained() != keep {
			t.Errorf("kept: %t, in the next process drained: %t", keep, back.All()[1].Drained())
		}
	}
	was := next(nil, nil, true)
	for i := range 3 * maxAbsent {
		one := next(was, []Target{{Host: fmt.Sprint(i), Port: 1}}, true)
		one.All()[0].Drain(true)
		was = next(one, nil, true)
	}
	if len(was.absent) != maxAbsent {
		t.Errorf("%d absent hops", len(was.absent))
	}
}

// TestNoHops: a tunnel whose service has no targets has no hop.
func TestNoHops(t *testing.T) {
	s := set(RoundRobin, nil)
	if got := s.Order(nil, client4(1), 0); len(got) != 0 || s.Paired() || s.Serves(0) || s.Stood() || len(s.Snapshot(nil, 0)) != 0 {
		t.Errorf("%v, %+v", got, s)
	}
}
