// Package tracemodel makes traces of links whose rate and delay change over time, for
// the lab's link. The same seed makes the same trace.
package tracemodel

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Streams of the generators: arbitrary and different. Never change them: recorded runs
// depend on them.
const (
	lteStream = 0x6c7465
	leoStream = 0x6c656f
)

// The defaults of the models' rates, in bits per second.
const (
	// LTEPeakBps is the largest rate of Sprout's model, MAX_ARRIVAL_RATE: 1000 packets
	// of 1500 bytes a second.
	LTEPeakBps = 12_000_000
	// LEOPeakBps is of the order of a subscriber's download over Starlink.
	LEOPeakBps = 150_000_000
)

// MinTime is the shortest trace of each model.
const MinTime = time.Second

// packetBytes is the size of an opportunity to send in mahimahi's format.
const packetBytes = 1500

// WriteLTE writes the opportunities to send of a cellular link in mahimahi's format.
//
// The model is that of Sprout (K. Winstein, A. Sivaraman and H. Balakrishnan,
// "Stochastic Forecasts Achieve High Throughput and Low Delay over Cellular Networks",
// NSDI 2013, section 3.1): packets leave in a Poisson process whose rate makes a
// Brownian motion, between 0 and a peak. A rate that reaches 0 stays there, in an
// outage, for an exponential time. The constants are those of its implementation
// (github.com/keithw/sprout, src/sprout/receiver.hh): steps of 20 ms, a standard
// deviation of 200 packets a second after a second, which is a fifth of the peak of
// 1000, and a mean outage of a second. Sprout infers the rate by this model, and has no
// generator. Reflection at the peak, and a deviation that grows with it, are ours.
//
// Sprout's constants are no fit to a data set: it was tested with them on traces of
// four American LTE and 3G networks of 2012, for one user who is alone on a base
// station's queue. The model has no delays of its own, no handovers, and no relation
// between the two ways.
func WriteLTE(w io.Writer, seed uint64, peakBps int64, during time.Duration) error {
	const (
		tick   = 0.02 // s; TICK_LENGTH
		spread = 0.2  // of the peak, after a second; BROWNIAN_MOTION_RATE / MAX_ARRIVAL_RATE
		escape = 1.0  // from an outage, 1/s; OUTAGE_ESCAPE_RATE
	)
	r := rand.New(rand.NewPCG(seed, lteStream))
	rate := r.Float64() // share of the peak
	perTick := float64(peakBps) / 8 / packetBytes * tick
	end := during.Milliseconds()
	out := bufio.NewWriter(w)
	for begin := 0.0; begin < during.Seconds(); begin += tick {
		step := spread * math.Sqrt(tick) * r.NormFloat64()
		switch {
		case rate > 0:
			rate += step
			if rate > 1 {
				rate = 2 - rate
			}
			rate = max(rate, 0)
		case r.Float64() < 1-math.Exp(-escape*tick):
			rate = math.Abs(step)
		}
		times := make([]int64, poisson(r, rate*perTick))
		for i := range times {
			times[i] = int64(1000 * (begin + tick*r.Float64()))
		}
		slices.Sort(times)
		for _, ms := range times {
			if ms < end {
				fmt.Fprintln(out, ms)
			}
		}
	}
	fmt.Fprintln(out, end) // also the length of the trace
	return out.Flush()
}

// poisson draws from the Poisson distribution of a mean: it counts exponential gaps.
func poisson(r *rand.Rand, mean float64) int {
	n := 0
	for sum := r.ExpFloat64(); sum < mean; sum += r.ExpFloat64() {
		n++
	}
	return n
}

// WriteLEO writes the rate, delay and loss of one way of a link over satellites in low
// orbit, as a series. Two ways of one link have the same seed, and rates of their own:
// their delays and gaps then coincide.
//
// It follows Starlink as measured: a terminal gets a satellite for a slot of 15 s (H. B.
// Tanveer et al., "Making Sense of Constellations: Methodologies for Understanding
// Starlink's Scheduling Algorithms", CoNEXT Companion 2023, doi 10.1145/3624354.3630586;
// also J. Garcia et al., "A Detailed Characterization of Starlink One-way Delay", LEO-NET
// 2025). The delay steps with each slot and drifts within it, the rate differs from slot
// to slot, and packets are lost at the change and at times between (G. Huston, "A
// transport protocol's view of Starlink", APNIC blog, 2024-05-17). Its length is rounded
// up to 0.1 s.
//
// The figures are this model's choices, of the order of those reports and not fitted to
// a data set: a delay each way of 13 to 33 ms, which drifts by up to 3 ms; a rate of 40
// to 100 % of the peak, ±15 % every 100 ms; a gap of 20 to 200 ms at two of three
// changes; and a loss of 0.2 % between. It has neither weather, obstructions nor the
// load of the hour of day.
func WriteLEO(w io.Writer, seed uint64, peakBps int64, during time.Duration) error {
	const (
		stepMs = 100
		slotMs = 15_000
		loss   = 0.002
	)
	r := rand.New(rand.NewPCG(seed, leoStream))
	between := func(low, high float64) float64 { return low + (high-low)*r.Float64() }
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "# longhaul lab trace leo: seed %d, peak %d bit/s\n", seed, peakBps)
	fmt.Fprintln(out, "time_s,rate_bps,delay_ms,loss")
	row := func(ms int64, rate, delay, loss float64) {
		fmt.Fprintf(out, "%.3f,%.0f,%.2f,%g\n", float64(ms)/1000, rate, delay, loss)
	}
	var share, delay, drift float64
	for ms := int64(0); ms < during.Milliseconds(); ms += stepMs {
		gap := int64(0)
		if ms%slotMs == 0 {
			share, delay, drift = between(0.4, 1), between(13, 33), between(-3, 3)
			changes, length := r.Float64() < 2.0/3 && ms > 0, between(20, 200)
			if changes && during.Milliseconds()-ms > 3*stepMs { // it ends within the trace
				gap = int64(length)
			}
		}
		rate := float64(peakBps) * min(share*between(0.85, 1.15), 1)
		now := delay + drift*float64(ms%slotMs)/slotMs
		for ; gap >= stepMs; gap -= stepMs {
			row(ms, 0, now, 1)
			ms += stepMs
		}
		if gap > 0 {
			row(ms, 0, now, 1)
		}
		if ms+gap < during.Milliseconds() {
			row(ms+gap, rate, now, loss)
		}
	}
	return out.Flush()
}
