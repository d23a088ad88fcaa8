package link

import (
	"math/rand/v2"
	"time"
)

// PIE (RFC 8033) drops arriving packets at random. Every pieUpdate it corrects the
// probability by the queue's delay and by the delay's change.
//
// The delay is the wait of the packet that left last, and 0 once the queue is empty
// (section 5.2 allows time stamps). Of the optional parts it has the bound on a
// step up (5.5) and the evenly spaced drops (5.4).

const (
	pieTarget = 15 * time.Millisecond // section 4.2, QDELAY_REF
	pieUpdate = 15 * time.Millisecond // T_UPDATE
	pieBurst  = 150 * time.Millisecond

	// Of the controller, in 1/s (section 4.2).
	pieAlpha = 0.125
	pieBeta  = 1.25

	pieLowProbability = 0.2  // below it, and below half the target, nothing is dropped
	pieDecay          = 0.98 // of an idle link's probability, each update
	pieMaxStep        = 0.02 // of a probability from pieStepFrom up
	pieStepFrom       = 0.1

	// A packet passes while the probabilities since the last drop add up to less
	// than pieSpacingMin, and is dropped from pieSpacingMax up.
	pieSpacingMin, pieSpacingMax = 0.85, 8.5

	pieMarkBelow = 0.1 // section 5.1, MARK_ECNTH: it drops from this probability up

	pieMaxMissed = 4096 // updates of an idle link after which its state is the initial one
)

// pie is PIE's state. Times are in nanoseconds.
type pie struct {
	probability     float64
	accumulated     float64 // since the last drop
	delay, delayOld int64
	burst           int64 // the rest of the allowance
	nextUpdate      int64
	random          *rand.PCG
}

// pieStream is the stream of PIE's generator. Never change it: recorded runs depend on
// it.
const pieStream = 0x70696521

func newPIE(now int64, seed uint64) *pie {
	return &pie{burst: int64(pieBurst), nextUpdate: now + int64(pieUpdate), random: rand.NewPCG(seed, pieStream)}
}

// drop reports whether PIE drops an arriving packet of a queue of queuedBytes.
func (p *pie) drop(now int64, queuedBytes int, target time.Duration, mtu int) bool {
	p.update(now, int64(target))
	draw := p.random.Uint64()
	switch {
	case p.burst > 0,
		p.delayOld < int64(target)/2 && p.probability < pieLowProbability,
		queuedBytes <= 2*mtu:
		return false
	case p.probability == 0:
		p.accumulated = 0
		return false
	}
	p.accumulated += p.probability
	if p.accumulated < pieSpacingMin || p.accumulated < pieSpacingMax && !hit(draw, p.probability) {
		return false
	}
	p.accumulated = 0
	return true
}

// left tells PIE that a packet began its transmission after a wait.
func (p *pie) left(now, waited int64, empty bool, target time.Duration) {
	p.update(now, int64(target))
	p.delay = waited
	if empty {
		p.delay = 0
	}
}

// update makes the updates that are due.
func (p *pie) update(now, target int64) {
	if missed := (now - p.nextUpdate) / int64(pieUpdate); missed > pieMaxMissed {
		p.probability, p.delay, p.delayOld, p.burst = 0, 0, 0, int64(pieBurst)
		p.nextUpdate += missed * int64(pieUpdate)
	}
	for ; p.nextUpdate <= now; p.nextUpdate += int64(pieUpdate) {
		step := (pieAlpha*float64(p.delay-target) + pieBeta*float64(p.delay-p.delayOld)) / 1e9 * pieScale(p.probability)
		if p.probability >= pieStepFrom {
			step = min(step, pieMaxStep)
		}
		p.probability += step
		if p.delay == 0 && p.delayOld == 0 {
			p.probability *= pieDecay
		}
		p.probability = min(max(p.probability, 0), 1)
		p.burst = max(p.burst-int64(pieUpdate), 0)
		if p.probability == 0 && p.delay < target/2 && p.delayOld < target/2 {
			p.burst = int64(pieBurst)
		}
		p.delayOld = p.delay
	}
}

// pieScale reduces the steps of a low probability, so that they stay in proportion to
// it (section 4.2).
func pieScale(probability float64) float64 {
	for _, scale := range []struct{ below, divisor float64 }{
		{0.000001, 2048}, {0.00001, 512}, {0.0001, 128}, {0.001, 32}, {0.01, 8}, {0.1, 2},
	} {
		if probability < scale.below {
			return 1 / scale.divisor
		}
	}
	return 1
}
