package pair

import (
	"sync"
	"time"
)

const (
	// strainHalves is the time after which half of a delay counts still.
	strainHalves = 2 * time.Second
	maxStrain    = 10 * time.Second
	// overloadedFrom is the strain from which a session counts as overloaded.
	overloadedFrom = time.Second
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

// strain is how late a process does what is due because it waits for a processor. Answers may
// come later by that: to give up work that is under way and begin again only adds to it.
type strain struct {
	mu   sync.Mutex
	late time.Duration
	at   time.Time
}

// note takes a delay that was seen.
func (s *strain) note(late time.Duration, now time.Time) {
	if late <= s.now(now) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late, s.at = min(late, maxStrain), now
}

// now is the longest delay of late, fading.
func (s *strain) now(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.late >> max(now.Sub(s.at)/strainHalves, 0)
}
