package pair

import (
	"sync"
	"time"
)

// delayMemory is how long a round trip counts as one without queues. It takes a path that has
// become longer as long to be known as that.
const delayMemory = time.Hour

// delays are the round trips of a session's control connection. It sends almost nothing, so
// what delays it are queues that it shares with others.
type delays struct {
	mu     sync.Mutex
	least  [2]time.Duration // of the current half of delayMemory, and of the one before
	turned time.Time        // when the current half began
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
}

// without is the round trip without queues; 0: none is known.
func (d *delays) without() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.least[1] > 0 {
		return min(d.least[0], d.least[1])
	}
	return d.least[0]
}
