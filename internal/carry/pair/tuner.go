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
	// tuneFirst is how many lanes the first attempt has, and tuneSome what they must bring
	// at least, in rates of one: then some of them have a limit of their own.
	tuneFirst = 4
	tuneSome  = 1.7
	// tuneVerify is the number from which on lanes are verified before more are tried.
	tuneVerify = 8
	// tuneClear is enough where a new lane is as fast as one alone.
	tuneClear = 1.3
	// seekMore is how many new lanes a search for further links has. seekRounds bounds the
	// searches before a verification, and seekMost all of them.
	seekMore   = 5
	seekRounds = 3
	seekMost   = 4
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
	alone float64 // bytes a second of one lane where each has a link of its own; 0: they are alike
	at    time.Time
	until time.Time
}

func (k known) fresh(now time.Time) bool { return now.Before(k.until) }

// tuner finds how many lanes help a flow in one direction. It tries 4, then 8 and 16, while the
// lanes are what limits the flow and each new one brings as much as the first. Where some
// bring less, they may share one of several links: the fastest ones stay, and it seeks other
// links with new ones in place of the others. Then it verifies that the lanes don't share a queue.
type tuner struct {
	lanes int // that proved worth it; 0: 1
	why   string

	trying  int           // lanes of the attempt that runs; 0: none
	verify  *verification // of the lanes of the attempt; nil: they are still tried
	failed  bool          // the first attempt brought too little
	asked   time.Time     // of it
	next    int           // lanes to try once the slowest have gone; 0: none have to go
	seeks   int           // searches for further links
	kept    int           // lanes that were there before the latest attempt or search
	sure    bool          // these don't contend
	vain    bool          // it found no further link
	goal    int           // lanes that are known to find links of their own; 0: not known
	placed  bool          // the flow has looked for these
	proved  int           // lanes that didn't contend of late; 0: not verified
	noise   []float64     // differences that verifications have seen
	settled time.Time     // since when its lanes are there; zero: they are not

	began   time.Time // of the measurement that runs; zero: none
	each    []laneBytes
	looks   int
	limited int

	latest laneRates // of the lanes in the latest attempt or check

	hush hush // finds whether a queue is the flow's own

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
	each    func() []laneBytes // that the other end has got on each lane, the main one first
	limited bool               // the lanes have no room for what there is to send
	rtt     time.Duration
	queue   func(since time.Time) time.Duration // that has stood on the path; 0: none
	// hush has the flow be silent until a queue of its own has drained; nil: it cannot.
	hush func(queue time.Duration, rate float64) (until time.Time, ok bool)
	// drained reports whether a round trip that began between two moments met no queue.
	drained func(from, until time.Time) bool
}

// look takes a look at the flow. It returns the number of lanes that it is to have, and what
// was found; nil: nothing yet.
func (t *tuner) look(s sight) (want int, found *known) {
	t.lanes = max(t.lanes, s.least)
	span := max(tuneFloor, tuneRounds*s.rtt)
	settling := span // their windows open
	if t.paused() || t.goal > 0 && t.seeks == 1 {
		settling += span // what the others were given leaves the host; all windows of a new flow open
	}
	if t.next > 0 {
		t.trying, t.next, t.asked, t.settled = t.next, 0, s.now, time.Time{}
		return t.trying, nil
	}
	if t.hush.runs(s, s.rtt) {
		t.began = time.Time{}
		return t.want(), nil
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
		t.began, t.each, t.looks, t.limited = s.now, s.each(), 0, 0
		return t.want(), nil
	}
	if t.looks++; s.limited {
		t.limited++
	}
	elapsed := s.now.Sub(t.began)
	if elapsed < span {
		return t.want(), nil
	}
	// What the flow gets in order comes in bursts where a lane lags.
	rates := ratesBetween(t.each, s.each(), elapsed)
	rate := rates.sum()
	if len(rates) == 0 { // all lanes have been lost since
		t.began = time.Time{}
		return t.want(), nil
	}
	limited := float64(t.limited) >= tuneLimited*float64(t.looks)
	queue := max(s.queue(t.began), t.hush.queue)
	t.began, t.hush.queue = time.Time{}, 0
	if queue > 0 && limited && (t.trying == 0 || t.paused()) {
		if t.hush.owns(s.now) {
			queue = 0
		} else if t.hush.begin(s, queue, rates) {
			return t.want(), nil
		}
	}
	switch {
	case t.verify != nil && !limited:
		return t.want(), nil // what the client sends says nothing of the lanes
	case t.verify != nil:
		return t.check(s, rates, queue)
	case t.trying > 0:
		return t.judge(s, rates, span, queue)
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

// try has the flow try more lanes.
func (t *tuner) try(s sight) int {
	t.trying, t.asked, t.settled = min(max(2*t.lanes, tuneFirst), maxLanes), s.now, time.Time{}
	t.why = fmt.Sprintf("trying %d lanes", t.trying)
	return t.trying
}

// pick picks lanes with links of their own, and returns how many: those that were picked
// before, and new ones that are as fast as one alone. Others may share a link of
// their own, which the sum shows, unless they share the main lane's.
func (t *tuner) pick(rates laneRates) (n int) {
	kept := min(max(t.kept, 1), len(rates))
	n = kept
	for _, l := range rates[kept:] {
		if l.rate >= tuneShare*t.rate {
			n++
		}
	}
	if rates[0].rate >= tuneShare*t.rate {
		n = max(n, min(int(rates.sum()/t.rate+0.5), len(rates)))
	}
	t.latest = rates.before(kept)
	return n
}

// sought ends a search.
func (t *tuner) sought(s sight, rates laneRates) (int, *known) {
	found := t.pick(rates)
	t.vain = found <= t.kept
	switch {
	case t.goal > 0 && (found >= t.goal || t.seeks > seekRounds):
		*t = tuner{lanes: t.goal, why: t.why, latest: t.latest, placed: true}
		return t.goal, nil
	case t.goal > 0:
		return t.seek(found, false), nil
	case t.sure && t.vain:
		return t.endSought(s)
	case !t.vain && found < maxLanes && t.seeks < seekRounds:
		return t.seek(found, false), nil
	}
	t.begin(s, found, nil, false)
	return t.want(), nil
}

// endSought ends the searches beside lanes that don't contend.
func (t *tuner) endSought(s sight) (int, *known) {
	t.why = fmt.Sprintf("%d lanes have links of their own, further ones have not", t.kept)
	return t.end(s, t.kept)
}

// place has the flow look for lanes with links of their own, of which the number is known.
func (t *tuner) place(k known, now time.Time) {
	t.placed, t.goal, t.kept, t.rate, t.seeks = true, k.lanes, 1, k.alone, 1
	t.trying, t.asked, t.settled = k.lanes, now, time.Time{}
}

// seek has new lanes take the place of all but some. These may have been verified.
func (t *tuner) seek(keep int, sure bool) int {
	t.seeks++
	t.sure = sure
	t.lanes, t.kept, t.verify = min(t.lanes, keep), keep, nil
	t.trying, t.next = keep, min(keep+seekMore, maxLanes)
	t.why = fmt.Sprintf("seeking further links beside %d lanes", keep)
	return t.trying
}

// judge ends an attempt.
func (t *tuner) judge(s sight, rates laneRates, span, queue time.Duration) (int, *known) {
	if rates[0].rate >= tuneShare*t.rate {
		t.rate = max(t.rate, rates[0].rate) // as the main lane shows beside the others
	} else {
		growth := 1.0 // had it gone on as before
		for since := s.now.Sub(t.asked); since > 0; since -= span {
			growth *= max(t.trend, 1)
		}
		t.rate *= min(growth, tuneGrowth*tuneGrowth)
	}
	t.trend, t.latest = 1, rates
	worth := rates.sum() / t.rate * float64(s.least) // lanes
	switch {
	case t.seeks > 0:
		return t.sought(s, rates)
	case worth >= tuneShare*float64(t.trying) && t.trying < tuneVerify && (queue == 0 || t.hush.owns(s.now)):
		t.lanes, t.kept, t.failed = t.trying, t.trying, false
		return t.try(s), nil
	case worth >= tuneShare*float64(t.trying):
		t.begin(s, t.trying, rates, queue > 0)
		return t.want(), nil
	case t.proved > s.least:
		t.why = fmt.Sprintf("%d lanes don't contend, and %d brought no more", t.proved, t.trying)
		return t.end(s, t.proved)
	case s.least > 1 || t.lanes > tuneFirst:
	case worth < tuneSome && (worth < tuneClear || !rates[1:].reach(tuneShare*t.rate)):
	case t.lanes > s.least && rates.even(): // one link is full
	default:
		if keep := t.pick(rates); keep > s.least {
			return t.seek(keep, false), nil
		}
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
	t.verify = &verification{lanes: lanes, before: rates, alone: rates != nil, fills: fills, sought: t.seeks > 0, differences: t.noise}
	t.lanes = min(t.lanes, lanes)
	t.trying, t.asked, t.settled = lanes, s.now, time.Time{}
	t.verify.expected = t.rate * float64(lanes) / float64(s.least)
	t.why = fmt.Sprintf("verifying %d lanes", lanes)
}

// check takes a measurement of the verification.
func (t *tuner) check(s sight, rates laneRates, queue time.Duration) (int, *known) {
	alone := t.verify.alone
	v, why := t.verify.take(rates, queue)
	if v == undecided {
		if t.verify.alone != alone {
			t.settled = s.now
		}
		return t.want(), nil
	}
	lanes := max(t.verify.remain(v), s.least)
	t.latest, t.noise = rates, t.verify.differences
	switch {
	case v == separate && t.seeks > 0 && t.seeks < seekMost && lanes < maxLanes:
		t.rate = t.verify.single
		t.proved = max(min(lanes, int(t.verify.meanWorth()+0.5)), s.least)
		if t.vain && t.proved == lanes {
			t.kept = lanes
			return t.endSought(s)
		}
		return t.seek(t.proved, true), nil // some share a link, or there are more
	case v == separate && t.seeks == 0 && lanes >= tuneVerify && lanes < maxLanes && t.proved == 0:
		t.lanes, t.proved, t.rate, t.trend, t.verify = lanes, lanes, t.verify.single, 1, nil
		return t.try(s), nil
	case v == separate:
	case lanes > s.least:
		t.begin(s, lanes, nil, t.verify.fills)
		return t.want(), nil
	case v != crowded && t.seeks > 0:
		lanes = max(lanes, t.proved)
	}
	t.why = why
	lanes, found := t.end(s, lanes)
	if v == crowded {
		found.until = s.now.Add(tuneCrowded)
	}
	return lanes, found
}

func (t *tuner) end(s sight, lanes int) (int, *known) {
	found := &known{lanes: lanes, at: s.now, until: s.now.Add(tuneMemory)}
	if t.seeks > 0 && lanes > s.least {
		found.alone = t.rate
	}
	*t = tuner{lanes: lanes, why: t.why, latest: t.latest, placed: true}
	return lanes, found
}
