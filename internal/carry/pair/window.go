package pair

import (
	"math"
	"time"
)

const (
	limitStart = 512 << 10
	// windowRounds is the window, in what the lanes bring in a round trip.
	windowRounds = 1.7
	// reachRounds is the same for what lacks an acknowledgement, with what the other end holds
	// before its turn.
	reachRounds = 3
	// windowLeast is for how much time of the lanes' rate a window is enough at least:
	// acknowledgements wait for others.
	windowLeast = 3 * ackDelay
	// windowMemory is for how long the highest rate counts.
	windowMemory = time.Second
	// growth is that of the rate while a flow becomes faster, within windowMemory.
	growth     = 1.25
	growRounds = 2
	// heldBack is the share of its highest rate of late below which a flow whose window is full
	// is one that it holds back.
	heldBack = 0.9
)

// A flow keeps what it has read until the other end has it: what is under way, what the kernel has
// not sent yet, and what waits in a lane behind bytes that are repeated. So what it keeps, its
// window, is about twice what its lanes bring in a round trip. A window that is too small makes
// lanes pause; then they send in bursts, lose more, and need a larger one. So while a flow becomes
// faster, or its window holds it back, the window is twice what its lanes' congestion windows let out.

// window is what the bound of what a flow keeps depends on.
type window struct {
	since stamp      // of the measurement of the rate that runs; zero: none
	bytes float64    // that the other end's kernel has got since then
	turn  stamp      // of the current half of windowMemory
	rates [2]float64 // the highest rates, bytes a second: in the current half, and in the one before
	peak  float64    // the rate at the latest growth
	grown stamp      // when that was, or when the window last held the flow back
}

// note takes bytes that have arrived, the lanes' round trip, and whether the window was full.
func (w *window) note(now stamp, bytes float64, rtt time.Duration, full bool) {
	if w.since.IsZero() {
		w.since, w.grown = now, now
		return
	}
	w.bytes += bytes
	elapsed := time.Duration(now - w.since)
	if elapsed < max(rtt, tickEvery/2) {
		return
	}
	if time.Duration(now-w.turn) > max(windowMemory, 8*rtt)/2 {
		w.turn, w.rates[1], w.rates[0] = now, w.rates[0], 0
	}
	rate := w.bytes / elapsed.Seconds()
	w.rates[0] = max(w.rates[0], rate)
	switch {
	case rate > growth*w.peak:
		w.peak, w.grown = rate, now
	case full && rate < heldBack*w.rate():
		w.grown = now
	}
	w.since, w.bytes = now, 0
}

// rate is the highest one of late.
func (w *window) rate() float64 { return max(w.rates[0], w.rates[1]) }

// size is the window of so many rounds, of lanes that let so many bytes out at once.
func (w *window) size(now stamp, rounds, open float64, rtt time.Duration) int {
	if time.Duration(now-w.grown) < max(windowMemory, 8*rtt) {
		open *= growRounds
	}
	trips := max(rounds*rtt.Seconds(), windowLeast.Seconds())
	return int(min(max(trips*w.rate(), open, limitStart), math.MaxInt32/2)) // twice TCP's largest window is less
}
