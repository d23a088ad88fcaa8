package link

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var testCodel = newCodel(Settings{AQM: AQM{Algorithm: CoDel}})

// leaving passes CoDel one packet per millisecond in [from, to), each with the
// given wait and ten packets behind it. It returns the milliseconds of the
// drops.
func leaving(c *codelState, from, to int64, waited time.Duration) []int64 {
	var dropped []int64
	for at := from; at < to; at++ {
		if testCodel.drop(c, at*ms, int64(waited), 10*1500) {
			dropped = append(dropped, at)
		}
	}
	return dropped
}

// TestAQMDropsFaster checks RFC 8289. The first drop comes one interval after
// the wait first exceeded the target. Later drops come after 100 ms divided by
// the root of their count.
func TestAQMDropsFaster(t *testing.T) {
	var want []int64
	at := 100.0
	for count := 1; at < 800; count++ {
		want = append(want, int64(math.Ceil(at-1e-6)))
		at += 100 / math.Sqrt(float64(count))
	}
	got := leaving(new(codelState), 0, 800, 6*time.Millisecond)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("dropped at these milliseconds (-want +got):\n%s", diff)
	}
	if len(got) < 12 || got[2] != 271 {
		t.Errorf("%d drops, the third at %v ms, want 12 or more and 271", len(got), got[2])
	}
}

func TestCoDelLetsShortWaitsPass(t *testing.T) {
	c := new(codelState)
	if got := leaving(c, 0, 1000, 5*time.Millisecond-1); got != nil {
		t.Errorf("dropped at %v ms below the target", got)
	}
	// One wait within the target every 99 ms shows that the queue drains.
	for from := int64(1000); from < 3000; from += 100 {
		if got := leaving(c, from, from+99, 50*time.Millisecond); got != nil {
			t.Fatalf("dropped at %v ms although the queue drains", got)
		}
		leaving(c, from+99, from+100, 0)
	}
	for at := int64(3000); at < 4000; at++ {
		if testCodel.drop(c, at*ms, 50*ms, 1500) {
			t.Fatal("dropped the last packet but one of the queue")
		}
	}
}

// A queue that stands again soon after it drained gets the pace that drained
// it; a later one gets the first pace.
func TestCoDelRemembers(t *testing.T) {
	for name, test := range map[string]struct{ pause, second int64 }{
		"soon": {100, 100 / 3}, // seven drops in 500 ms, minus the first one
		"late": {2000, 100},
	} {
		t.Run(name, func(t *testing.T) {
			c := new(codelState)
			first := leaving(c, 0, 500, 6*time.Millisecond)
			leaving(c, 500, 500+test.pause, 0)
			begin := 500 + test.pause
			got := leaving(c, begin, begin+300, 6*time.Millisecond)
			if len(first) != 7 || len(got) < 2 || got[0] != begin+100 {
				t.Fatalf("dropped at %v ms, and again at %v ms", first, got)
			}
			want := test.second
			if name == "soon" {
				want = int64(math.Ceil(100 / math.Sqrt(6)))
			}
			if gap := got[1] - got[0]; gap != want {
				t.Errorf("the second drop came %d ms after the first, want %d", gap, want)
			}
		})
	}
}

// Packets of 1 ms arrive every 0.95 ms. A plain queue fills; CoDel drops at an
// increasing rate, at the head of the queue.
func TestPipeCoDel(t *testing.T) {
	run := func(algorithm AQMAlgorithm) *bench {
		b := newBench(Settings{RateBps: 12_000_000, QueueBytes: 200 * 1500, AQM: AQM{Algorithm: algorithm}})
		for i := range int64(10_000) {
			b.run(i * 950 * us)
			b.send(1500)
		}
		return b
	}
	plain, managed := run(NoAQM), run(CoDel)
	if plain.counters.AQMDrops != 0 || plain.counters.QueueDrops < 300 {
		t.Errorf("a plain queue dropped %d as they left and %d as they came, want 0 and 300 or more", plain.counters.AQMDrops, plain.counters.QueueDrops)
	}
	if managed.counters.QueueDrops != 0 || managed.counters.AQMDrops < 300 {
		t.Errorf("CoDel dropped %d as they left and %d as they came, want 300 or more and 0", managed.counters.AQMDrops, managed.counters.QueueDrops)
	}
	if wait := managed.queueDelay.quantiles(1)[0]; wait > 100*time.Millisecond {
		t.Errorf("with CoDel a packet waited %v, want 100 ms at most", wait)
	}
	// The bottleneck never idles: dropped packets take none of its time.
	if got := len(managed.out); got < 9490 {
		t.Errorf("%d packets left in 9.5 s, want one each millisecond", got)
	}
	// After the change, nothing is dropped.
	before := managed.counters.AQMDrops
	managed.set(managed.now, Settings{RateBps: 12_000_000, QueueBytes: 200 * 1500}, 200*1500)
	managed.run(managed.now + 1000*ms)
	if managed.counters.AQMDrops != before {
		t.Error("CoDel dropped a packet after it was switched off")
	}
}
