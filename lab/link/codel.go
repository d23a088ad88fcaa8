package link

import (
	"math"
	"time"
)

// The target and the interval that RFC 8289 recommends. Linux has the same.
const (
	codelTarget   = 5 * time.Millisecond   // section 4.4
	codelInterval = 100 * time.Millisecond // section 4.3
)

// codel manages a queue by the time that packets wait in it (RFC 8289). Once all
// packets have waited longer than target for interval, it drops leaving packets at
// ever shorter intervals. It stops when one has waited less. Times are in
// nanoseconds.
type codel struct {
	target, interval int64
	maxPacket        int // bytes
}

func newCodel(s Settings) codel {
	c := codel{target: int64(s.AQM.TargetOrDefault()), interval: int64(s.AQM.Interval), maxPacket: s.mtu()}
	if c.interval == 0 {
		c.interval = int64(codelInterval)
	}
	return c
}

// codelState is the state of a queue between packets. Times are in nanoseconds.
type codelState struct {
	// above: the latest packet had waited too long. If that still holds at
	// dropFrom, the queue is standing.
	above    bool
	dropFrom int64

	// While dropping, the next drop is at nextDrop. drops counts the drops of
	// this phase. It begins with the count of the previous phase if that ended
	// less than codelMemory intervals ago.
	dropping         bool
	nextDrop         int64
	drops            int
	dropsAtBeginning int
}

const codelMemory = 16

// drop reports whether CoDel drops the packet at the head of the queue, which
// has waited for waited, with behindBytes behind it.
func (c codel) drop(q *codelState, now, waited int64, behindBytes int) bool {
	standing := c.isStanding(q, now, waited, behindBytes)
	switch {
	case q.dropping && !standing:
		q.dropping = false
		return false
	case q.dropping:
		if now < q.nextDrop {
			return false
		}
		q.drops++
		q.nextDrop += c.gap(q)
		return true
	case !standing:
		return false
	}
	q.dropping = true
	needed := q.drops - q.dropsAtBeginning
	q.drops = 1
	if needed > 1 && now-q.nextDrop < codelMemory*c.interval {
		q.drops = needed
	}
	q.dropsAtBeginning = q.drops
	q.nextDrop = now + c.gap(q)
	return true
}

// isStanding reports whether packets have waited longer than the target for an
// interval. A queue of one packet does not count: on a slow link its
// transmission exceeds the target.
func (c codel) isStanding(q *codelState, now, waited int64, behindBytes int) bool {
	if waited < c.target || behindBytes <= c.maxPacket {
		q.above = false
		return false
	}
	if !q.above {
		q.above, q.dropFrom = true, now+c.interval
		return false
	}
	return now >= q.dropFrom
}

// gap is the time between two drops. It shrinks with the square root of their
// number, so that the rate of a TCP sender falls linearly.
func (c codel) gap(q *codelState) int64 {
	return int64(float64(c.interval) / math.Sqrt(float64(q.drops)))
}
