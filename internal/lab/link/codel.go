package link

import (
	"math"
	"time"
)

// CoDel manages the bottleneck's queue by the time that packets wait in it (RFC
// 8289). Once all packets have waited longer than Target for Interval, it drops
// leaving packets at ever shorter intervals. It stops when one has waited less.
// The zero value only drops packets that do not fit into the queue.
type CoDel struct {
	Target   time.Duration // acceptable standing wait; 0 means no CoDel
	Interval time.Duration // about the longest round trip; 0 means 100 ms
}

// DefaultCoDel has the target and the interval that RFC 8289 recommends.
func DefaultCoDel() CoDel {
	return CoDel{Target: 5 * time.Millisecond, Interval: codelInterval}
}

const codelInterval = 100 * time.Millisecond

func (c CoDel) interval() int64 {
	if c.Interval == 0 {
		return int64(codelInterval)
	}
	return int64(c.Interval)
}

// codelState is CoDel's state between packets. Times are in nanoseconds.
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
func (c *codelState) drop(now, waited int64, behindBytes, mtu int, s CoDel) bool {
	if s.Target == 0 {
		return false
	}
	standing := c.isStanding(now, waited, behindBytes, mtu, s)
	switch {
	case c.dropping && !standing:
		c.dropping = false
		return false
	case c.dropping:
		if now < c.nextDrop {
			return false
		}
		c.drops++
		c.nextDrop += c.gap(s)
		return true
	case !standing:
		return false
	}
	c.dropping = true
	needed := c.drops - c.dropsAtBeginning
	c.drops = 1
	if needed > 1 && now-c.nextDrop < codelMemory*s.interval() {
		c.drops = needed
	}
	c.dropsAtBeginning = c.drops
	c.nextDrop = now + c.gap(s)
	return true
}

// isStanding reports whether packets have waited longer than the target for an
// interval. A queue of one packet does not count: on a slow link its
// transmission exceeds the target.
func (c *codelState) isStanding(now, waited int64, behindBytes, mtu int, s CoDel) bool {
	if waited < int64(s.Target) || behindBytes <= mtu {
		c.above = false
		return false
	}
	if !c.above {
		c.above, c.dropFrom = true, now+s.interval()
		return false
	}
	return now >= c.dropFrom
}

// gap is the time between two drops. It shrinks with the square root of their
// number, so that the rate of a TCP sender falls linearly.
func (c *codelState) gap(s CoDel) int64 {
	return int64(float64(s.interval()) / math.Sqrt(float64(c.drops)))
}
