package daemon

import (
	"testing"

	"longhaul/internal/flow"
)

// A tunnel at its limit of flows is full until a tenth is free again.
func TestIsFull(t *testing.T) {
	for _, c := range []struct {
		now   int64
		limit int
		was   bool
		want  bool
	}{
		{now: 1000},
		{now: 99, limit: 100},
		{now: 100, limit: 100, want: true},
		{now: 95, limit: 100, was: true, want: true},
		{now: 90, limit: 100, was: true, want: true},
		{now: 89, limit: 100, was: true},
		{now: 3, limit: 4, was: true},
		{now: 1, limit: 1, was: true, want: true},
		{limit: 1, was: true},
	} {
		if got := isFull(flow.Tunnel{FlowsNow: c.now, FlowsLimit: c.limit}, c.was); got != c.want {
			t.Errorf("%d of %d flows, full before %v: full %v", c.now, c.limit, c.was, got)
		}
	}
}
