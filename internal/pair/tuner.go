package pair

import (
	"fmt"
	"time"
)

// How the number of lanes of a flow is found.
const (
	// tuneGain is what a doubling has to bring in order to stay.
	tuneGain = 1.15
	// tuneMemory is how long a path's number counts as known.
	tuneMemory = 10 * time.Minute
	// tuneFloor bounds the time for which rates are measured from below; so does
	// tuneRounds, in round trips.
	tuneFloor  = 500 * time.Millisecond
	tuneRounds = 8
	// tuneLimited is the share of looks at which a flow must lack room on its lanes.
	tuneLimited = 0.6
	// tunePatience bounds the wait for lanes that are to join.
	tunePatience = 5 * time.Second
)

// known is the number of lanes that a path has been found to need.
type known struct {
	lanes int
	at    time.Time
}

func (k known) fresh(now time.Time) bool { return k.lanes > 0 && now.Sub(k.at) < tuneMemory }

// tuner finds how many lanes help a flow in one direction. It doubles their number while the
// lanes are what limits the flow, and takes back what brought too little.
type tuner struct {
	lanes int // that proved worth it; 0: 1
	why   string

	trying  int       // lanes of the attempt that runs; 0: none
	failed  int       // lanes of the attempt before, which brought too little; 0: none did
	asked   time.Time // of it
	settled time.Time // since when its lanes are there; zero: they are not

	began   time.Time // of the measurement that runs; zero: none
	bytes   uint64
	looks   int
	limited int

	rate  float64 // bytes a second with lanes; 0: not measured
	trend float64 // of rate from one measurement to the next
}

// sight is what a tuner looks at.
type sight struct {
	now     time.Time
	lanes   int    // that carry the flow
	bytes   uint64 // that the other end has got
	limited bool   // the lanes have no room for what there is to send
	rtt     time.Duration
}

// look takes a look at the flow. It returns the number of lanes that it is to have, and what
// was found; nil: nothing yet.
func (t *tuner) look(s sight) (want int, found *known) {
	t.lanes = max(t.lanes, 1)
	span := max(tuneFloor, tuneRounds*s.rtt)
	switch {
	case t.trying == 0:
	case s.lanes < t.trying && t.settled.IsZero():
		if s.now.Sub(t.asked) > tunePatience {
			t.why = fmt.Sprintf("%d lanes cannot be made", t.trying)
			return t.end(s, t.lanes)
		}
		return t.trying, nil
	case t.settled.IsZero():
		t.settled = s.now
		return t.trying, nil
	case s.now.Sub(t.settled) < span: // their windows open
		return t.trying, nil
	}
	if t.began.IsZero() {
		t.began, t.bytes, t.looks, t.limited = s.now, s.bytes, 0, 0
		return t.want(), nil
	}
	if t.looks++; s.limited {
		t.limited++
	}
	elapsed := s.now.Sub(t.began)
	if elapsed < span {
		return t.want(), nil
	}
	rate := float64(s.bytes-t.bytes) / elapsed.Seconds()
	limited := float64(t.limited) >= tuneLimited*float64(t.looks)
	t.began = time.Time{}
	if t.trying > 0 {
		return t.judge(s, rate, span)
	}
	if !limited {
		t.rate = 0
		return t.want(), nil
	}
	if t.rate > 0 && rate < tuneGain*t.rate && t.lanes < maxLanes {
		t.trend = max(rate/t.rate, 1)
		t.rate = rate
		return t.try(s), nil
	}
	t.rate = rate // it still grows by itself
	return t.want(), nil
}

func (t *tuner) want() int { return max(t.trying, t.lanes) }

func (t *tuner) try(s sight) int {
	t.trying, t.asked, t.settled = min(2*t.lanes, maxLanes), s.now, time.Time{}
	t.why = fmt.Sprintf("trying %d lanes", t.trying)
	return t.trying
}

// judge ends an attempt.
func (t *tuner) judge(s sight, rate float64, span time.Duration) (int, *known) {
	growth := 1.0 // had it gone on as before
	for since := s.now.Sub(t.asked); since > 0; since -= span {
		growth *= max(t.trend, 1)
	}
	expected := t.rate * min(growth, tuneGain*tuneGain)
	gain := rate/expected - 1
	if gain < tuneGain-1 && t.failed == 0 {
		// A loss at the wrong moment is enough to hide a gain.
		t.failed, t.trying, t.rate = t.trying, 0, 0
		return t.lanes, nil
	}
	if gain < tuneGain-1 {
		t.why = fmt.Sprintf("%d lanes brought %.0f %%", t.trying, 100*gain)
		return t.end(s, t.lanes)
	}
	t.why = fmt.Sprintf("%d lanes brought %.0f %% more than %d", t.trying, 100*gain, t.lanes)
	t.lanes, t.rate, t.trend, t.failed = t.trying, rate, 1, 0
	if t.lanes == maxLanes {
		return t.end(s, t.lanes)
	}
	return t.try(s), &known{t.lanes, s.now}
}

func (t *tuner) end(s sight, lanes int) (int, *known) {
	why := t.why
	*t = tuner{lanes: lanes, why: why}
	return lanes, &known{lanes, s.now}
}
