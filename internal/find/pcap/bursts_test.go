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

// TestSustained has a path of 8 Mb/s whose last device hands segments over together. What
// counts is the rate over a span of time.
func TestSustained(t *testing.T) {
	const ms = int64(time.Millisecond)
	for _, test := range []struct {
		name     string
		together int64 // segments of 1000 bytes that arrive at once, and are acknowledged 20 µs apart
		stretch  bool  // one acknowledgement for all of them
		most     float64
	}{
		{"each by itself", 1, false, 8.8},
		{"three together", 3, false, 8.9},
		{"ten together", 10, false, 9.0},
		{"a hundred, with one acknowledgement", 100, true, 9.0},
	} {
		var b bursts
		b.carried.acknowledged(math.MaxInt64/2, 1) // of any clock
		b = bursts{}
		end, at := int64(1), int64(0)
		for range 600 / test.together {
			at += test.together * ms
			for k := range test.together {
				end += 1000
				if !test.stretch || k == test.together-1 {
					b.acknowledged(burstAck{at: at + k*ms/50, end: end, sent: at - 50*ms}, 1000)
				}
			}
		}
		if got := b.carried.bps() / 1e6; got > test.most {
			t.Errorf("%s: %.1f Mb/s, want at most %.1f", test.name, got, test.most)
		}
		if rate, _ := b.rate(); rate > b.carried.bps() {
			t.Errorf("%s: bursts at %.1f Mb/s, and %.1f sustained", test.name, rate/1e6, b.carried.bps()/1e6)
		}
	}
}

// TestBurstAcks bounds the acknowledgements that a new one is compared with, however
// little each of them acknowledges.
func TestBurstAcks(t *testing.T) {
	for _, bytes := range []int64{1, 2, 100} {
		var b bursts
		most := 0
		for k := range int64(10_000) {
			b.acknowledged(burstAck{at: k * 1e5, end: k * bytes, sent: k*1e5 - 1e6}, 65495)
			most = max(most, len(b.acks))
		}
		if most > maxBurstAcks {
			t.Errorf("%d acknowledgements of %d bytes are held", most, bytes)
		}
	}
}
