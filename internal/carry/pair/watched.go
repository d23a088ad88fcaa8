package pair

import (
	"math"
	"time"
)

// sweepEvery is the time between two looks at flows that rest, in ticks. Others are
// looked at each tick.
const sweepEvery = 100

// rest takes a parked flow from those that are looked at each tick, unless something is
// due before the next sweep but one. wake undoes it. The caller holds f.mu.
func (f *Flow) rest(now time.Time) {
	f.setResting(f.quiet() && f.silenceLeft(now) > 2*sweepEvery*tickEvery)
}

// quiet reports that the flow is parked and waits for events alone.
func (f *Flow) quiet() bool {
	return f.lane == nil && f.opened && !f.running && !f.queued && !f.wanted && !f.leg.failed &&
		f.needSince.IsZero() && f.wokeAt.IsZero() && f.sf.Quiet() && f.parkable()
}

// silenceLeft is the time until silence ends the flow.
func (f *Flow) silenceLeft(now time.Time) time.Duration {
	bound := time.Duration(math.MaxInt64)
	if f.sf.Out.Ended() != f.sf.In.Ended() {
		bound = f.legs.HalfClose
	}
	if f.legs.Idle > 0 {
		bound = min(bound, f.legs.Idle)
	}
	return bound - f.moved.until(now)
}

func (f *Flow) setResting(on bool) {
	if f.resting == on {
		return
	}
	if f.resting = on; on {
		f.cond = cond{} // who waited was woken when the flow lost its lane
	}
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	if on {
		delete(f.s.watched, f)
	} else {
		f.s.watched[f] = struct{}{}
	}
}
