package pair

import (
	"testing"
	"time"
)

// TestLeavesRecord holds that a slow lane leaves records that a faster one brings sooner.
func TestLeavesRecord(t *testing.T) {
	fast := pace{rtt: 20 * time.Millisecond, rate: 12.5e6, queued: 128 << 10}
	slow := pace{rtt: 80 * time.Millisecond, rate: 6.25e6}
	crawling := pace{rtt: 600 * time.Millisecond, rate: 30e3}
	dead := fast
	dead.silent = true
	for _, test := range []struct {
		name    string
		of      pace
		others  []pace
		backlog int64
		want    bool
	}{
		{"little is to be sent", slow, []pace{fast}, 100 << 10, true},
		{"much is to be sent", slow, []pace{fast}, 2 << 20, false},
		{"the fast lane itself", fast, []pace{slow}, 100 << 10, false},
		{"a lane that is hardly worth it", crawling, []pace{fast}, 4 << 20, true},
		{"more than the receiver keeps", pace{rtt: 3 * time.Second, rate: 30e3}, []pace{{rtt: time.Millisecond, rate: 125e6}}, 1 << 40, true},
		{"the fast lane is silent", slow, []pace{dead}, 100 << 10, false},
		{"a lane of which nothing is known", pace{}, []pace{fast}, 100 << 10, false},
		{"alone", slow, nil, 100 << 10, false},
	} {
		if got := test.of.leaves(test.others, test.backlog, 32<<20); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
	if n := fast.record(); n < 90<<10 {
		t.Errorf("a record of the fast lane has %d bytes", n)
	}
	if n := crawling.record(); n != leastBytes {
		t.Errorf("a record of the crawling lane has %d bytes", n)
	}
}
