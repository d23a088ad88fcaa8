package link

import (
	"math"
	"math/rand/v2"
	"time"
)

// dice makes the random choices of one direction. Every kind of choice has its
// own generator, and every packet draws the same number of times. So choice n
// depends only on the seed, not on timing or other settings.
type dice struct {
	seed                  uint64
	loss, jitter, reorder *rand.PCG
	traceLoss, rateLoss   *rand.PCG
	alter                 *rand.PCG
	bad                   bool // state of the Gilbert-Elliott chain
}

// Streams of the generators: arbitrary and different. Never change them:
// recorded runs depend on them.
const (
	lossStream    = 0x6c6f7373
	jitterStream  = 0x6a697474
	reorderStream = 0x72656f72
	traceStream   = 0x74726163
	rateStream    = 0x72617465
	alterStream   = 0x616c7465
)

func newDice(seed uint64) *dice {
	return &dice{
		seed:    seed,
		loss:    rand.NewPCG(seed, lossStream),
		jitter:  rand.NewPCG(seed, jitterStream),
		reorder: rand.NewPCG(seed, reorderStream),

		traceLoss: rand.NewPCG(seed, traceStream),
		rateLoss:  rand.NewPCG(seed, rateStream),
		alter:     rand.NewPCG(seed, alterStream),
	}
}

// hit is true with probability p for a uniform draw.
func hit(draw uint64, p float64) bool {
	// 53 bits, the precision of a float64: exact for p of 0 and 1.
	return float64(draw>>11) < p*(1<<53)
}

func (d *dice) lose(l *Loss) bool {
	step, loss := d.loss.Uint64(), d.loss.Uint64()
	if l.ToBad == 0 {
		d.bad = false
		return hit(loss, l.Probability)
	}
	if d.bad {
		d.bad = !hit(step, l.ToGood)
	} else {
		d.bad = hit(step, l.ToBad)
	}
	if d.bad {
		return hit(loss, l.BadProbability)
	}
	return hit(loss, l.Probability)
}

// jitterBy returns a uniform choice in [-j, +j].
func (d *dice) jitterBy(j time.Duration) int64 {
	draw := d.jitter.Uint64()
	if j == 0 {
		return 0
	}
	unit := float64(draw>>11)/(1<<52) - 1 // [-1, 1)
	return int64(math.Round(unit * float64(j)))
}

func (d *dice) holdBack(r *Reorder) bool {
	return hit(d.reorder.Uint64(), r.Probability)
}
