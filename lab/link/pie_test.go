package link

import (
	"math"
	"testing"
	"time"
)

// The probability follows RFC 8033, section 4.2: steps by hand.
func TestPIEController(t *testing.T) {
	p := newPIE(0, 1)
	near := func(got, want float64) bool { return math.Abs(got-want) <= 1e-12+1e-9*want }
	want := 0.0
	for i, step := range []struct {
		delay   int64
		divisor float64
	}{
		{30 * ms, 2048}, // (0.125 × 15 ms + 1.25 × 30 ms) ÷ 2048 = 19.2e-6
		{30 * ms, 128},  // less: the delay stands still
		{40 * ms, 128},
		{40 * ms, 32},
		{10 * ms, 32},
	} {
		was := p.delayOld
		p.left(int64(i)*15*ms+1, step.delay, false, pieTarget)
		p.update(int64(i+1)*15*ms, int64(pieTarget))
		want += (0.125*float64(step.delay-15*ms) + 1.25*float64(step.delay-was)) / 1e9 / step.divisor
		want = max(want, 0)
		if !near(p.probability, want) {
			t.Fatalf("update %d: probability %g, want %g", i, p.probability, want)
		}
	}
	p.probability, p.delay, p.delayOld = 0.5, 1000*ms, 0
	p.update(6*15*ms, int64(pieTarget))
	if !near(p.probability, 0.52) {
		t.Errorf("a step of a high probability to %g, want 0.02 more", p.probability)
	}
	// An idle queue forgets, soon or after a day.
	p.left(6*15*ms+1, 20*ms, true, pieTarget)
	p.delayOld = 0
	p.update(8*15*ms, int64(pieTarget))
	if p.probability >= 0.52 || p.probability < 0.4 {
		t.Errorf("probability %g after two idle updates", p.probability)
	}
	p.update(int64(24*time.Hour), int64(pieTarget))
	if p.probability != 0 || p.burst != int64(pieBurst) || p.nextUpdate <= int64(24*time.Hour) {
		t.Errorf("after a day: %+v", p)
	}
}

// A burst passes; a standing flood at 5/4 of the rate loses a fifth, and the others wait
// some 15 ms.
func TestPIEHoldsTarget(t *testing.T) {
	b := newBench(Settings{RateBps: 12_000_000, QueueBytes: 1000 * 1500, AQM: AQM{Algorithm: PIE}, Seed: 5})
	for range 90 {
		b.send(1500)
	}
	b.run(1000 * ms)
	if b.counters.AQMDrops != 0 {
		t.Errorf("a burst of 90 ms lost %d packets", b.counters.AQMDrops)
	}
	flood := func(until int64) {
		for b.now < until {
			b.run(b.now + 800*us)
			b.send(1500)
		}
	}
	flood(60_000 * ms)
	b.queueDelay = new(histogram)
	dropped, in := b.counters.AQMDrops, b.counters.PacketsIn
	flood(120_000 * ms)
	share := float64(b.counters.AQMDrops-dropped) / float64(b.counters.PacketsIn-in)
	waits := b.queueDelay.quantiles(0.5, 0.99)
	if math.Abs(share-0.2) > 0.005 || waits[0] < 11*time.Millisecond || waits[0] > 19*time.Millisecond || waits[1] > 40*time.Millisecond {
		t.Errorf("%.4f dropped, want 0.2; waits p50 and p99 %v, want some 15 ms", share, waits)
	}
	if b.counters.QueueDrops != 0 {
		t.Errorf("%d packets did not fit", b.counters.QueueDrops)
	}
}

// PIE holds the wait of an AIMD sender's queue near 15 ms.
func TestPIEHoldsSender(t *testing.T) {
	const rate, half = 24_000_000, 25 * ms
	b := newBench(Settings{RateBps: rate, Delay: 25 * time.Millisecond, QueueBytes: 1000 * 1500, AQM: AQM{Algorithm: PIE}})
	c := converse(b, half, &aimd{flow: 1, window: 10}, &aimd{flow: 2, window: 10}, &aimd{flow: 3, window: 10}, &aimd{flow: 4, window: 10})
	c.until(20_000 * ms)
	b.queueDelay = new(histogram)
	c.until(80_000 * ms)
	if waits := b.queueDelay.quantiles(0.5, 0.95); waits[0] < 7*time.Millisecond || waits[0] > 22*time.Millisecond || waits[1] > 45*time.Millisecond {
		t.Errorf("waits p50, p95 %v", waits)
	}
}

// Drops are spread: the probabilities between two of them add up to 0.85 at least and
// little more than 8.5.
func TestPIESpacesDrops(t *testing.T) {
	p := newPIE(0, 3)
	p.probability, p.delay, p.delayOld, p.burst = 0.05, 15*ms, 15*ms, 0
	since, drops, all := 0, 0, 200_000
	for range all {
		since++
		if p.drop(1, 100*1500, pieTarget, 1500) {
			if since < 17 || since > 171 {
				t.Fatalf("%d packets between two drops of 5 %%", since)
			}
			since, drops = 0, drops+1
		}
	}
	// 16 packets pass in any case; then each is dropped with 5 %.
	if want := float64(all) / (16 + 1/0.05); math.Abs(float64(drops)-want) > 0.05*want {
		t.Errorf("%d drops, want some %.0f", drops, want)
	}
	if p.drop(1, 2*1500, pieTarget, 1500) {
		t.Error("dropped from a queue of two packets")
	}
}
