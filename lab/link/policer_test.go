package link

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// A steady flood at several times the rate passes at the rate, plus the initial
// content of the bucket.
func TestPolicerRateIsExact(t *testing.T) {
	for _, rate := range []int64{1_000_000, 9_999_991, 1_000_000_007} {
		for _, burst := range []int{3000, 64 << 10, 1 << 20} {
			t.Run(fmt.Sprintf("%d/%d", rate, burst), func(t *testing.T) {
				const size, seconds = 1499, 20
				policer := Policer{RateBps: rate, BurstBytes: burst}
				var b bucket
				now, passed := int64(0), 0.0
				for gap := int64(size) * 8e9 / rate / 3; now < seconds*int64(time.Second); now += gap {
					if b.admit(now, size, policer) {
						passed += size
					}
				}
				want := float64(rate)/8*float64(now)/1e9 + float64(burst)
				// The bucket keeps tokens for less than a packet.
				if passed > want+1 || passed < want-2*size {
					t.Errorf("%.0f bytes passed, want %.0f", passed, want)
				}
			})
		}
	}
}

func TestPolicerBucket(t *testing.T) {
	// 12 Mb/s: 1 ms for 1500 bytes; the bucket holds three packets.
	b := newBench(Settings{Policer: Policer{RateBps: 12_000_000, BurstBytes: 4500}})
	passed := func(n int) int {
		t.Helper()
		before := b.counters.Policed
		for range n {
			b.send(1500)
		}
		return n - int(b.counters.Policed-before)
	}
	if got := passed(10); got != 3 {
		t.Errorf("a full bucket lets %d of 10 pass, want 3", got)
	}
	b.run(1 * ms)
	if got := passed(10); got != 1 {
		t.Errorf("after 1 ms %d pass, want 1", got)
	}
	b.run(1000 * ms)
	if got := passed(10); got != 3 {
		t.Errorf("after a second %d pass, want the 3 that the bucket holds", got)
	}
	// After a change, the bucket fills at the new rate.
	b.set(b.now, Settings{Policer: Policer{RateBps: 120_000_000, BurstBytes: 4500}}, 0)
	b.run(b.now + 3*ms)
	if got := passed(10); got != 3 {
		t.Errorf("after a change of rate %d pass, want 3", got)
	}
	b.set(b.now, Settings{}, 0)
	if got := passed(100); got != 100 {
		t.Errorf("without a policer %d of 100 pass", got)
	}
}

func TestPolicerNoOverflow(t *testing.T) {
	b := bucket{}
	p := Policer{RateBps: minRateBps, BurstBytes: maxHeldBytes}
	now := int64(math.MaxInt64 / 2)
	for range 100 {
		if !b.admit(now, maxMTU, p) {
			t.Fatal("a bucket of 1 GiB is empty after 6 MB")
		}
	}
	if b.fullAt < now {
		t.Errorf("the bucket is full at %d, before %d", b.fullAt, now)
	}
}
