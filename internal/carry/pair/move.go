package pair

import (
	"cmp"
	"fmt"
	"slices"
	"time"
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

	// auto: lanes: auto found the lanes. It measures by itself, most often behind policers,
	// where rates fall now and then: so losses count as moves in vain.
	auto bool
}

// look takes a look at the flow, and returns the lanes that lag.
func (m *mover) look(s sight) []*lane {
	if m.tries >= moveTries && s.now.Sub(m.began) < moveRest {
		return nil
	} else if m.tries >= moveTries {
		*m = mover{auto: m.auto}
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
	limited := float64(m.limited) >= tuneLimited*float64(m.looks)
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
func (m *mover) judge(rates laneRates) (lag []*lane) {
	total, fastest := 0.0, 0.0
	for _, r := range rates {
		total, fastest = total+r.rate, max(fastest, r.rate)
	}
	switch {
	case total > moveGain*m.best:
		m.best, m.tries, m.lost = total, 0, 0
	case m.moved && total < moveLoss*m.best && m.lost < moveLosses && !m.auto:
		m.lost++
	case m.moved:
		m.tries++
	}
	m.moved = false
	if m.tries >= moveTries {
		return nil
	}
	slow := slices.DeleteFunc(rates[1:], func(r laneRate) bool { return r.rate >= moveShare*fastest })
	slices.SortFunc(slow, func(a, b laneRate) int { return cmp.Compare(a.rate, b.rate) })
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
func ratesBetween(then, now []laneBytes, elapsed time.Duration) (rates laneRates) {
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
	count   int  // of those that have moved
}

// moveLanes moves the lanes that lag. The caller has decided how many the flow is to have, and
// holds f.mu.
func (f *Flow) moveLanes(now time.Time) {
	if f.wantLanes < 2 {
		return
	}
	if f.auto == nil {
		f.auto = &auto{}
	}
	a := f.auto
	if f.tries() {
		for _, st := range f.strands {
			st.leaving = false
		}
		a.movers, a.moving = [2]mover{}, moving{count: a.moving.count} // it compares lanes itself
		return
	}
	a.moving.lanes = slices.DeleteFunc(a.moving.lanes, func(l *lane) bool { return !f.has(l) })
	if len(a.moving.lanes) == 0 {
		finds := f.s.link.options().AutoLanes
		for i, s := range f.sights(now) {
			if finds && a.tuners[i].want() < 2 {
				continue // this direction uses the main lane alone
			}
			a.movers[i].auto = finds
			if a.moving.lanes = a.movers[i].look(s); len(a.moving.lanes) > 0 {
				a.moving.since, a.moving.emptied = now, false
				break
			}
		}
	}
	f.moveOver(now)
}

// moveOver closes the lanes that lag once the others are there, and what was sent on them has
// arrived. A flow with all lanes that it may have loses them first. If no others come, they stay.
func (f *Flow) moveOver(now time.Time) {
	m := &f.auto.moving
	n := len(m.lanes)
	if n == 0 {
		return
	}
	waited := now.Sub(m.since)
	if !m.emptied {
		missing := f.readyStrands() < f.wantLanes+n && f.wantLanes+n <= maxLanes
		switch {
		case missing && waited > tunePatience:
			m.lanes = nil
			return
		case missing:
			f.wantLanes += n
			return
		}
		m.emptied, m.since, waited = true, now, 0
		for _, l := range m.lanes {
			f.strand(l).leaving = true
		}
	}
	if waited < moveEmptyWithin && slices.ContainsFunc(m.lanes, func(l *lane) bool { return f.sf.Out.Carries(&f.strand(l).sent) }) {
		f.wantLanes = min(f.wantLanes+n, maxLanes)
		return
	}
	if f.readyStrands() <= n { // the others are lost
		for _, l := range m.lanes {
			f.strand(l).leaving = false
		}
		m.lanes, m.emptied = nil, false
		return
	}
	for _, l := range m.lanes {
		l.retire()
		f.releaseStrand(f.strand(l))
	}
	m.lanes, m.emptied = nil, false
	m.count += n
}

// whyLanes says why the flow's lanes are as many as they are, and how many have moved.
func (f *Flow) whyLanes() string {
	if f.auto == nil || f.auto.moving.count == 0 {
		return f.why
	}
	return fmt.Sprintf("%s; %d moved to other ports", f.why, f.auto.moving.count)
}

// retire has the lane closed when it has been drained: the pool would give it out again.
func (l *lane) retire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.retired = true
}
