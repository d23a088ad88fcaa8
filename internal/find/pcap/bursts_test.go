package pcap

import (
	"math"
	"testing"
	"time"
)

// TestBursts sends segments of 1000 bytes in bursts over links of a known rate, and
// hears an acknowledgement of each.
func TestBursts(t *testing.T) {
	const ms = int64(time.Millisecond)
	type round struct {
		at, every int64 // when the sender sends, and the time between two segments
		segments  int
		pauses    bool // before the acknowledgement in the middle, by the sender
	}
	for _, test := range []struct {
		name   string
		link   int64 // time that the link takes for a segment
		rounds []round
		mbps   float64
		count  int
	}{
		{"sent at once", ms, []round{{0, 0, 10, false}, {100 * ms, 0, 20, false}}, 8, 3},
		{"twice as fast as the link", ms, []round{{0, ms / 2, 20, false}, {100 * ms, ms / 2, 20, false}}, 8, 4},
		{"as fast as the link", ms, []round{{0, ms, 40, false}, {100 * ms, ms, 40, false}}, 0, 0},
		{"slower than the link", ms / 2, []round{{0, ms, 40, false}}, 0, 0},
		{"with a pause", ms, []round{{0, 0, 9, true}, {100 * ms, 0, 9, true}}, 0, 0},
		{"only one", ms, []round{{0, 0, 10, false}}, 0, 1},
		{"too few segments", ms, []round{{0, 0, 8, false}, {100 * ms, 0, 8, false}, {200 * ms, 0, 8, false}}, 0, 0},
		{"acknowledged at once", 0, []round{{0, 0, 20, false}, {100 * ms, 0, 20, false}}, 0, 0},
	} {
		var b bursts
		end := int64(0)
		for _, r := range test.rounds {
			b.interrupted() // a loss between the rounds
			free := r.at
			for k := range int64(r.segments) {
				sent := r.at + k*r.every
				if r.pauses && k >= 4 {
					sent += 4 * ms
				}
				free = max(free, sent) + test.link
				if r.pauses && k == 4 {
					free += 4 * ms
				}
				end += 1000
				b.acknowledged(burstAck{at: free + 50*ms, end: end, sent: sent}, 1000)
			}
		}
		bps, count := b.rate()
		if math.Abs(bps/1e6-test.mbps) > 0.01*test.mbps || count != test.count {
			t.Errorf("%s: %.2f Mb/s of %d bursts, want %.2f of %d", test.name, bps/1e6, count, test.mbps, test.count)
		}
	}
}
