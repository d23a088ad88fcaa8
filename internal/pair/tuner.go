package pair

import (
	"fmt"
	"time"
)

// How the number of lanes of a flow is found.
const (
	// tuneGrowth is the growth from one measurement to the next that is waited for.
	tuneGrowth = 1.15
	// tuneShare is the share of its rate before the first attempt that each lane must have
	// at least, in the mean.
	tuneShare = 0.8
	// tuneMemory is how long a path's number counts as known, and tuneCrowded, that others
	// filled its queue.
	tuneMemory  = 10 * time.Minute
	tuneCrowded = time.Minute
	// tuneFloor bounds the time for which rates are measured from below; so does
	// tuneRounds, in round trips.
	tuneFloor  = 500 * time.Millisecond
	tuneRounds = 8
	// tuneLimited is the share of looks at which a flow must lack room on its lanes.
	tuneLimited = 0.6
	// clearLeast and clearMost are how many measurements without a queue an attempt waits
	// for after the first one with a queue, and at most. It doubles with each queue.
	clearLeast = 4
	clearMost  = 64
	// tunePatience bounds the wait for lanes that are to join.
	tunePatience = 5 * time.Second
)

// known is the number of lanes that a path has been found to need.
type known struct {
	lanes int
	at    time.Time
	until time.Time
}

func (k known) fresh(now time.Time) bool { return now.Before(k.until) }

// tuner finds how many lanes help a flow in one direction. It tries twice as many, then 8
// and 16 times, while the lanes are what limits the flow and each new one brings as much as the
// first. Then it verifies that they don't share a queue.
type tuner struct {
	lanes int // that proved worth it; 0: 1
	why   string

	trying  int           // lanes of the attempt that runs; 0: none
	verify  *verification // of the lanes of the attempt; nil: they are still tried
	failed  bool          // an attempt to have two lanes brought too little
	asked   time.Time     // of it
	settled time.Time     // since when its lanes are there; zero: they are not

	began   time.Time // of the measurement that runs; zero: none
	bytes   uint64
	each    []laneBytes
	looks   int
	limited int

	latest laneRates // of the lanes of the latest attempt

	// Measurements without a queue since the latest one with a queue, and how many an
	// attempt waits for.
	clear, patience int

	rate  float64 // bytes a second with the least lanes; 0: not measured
	trend float64 // of rate from one measurement to the next
}

// sight is what a tuner looks at.
type sight struct {
	now     time.Time
	least   int                // lanes that the flow has in any case
	lanes   int                // that carry the flow
	bytes   uint64             // that the other end has got
	each    func() []laneBytes // on each lane, the main one first
	limited bool               // the lanes have no room for what there is to send
	rtt     time.Duration
	queue   func(since time.Time) time.Duration // that has stood on the path; 0: none
}

// look takes a look at the flow. It returns the number of lanes that it is to have, and what
// was found; nil: nothing yet.
func (t *tuner) look(s sight) (want int, found *known) {
	t.lanes = max(t.lanes, s.least)
	span := max(tuneFloor, tuneRounds*s.rtt)
	settling := span // their windows open
	if t.paused() {
		settling += span // what the others have been given leaves the host
	}
	switch {
	case t.trying == 0:
	case s.lanes < t.trying && t.settled.IsZero():
		if s.now.Sub(t.asked) > tunePatience {
			if t.verify == nil && t.lanes > s.least {
				t.begin(s, t.lanes, nil, false)
				return t.want(), nil
			}
			t.why = fmt.Sprintf("%d lanes cannot be made", t.trying)
			return t.end(s, s.least)
		}
		return t.trying, nil
	case t.settled.IsZero():
		t.settled = s.now
		return t.trying, nil
	case s.now.Sub(t.settled) < settling:
		return t.trying, nil
	}
	if t.began.IsZero() {
		t.began, t.bytes, t.each, t.looks, t.limited = s.now, s.bytes, s.each(), 0, 0
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
	queue := s.queue(t.began)
	t.began = time.Time{}
	switch {
	case t.verify != nil && !limited:
		return t.want(), nil // what the client sends says nothing of the lanes
	case t.verify != nil:
		return t.check(s, t.rates(s.each(), elapsed), queue)
	case t.trying > 0:
		return t.judge(s, rate, span, t.rates(s.each(), elapsed), queue)
	case !limited:
		t.rate = 0
		return t.want(), nil
	case t.lanes > s.least: // what was known of them is too old
		t.begin(s, t.lanes, nil, false)
		return t.want(), nil
	case queue > 0:
		t.rate, t.clear, t.patience = 0, 0, min(max(2*t.patience, clearLeast), clearMost)
		t.why = fmt.Sprintf("a queue of %v stands: further lanes would take from others", queue.Round(time.Millisecond))
		return t.want(), nil
	case t.clear < t.patience: // a short queue stands at times only
		t.rate = rate
		t.clear++
		return t.want(), nil
	case t.rate > 0 && rate < tuneGrowth*t.rate:
		t.trend = max(rate/t.rate, 1)
		t.rate = rate
		return t.try(s), nil
	}
	t.rate = rate // it still grows by itself
	return t.want(), nil
}

func (t *tuner) want() int { return max(t.trying, t.lanes) }

// paused reports whether all lanes but the main one are to pause.
func (t *tuner) paused() bool { return t.verify != nil && t.verify.alone }

// rates are those of the lanes since the measurement began.
func (t *tuner) rates(now []laneBytes, elapsed time.Duration) laneRates {
	return ratesBetween(t.each, now, elapsed)
}

func (t *tuner) try(s sight) int {
	more := 2 * t.lanes
	if t.lanes > s.least { // which has shown that there is a limit for each connection
		more = 4 * t.lanes
	}
	t.trying, t.asked, t.settled = min(more, maxLanes), s.now, time.Time{}
	t.why = fmt.Sprintf("trying %d lanes", t.trying)
	return t.trying
}

// judge ends an attempt.
func (t *tuner) judge(s sight, rate float64, span time.Duration, rates laneRates, queue time.Duration) (int, *known) {
	growth := 1.0 // had it gone on as before
	for since := s.now.Sub(t.asked); since > 0; since -= span {
		growth *= max(t.trend, 1)
	}
	t.rate *= min(growth, tuneGrowth*tuneGrowth)
	t.trend, t.latest = 1, rates
	worth := rate / t.rate * float64(s.least) // lanes
	switch {
	case worth >= tuneShare*float64(t.trying) && t.trying < maxLanes && queue == 0:
		t.lanes, t.failed = t.trying, false
		return t.try(s), nil
	case worth >= tuneShare*float64(t.trying):
		t.begin(s, t.trying, rates, queue > 0)
		return t.want(), nil
	}
	several := t.lanes
	if fit := int(worth + 0.1); 4*fit >= 5*several {
		several = fit
	}
	switch {
	case several > s.least:
		t.begin(s, several, nil, queue > 0)
		return t.want(), nil
	case !t.failed: // a loss at the wrong moment is enough to hide a gain
		t.failed, t.trying, t.rate = true, 0, 0
		return t.want(), nil
	}
	t.why = fmt.Sprintf("%d lanes brought %.0f %%", t.trying, 100*(worth/float64(s.least)-1))
	return t.end(s, s.least)
}

// begin begins to verify that so many lanes share no queue. Their rates may be known, and that
// more of them fill one.
func (t *tuner) begin(s sight, lanes int, rates laneRates, fills bool) {
	t.verify = &verification{lanes: lanes, before: rates, alone: rates != nil, fills: fills}
	t.lanes = min(t.lanes, lanes)
	t.trying, t.asked, t.settled = lanes, s.now, time.Time{}
	t.why = fmt.Sprintf("verifying %d lanes", lanes)
}

// check takes a measurement of the verification.
func (t *tuner) check(s sight, rates laneRates, queue time.Duration) (int, *known) {
	v, why := t.verify.take(rates, queue)
	if v == undecided {
		t.settled = s.now
		return t.want(), nil
	}
	lanes := max(t.verify.remain(v), s.least)
	if v != separate && lanes > s.least {
		t.latest = rates
		t.begin(s, lanes, nil, true)
		return t.want(), nil
	}
	t.why = why
	lanes, found := t.end(s, lanes)
	if v == crowded {
		found.until = s.now.Add(tuneCrowded)
	}
	return lanes, found
}

func (t *tuner) end(s sight, lanes int) (int, *known) {
	why := t.why
	*t = tuner{lanes: lanes, why: why}
	return lanes, &known{lanes, s.now, s.now.Add(tuneMemory)}
}
