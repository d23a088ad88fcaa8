package pair

import (
	"sync"
	"time"
)

const (
	// delayMemory is how long a round trip counts as one without queues. It takes a path
	// that has become longer as long to be known as that.
	delayMemory = time.Hour
	// delayRecent is the number of round trips that are kept, and delayEnough how many
	// show whether a queue stands.
	delayRecent = 32
	delayEnough = 3
	// standingFloor and standingShare, of the round trip without queues, are the delay from
	// which on a queue stands.
	standingFloor = 3 * time.Millisecond
	standingShare = 0.1
)

// delays are the round trips of a session's control connection. It sends almost nothing, so
// what delays it are queues that it shares with others.
type delays struct {
	mu     sync.Mutex
	least  [2]time.Duration // of the current half of delayMemory, and of the one before
	turned time.Time        // when the current half began
	recent [delayRecent]struct {
		sent time.Time
		rtt  time.Duration
	}
	next int
}

// note takes a round trip.
func (d *delays) note(sent time.Time, rtt time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case sent.Sub(d.turned) > delayMemory/2:
		d.least, d.turned = [2]time.Duration{rtt, d.least[0]}, sent
	default:
		d.least[0] = min(d.least[0], rtt)
	}
	d.recent[d.next].sent, d.recent[d.next].rtt = sent, rtt
	d.next = (d.next + 1) % delayRecent
}

// standing is the queue that no round trip has escaped since a moment; 0: one has, or there
// were too few. Jitter delays some of them, a queue that stands delays all.
func (d *delays) standing(since time.Time) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	base := d.base()
	n, queue := 0, time.Duration(0)
	for _, r := range d.recent {
		if r.sent.After(since) {
			if n++; n == 1 || r.rtt-base < queue {
				queue = r.rtt - base
			}
		}
	}
	if n < delayEnough || queue < shownBeyond(base) {
		return 0
	}
	return queue
}

// without is the round trip without queues; 0: none is known.
func (d *delays) without() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.base()
}

// base is the round trip without queues. The caller holds d.mu.
func (d *delays) base() time.Duration {
	if d.least[1] > 0 {
		return min(d.least[0], d.least[1])
	}
	return d.least[0]
}

// shownBeyond is the delay from which on a queue stands.
func shownBeyond(base time.Duration) time.Duration {
	return max(standingFloor, time.Duration(standingShare*float64(base)))
}

// latest is the queue that the latest round trip met.
func (d *delays) latest() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := d.recent[(d.next+delayRecent-1)%delayRecent]
	return max(last.rtt-d.base(), 0)
}

// drained reports whether a round trip that began between two moments met no queue.
func (d *delays) drained(from, until time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	base := d.base()
	for _, r := range d.recent {
		if r.sent.After(from) && r.sent.Before(until) && r.rtt-base < shownBeyond(base) {
			return true
		}
	}
	return false
}
