package pair

import (
	"cmp"
	"slices"
	"time"

	"longhaul/internal/words/sorted"
)

// A path may keep each connection on one of several links, by a hash of its addresses and
// ports. Lanes on the same link share it, while another one may carry none of them. So a lane
// that lags behind the fastest one moves: a new lane joins, from another port and so perhaps
// on another link, and the slow one is closed. A lane with a link of its own is a fast one,
// and stays.
const (
	// moveFloor bounds the time for which lanes are compared from below; so does
	// moveRounds, in round trips.
	moveFloor  = time.Second
	moveRounds = 8
	// moveShare is the share of the fastest lane's rate below which one lags.
	moveShare = 0.7
	// moveAtOnce is the share of lanes that move at once, one of so many.
	moveAtOnce = 4
	// moveGain is what the flow's rate has to rise by for a move to count as a gain.
	moveGain = 1.05
	// moveTries is the number of moves without gain after which lanes rest. After one with a
	// rate below moveLoss of the highest, the last lanes of a link have probably moved: moveLosses
	// of these do not count.
	moveTries  = 4
	moveLoss   = 0.85
	moveLosses = 8
	moveRest   = 5 * time.Minute
	// moveLimited is the share of looks at which a flow must lack room on its lanes.
	moveLimited = 0.6
	// movePatience bounds the wait for the lanes that are to join.
	movePatience = 5 * time.Second
	// moveEmptyWithin bounds the wait for what was sent on a lane that is to be closed.
	moveEmptyWithin = 2 * time.Second
)

// mover finds the lanes of a flow, in one direction, that should move.
type mover struct {
	began   time.Time // of the measurement that runs; zero: none
	each    []laneBytes
	looks   int
	limited int

	slow  []*lane // that lagged in the measurement before
	best  float64 // the highest rate so far, bytes a second of all lanes
	moved bool    // lanes have moved since the measurement before
	tries int     // in vain
	lost  int     // moves that lost a link
}

// sight is what a mover looks at, of one direction.
type sight struct {
	now     time.Time
	each    func() []laneBytes // that the other end has got on each lane, the main one first
	limited bool               // the lanes have no room for what there is to send
	rtt     time.Duration
}

// laneBytes is what one lane has carried in a direction.
type laneBytes struct {
	of    *lane
	bytes uint64
}

// laneRate is bytes a second of one lane over one measurement.
type laneRate struct {
	of   *lane
	rate float64
}

// look takes a look at the flow, and returns the lanes that lag.
func (m *mover) look(s sight) []*lane {
	if m.tries >= moveTries && s.now.Sub(m.began) < moveRest {
		return nil
	} else if m.tries >= moveTries {
		*m = mover{}
	}
	if m.began.IsZero() {
		m.begin(s.now, s.each())
		return nil
	}
	if m.looks++; s.limited {
		m.limited++
	}
	elapsed := s.now.Sub(m.began)
	if elapsed < max(moveFloor, moveRounds*s.rtt) {
		return nil
	}
	now, then := s.each(), m.each
	limited := float64(m.limited) >= moveLimited*float64(m.looks)
	m.begin(s.now, now)
	rates := ratesBetween(then, now, elapsed)
	if !limited || len(rates) < len(now) || len(rates) < 2 { // a new lane's window opens
		return nil
	}
	return m.judge(rates)
}

func (m *mover) begin(now time.Time, each []laneBytes) {
	m.began, m.each, m.looks, m.limited = now, each, 0, 0
}

// judge returns the lanes that lag for the second time, the slowest ones first: behind a policer
// each is slower now and then. The main lane stays.
func (m *mover) judge(rates []laneRate) (lag []*lane) {
	total, fastest := 0.0, 0.0
	for _, r := range rates {
		total, fastest = total+r.rate, max(fastest, r.rate)
	}
	switch {
	case total > moveGain*m.best:
		m.best, m.tries, m.lost = total, 0, 0
	case m.moved && total < moveLoss*m.best && m.lost < moveLosses:
		m.lost++
	case m.moved:
		m.tries++
	}
	m.moved = false
	if m.tries >= moveTries {
		return nil
	}
	slow := slices.DeleteFunc(rates[1:], func(r laneRate) bool { return r.rate >= moveShare*fastest })
	sorted.By(slow, func(a, b laneRate) int { return cmp.Compare(a.rate, b.rate) })
	before := m.slow
	m.slow = nil
	for _, r := range slow {
		m.slow = append(m.slow, r.of)
		if slices.Contains(before, r.of) && len(lag) < max(1, len(rates)/moveAtOnce) {
			lag = append(lag, r.of)
		}
	}
	m.moved = len(lag) > 0
	return lag
}

// ratesBetween are the rates of the lanes that the flow had then and has now.
func ratesBetween(then, now []laneBytes, elapsed time.Duration) (rates []laneRate) {
	for _, n := range now {
		for _, was := range then {
			if was.of == n.of {
				rates = append(rates, laneRate{n.of, float64(n.bytes-was.bytes) / elapsed.Seconds()})
			}
		}
	}
	return rates
}

// moving are the lanes of a flow that others are to replace.
type moving struct {
	lanes   []*lane
	since   time.Time
	emptied bool // the others are there: nothing more is sent on these
}
