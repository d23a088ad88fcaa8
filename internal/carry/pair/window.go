package pair

import (
	"slices"
	"time"

	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/tcpinfo"
)

// A flow keeps what it has read until the other end has it: what is under way, what the kernel has
// not sent yet, and what waits in a lane behind bytes that are repeated. So what it keeps, its
// window, is about twice what its lanes bring in a round trip. A window that is too small makes
// lanes pause; then they send in bursts, lose more, and need a larger one. So while a flow becomes
// faster, or its window holds it back, the window is twice what its lanes' congestion windows let out.

const (
	limitStart = 512 << 10
	limitMax   = 64 << 20
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
	return int(min(max(trips*w.rate(), open, limitStart), limitMax))
}

// readerSilence is the time without an acknowledgement after which it may be the reader at the
// other end for which bytes wait.
const readerSilence = 5 * time.Second

// WaitsForPath reports whether the flow's bytes may wait for the path, and for nobody at either
// end who does not read.
func (f *Flow) WaitsForPath() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !f.need.since.IsZero(), f.phase != phaseOpen:
		return true
	case f.leg.open():
		if i, err := tcpinfo.Get(f.leg.fd); err == nil && waitsForReader(&i) {
			return false
		}
	}
	if !f.sf.Out.Unacknowledged() || f.watch.ackedAt.since() < f.s.patience(readerSilence, 8) {
		return true
	}
	return slices.ContainsFunc(f.lanes.strands, func(st *strand) bool {
		return kernelSays(st.l.bulk, func(i *tcpinfo.Info) bool { return i.Unacked > 0 && !waitsForReader(i) })
	})
}

// waitsForReader reports whether the window of a socket's peer has no room for what is to be sent.
func waitsForReader(i *tcpinfo.Info) bool {
	return i.NotsentBytes > 0 && uint64(i.Unacked+1)*uint64(i.SndMSS) > uint64(i.SndWnd)
}

// arrived is how many bytes the other end's kernel has got on the lane since the last look.
func (st *strand) arrived() float64 {
	was := st.delivered
	if st.delivered = st.paced.delivered; was.packets == 0 {
		return 0
	}
	return float64(st.delivered.packets-was.packets) * float64(st.delivered.mss)
}

// setWindow bounds what the flow keeps.
func (sp *laneSpread) setWindow() {
	f := sp.f
	if f.lanes.main() == nil || f.s.noResume {
		return
	}
	if f.s.knows(wire.FeatureCompress) {
		// The kernels count what was compressed, and only a lane whose socket is full says that
		// it is worth that.
		if f.sf.Out.Starved() {
			limit := min(2*f.sf.Out.Limit(), limitMax)
			f.sf.Out.SetLimit(limit, limit, len(f.lanes.strands))
		}
		return
	}
	var open, arrived float64
	var rtt time.Duration
	for _, st := range f.lanes.strands {
		p := st.pace()
		if p.rate == 0 {
			continue
		}
		open += p.rate*p.rtt.Seconds() + float64(2*p.record())
		arrived += st.arrived()
		rtt = max(rtt, p.rtt)
	}
	if rtt == 0 {
		return
	}
	now, w := stampNow(), &sp.mixed().window
	w.note(now, arrived, rtt, f.sf.Out.Starved())
	kept := w.size(now, windowRounds, open, rtt)
	reach := kept
	if len(f.lanes.strands) > 1 {
		reach = w.size(now, reachRounds, 2*open, rtt)
		if !f.s.knows(wire.FeatureHeld) {
			kept = reach
		}
	}
	f.sf.Out.SetLimit(kept, reach, len(f.lanes.strands))
}
