package resources

import (
	"runtime"
	"testing"
	"time"
)

func TestRest(t *testing.T) {
	const mb = 1 << 20
	begin := time.Unix(1000, 0)
	for _, tt := range []struct {
		name string
		heap heap
		at   time.Duration
		want bool
	}{
		{"the first look", heap{5, 8 * mb, 12 * mb}, 0, false},
		{"too early", heap{5, 8 * mb, 12 * mb}, restAfter - 1, false},
		{"at rest with garbage", heap{5, 8 * mb, 10*mb + 1}, restAfter, true},
		{"at rest with little garbage", heap{5, 8 * mb, 10 * mb}, restAfter, false},
		{"a small heap at rest", heap{5, 2 * mb, 3 * mb}, restAfter, false},
		{"a collection since", heap{6, 8 * mb, 12 * mb}, restAfter, false},
	} {
		r := rest{cycles: 5, since: begin}
		if tt.at == 0 {
			r = rest{}
		}
		if got := r.due(tt.heap, begin.Add(tt.at)); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// The runtime has the figures, by these names.
func TestReadHeap(t *testing.T) {
	before := readHeap()
	runtime.GC()
	after := readHeap()
	if after.cycles <= before.cycles || after.live == 0 || after.objects == 0 {
		t.Errorf("before a collection %+v, after it %+v", before, after)
	}
}
