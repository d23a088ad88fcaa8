package relay

import "math"

// maxVisited bounds the flows of all loops for which one Sample queries the kernel. A query takes about 7 µs, and
// the monitor's part as long again.
const maxVisited = 250

// A flow waits for its visit by a Sample from the moment in which something happens to it. It is in one list, and
// the lists are in the order of arrival:
//
//	begins ─> new ─────── visited ──┐      ┌─ moves more than its part ─> busiest ─┐
//	                                ├─> in turn ─────────── visited ───────────────┤
//	rests ── something happens ─────┘      └──────────── not at rest ──────────────┘
//	  └────── at rest: all is acknowledged, and nothing has happened since the visit before ───┘
//
// The busiest have half of the visits. New flows are visited by the next Sample, whose figures are of all flows,
// but the kernel is queried about them only if there are visits left.
type visitList uint8

const (
	unlisted visitList = iota
	newFlows
	inTurn
	busiest
	visitLists
)

// visits are the flows of a loop that wait.
type visits struct {
	lists   [visitLists]struct{ first, last uint32 } // slots, counted from 1; 0: empty
	waiting int64                                    // flows in the lists
	pass    uint32                                   // counts the Samples, modulo 2^32
	moved   int64                                    // bytes of the loop's flows since the latest Sample
	part    uint32                                   // bytes at which a flow that waits is among the busiest
	room    int                                      // for them, until the next Sample
}

// link is a slot's place in a list.
type link struct {
	next, before uint32 // slots, counted from 1; 0: none
	since        uint32 // the latest Sample before the flow came to wait
}

// visit is what a flow has moved since its visit.
type visit struct {
	bytes   uint32 // at most 4 GiB
	movedIn uint16 // the latest Sample before it moved last, modulo 2^16
	moved   uint16 // times between two Samples in which it moved
}

// places are the visits that a loop has in one Sample.
type places struct {
	left     int
	reserved int // of these, for the busiest
}

// stir has a flow visited: something has happened to it.
func (w *worker) stir(f *flow) {
	if f.rests = false; f.listed == unlisted && f.phase != phaseGone {
		w.enlist(f, inTurn, w.visits.pass)
	}
}

// enlist puts a flow at the end of a list.
func (w *worker) enlist(f *flow, l visitList, since uint32) {
	f.listed = l
	w.visits.waiting++
	list, own, place := &w.visits.lists[l], f.slot+1, &w.slots[f.slot].link
	*place = link{before: list.last, since: since}
	if list.last != 0 {
		w.slots[list.last-1].next = own
	} else {
		list.first = own
	}
	list.last = own
}

// unlist takes a flow out of its list, if it is in one.
func (w *worker) unlist(f *flow) {
	if f.listed == unlisted {
		return
	}
	list, place := &w.visits.lists[f.listed], w.slots[f.slot].link
	if place.before != 0 {
		w.slots[place.before-1].next = place.next
	} else {
		list.first = place.next
	}
	if place.next != 0 {
		w.slots[place.next-1].before = place.before
	} else {
		list.last = place.before
	}
	f.listed = unlisted
	w.visits.waiting--
}

// count sets what a direction of a flow has moved, and counts what is new. It never falls: of a chain, or a client that
// was given back, one carrier counts after the other.
func (w *worker) count(f *flow, s side, bytes int64) {
	dir := &f.dirs[s]
	bytes = max(bytes, dir.bytes)
	more := max(0, bytes) - max(0, dir.bytes)
	if dir.bytes = bytes; more == 0 {
		return
	}
	w.sums.add(f.route.state, s, more)
	w.visits.moved += more
	v := &f.visit
	v.bytes = uint32(min(int64(v.bytes)+more, math.MaxUint32))
	if now := uint16(w.visits.pass); v.movedIn != now || v.moved == 0 {
		v.movedIn, v.moved = now, v.moved+1
	}
	if w.stir(f); f.listed == inTurn && v.bytes >= w.visits.part && w.visits.room > 0 {
		since := w.slots[f.slot].since
		w.visits.room--
		w.unlist(f)
		w.enlist(f, busiest, since)
	}
}

// share is the part of some places of a loop with n of the flows that wait, if others come after it. Each of
// these keeps a place, or its flows would never be visited beside a loop that has nearly all.
func share(places, others int, n, flows int64) int {
	if others == 0 || n >= flows {
		return places
	}
	return max(0, min(int((int64(places)*n+flows-1)/flows), places-others))
}

// beginVisits begins a Sample. The busiest have half of the places in the next one. They are flows that have moved
// their part of all bytes, of which each such flow has one: so of flows that go on as before, all find room.
func (w *worker) beginVisits(p *places) {
	v := &w.visits
	p.reserved, v.room = p.left/2, p.left/2
	v.pass++
	v.part = uint32(min(v.moved/int64(max(1, p.reserved))+1, math.MaxUint32))
	v.moved = 0
}

// nextVisit takes the flow that is to be visited next out of its list, and reports whether the kernel is to be
// queried about it; nil: all have been visited. A flow that came to wait after this Sample began waits for the next.
func (w *worker) nextVisit(p *places) (f *flow, query bool) {
	list := newFlows
	if p.left > 0 {
		busy := w.headOf(busiest) != nil
		switch {
		case busy && p.reserved > 0:
			p.reserved--
			list = busiest
		case w.headOf(inTurn) != nil:
			list = inTurn
		case busy:
			list = busiest
		}
	}
	if f = w.headOf(list); f == nil {
		return nil, false
	}
	if query = p.left > 0; query {
		p.left--
	}
	w.unlist(f)
	return f, query
}

// headOf is the first flow of a list, if it came to wait before this Sample; else nil.
func (w *worker) headOf(l visitList) *flow {
	first := w.visits.lists[l].first
	if first == 0 || w.slots[first-1].since == w.visits.pass {
		return nil
	}
	return w.slots[first-1].flow
}

// lag is for how many Samples the flow that has waited longest has waited.
func (w *worker) lag() (most int) {
	for l := newFlows; l < visitLists; l++ {
		for at := w.visits.lists[l].first; at != 0; at = w.slots[at-1].next {
			most = max(most, int(w.visits.pass-w.slots[at-1].since))
			if l != busiest { // these come from all over the others: half a Sample's places at most
				break
			}
		}
	}
	return most
}

// sums are the bytes that flows have moved in this turn of a loop, of the tunnel that did last. Loops add them
// to what all of them count at the end, since to add each time would keep the CPUs from each other.
type sums struct {
	of    *tunnelState
	bytes [2]int64
}

func (s *sums) add(st *tunnelState, dir side, bytes int64) {
	if s.of != st {
		s.flush()
		s.of = st
	}
	s.bytes[dir] += bytes
}

func (s *sums) flush() {
	for dir, n := range s.bytes {
		if n != 0 {
			s.of.moved[dir].Add(n)
		}
	}
	s.bytes = [2]int64{}
}

// addSums shows others what has moved in this turn so far.
func (w *worker) addSums() { w.sums.flush() }
