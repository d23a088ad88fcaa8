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

// strained is how much longer than on its path alone an answer may take: this process waits for a
// processor, or the session's other one has answered late.
func (s *session) strained() time.Duration {
	now := time.Now()
	return max(s.slow(now), s.dialStrain.now(now))
}

// slow is the strain that does not depend on lanes.
func (s *session) slow(now time.Time) time.Duration {
	return max(s.node.strain.now(now), s.strain.now(now))
}

// noteDial takes the delay of a lane's handshake. It shows strain only beside other signs of that: a slow
// path delays handshakes as well, and a box may take new connections and pass nothing on.
func (s *session) noteDial(late time.Duration, now time.Time) {
	if s.slow(now) >= growsWithin {
		s.dialStrain.note(late, now)
	}
}

// least is the round trip without queues of a connection whose kernel knows this one: behind a box that
// ends TCP that is the round trip to the box.
func (s *session) least(known time.Duration) time.Duration { return max(known, s.delays.without()) }

// answerWithin is patience with an answer of the other process, not only of its kernel.
func (s *session) answerWithin(floor time.Duration, n int) time.Duration {
	return s.patience(floor, n) + s.strained()
}
