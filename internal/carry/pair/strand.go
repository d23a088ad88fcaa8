package pair

import (
	"fmt"
	"slices"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/compress"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

// A flow may have several lanes. The first one is its main lane: it began with OPEN or
// ATTACH, and small messages take it. Each further one has joined. What the flow sends is
// given to whichever lane has room; what it gets is put together by its offsets.

const (
	// maxLanes bounds the lanes of one flow.
	maxLanes = 16
	// maxSpill bounds the memory for bytes of one flow that came before their turn: as
	// much as the other end may have sent without an acknowledgement.
	maxSpill = limitMax
	// spread is the number of bytes from which on a flow's further lanes take some while
	// its main lane has nothing to do.
	spread = 64 << 10
)

// strand is a lane while a flow has it.
type strand struct {
	l         *lane
	sent      stream.Lane
	greet     []byte // OPEN or ATTACH that goes first
	attaching bool   // near: its ATTACH has no answer yet
	ready     bool   // bytes may follow: the other end knows that the flow has the lane
	gone      bool   // the flow has it no more
	leaving   bool   // another lane has taken its place: nothing more is to be sent on it
	pumped    bool   // a goroutine sends on it
	idle      bool   // that goroutine waits for data
	busy      bool   // a write is in progress, or waits for room
	further   bool   // its memory counts
	cond      cond   // of the flow's mu, for that goroutine
	since     stamp  // of its first frame, or of the answer
	paced     pace   // at the latest look
	unsent    int    // what the kernel takes beyond what it can send; 0: not bounded yet
	sentAt    stamp  // of the latest item that went out
	roomAt    stamp  // since when somebody writes on it or waits for its room; zero: nobody does
	// stuckAt is since when its reader has bytes that come before their turn, and no
	// memory for them, while the flow's position is stuckPos.
	stuckAt  stamp
	stuckPos uint64
	// delivered is what the other end's kernel had got at the last look of the window.
	delivered struct{ packets, mss uint32 }
}

// strand finds a lane among the flow's.
func (f *Flow) strand(l *lane) *strand {
	for _, st := range f.strands {
		if st.l == l {
			return st
		}
	}
	return nil
}

// has reports whether the flow has a lane. The caller holds f.mu.
func (f *Flow) has(l *lane) bool { return f.strand(l) != nil }

// addStrand gives the flow a lane. The caller holds f.mu, and has bound the lane.
func (f *Flow) addStrand(l *lane, greet []byte, ready bool) *strand {
	st := &strand{l: l, greet: greet, ready: ready, since: stampNow()}
	f.strands = append(f.strands, st)
	if f.sf.In.Merges() {
		f.pumpAll()
	}
	return st
}

// dropStrand takes a lane from the flow.
func (f *Flow) dropStrand(st *strand) {
	st.gone = true
	st.cond.broadcast()
	f.giveMemory(st)
	f.strands = slices.DeleteFunc(f.strands, func(other *strand) bool { return other == st })
	if len(f.strands) == 0 {
		f.strands = nil
		return
	}
	f.feed() // another one may be the main lane now, and takes small messages
}

// dropStrands takes all lanes from the flow.
func (f *Flow) dropStrands() {
	for _, st := range f.strands {
		st.gone = true
		st.cond.broadcast()
		f.giveMemory(st)
	}
	f.strands = nil
}

// takeMemory counts what a further lane takes.
func (f *Flow) takeMemory(st *strand) {
	st.further = true
	f.s.node.budget.Force(laneMemory)
}

func (f *Flow) giveMemory(st *strand) {
	if st.further {
		st.further = false
		f.s.node.budget.Give(laneMemory)
	}
}

// lane is the main lane; nil: there is none.
func (f *Flow) lane() *lane {
	if len(f.strands) == 0 {
		return nil
	}
	return f.strands[0].l
}

// attaching reports whether the main lane's ATTACH has no answer yet.
func (f *Flow) attaching() bool { return len(f.strands) > 0 && f.strands[0].attaching }

// blocked reports whether somebody writes to the main lane or waits for its room.
func (f *Flow) blocked() bool { return len(f.strands) > 0 && f.strands[0].busy }

// greeting reports whether the main lane's first frame has not gone out yet.
func (f *Flow) greeting() bool { return f.lane() != nil && f.strands[0].greet != nil }

// pumpAll has each lane send by a goroutine of its own: from the second lane on none may
// wait for the room of another.
func (f *Flow) pumpAll() {
	for _, st := range f.strands {
		if !st.pumped {
			st.pumped = true
			f.s.node.tasks.Go(func() { f.pump(st) })
		}
	}
}

// pump sends on one of the flow's lanes.
func (f *Flow) pump(st *strand) {
	defer st.l.bulk.pull()()
	f.mu.Lock()
	defer f.mu.Unlock()
	for !st.gone {
		if st.greet == nil && !f.mayTake(st) {
			st.idle = true
			st.cond.wait(&f.mu)
			st.idle = false
			continue
		}
		if st.greet == nil && !f.awaitRoom(st) {
			continue
		}
		var item stream.Item
		some := false
		if f.mayTake(st) {
			if !f.sf.Out.InFlight() {
				f.ackedAt = stampNow()
			}
			item, some = f.sf.Out.Next(&st.sent, st.pace().record())
		}
		f.feed() // another lane, if there is more
		f.sendOn(st, item, some)
	}
}

// awaitRoom waits until the lane has room for a record, and reports whether it is to have one.
// Meanwhile another lane may take what is next, and no buffer holds it.
func (f *Flow) awaitRoom(st *strand) bool {
	st.pace()
	st.boundUnsent()
	f.feed()
	st.busy, st.roomAt = true, stampNow()
	f.mu.Unlock()
	err := st.l.awaitRoom(f)
	f.mu.Lock()
	st.busy, st.roomAt = false, 0
	if err != nil && !st.gone {
		f.loseLane(st.l)
	}
	return !st.gone && (st.greet != nil || f.mayTake(st))
}

// sendOn writes a strand's first frame, if that is due, and an item. It reports whether the
// lane took them.
func (f *Flow) sendOn(st *strand, item stream.Item, some bool) {
	greet := st.greet
	st.greet, st.busy, st.roomAt = nil, true, stampNow()
	f.toldSent = f.toldSent && !some
	f.mu.Unlock()
	var err error
	if some {
		err = st.l.send(f, greet, &item)
	} else {
		err = st.l.send(f, greet, nil)
	}
	f.mu.Lock()
	st.busy, st.roomAt = false, 0
	f.sf.Out.Sent(item)
	switch {
	case err != nil && !st.gone:
		f.loseLane(st.l)
	case err == nil && some:
		f.moved = stampNow()
		st.sentAt = f.moved
	}
}

// mayTake reports whether a strand gets what is to be sent next. A small message waits for
// the first lane, unless that is busy, and a slow lane leaves a record to a faster one.
func (f *Flow) mayTake(st *strand) bool {
	if !st.ready || f.releasing || !f.sf.Out.Pending() {
		return false
	}
	if st != f.strands[0] && st.leaving {
		return false
	}
	main := f.firstStrand()
	if st != main && f.leavesRecord(st) {
		return false
	}
	return st == main || main.busy || !main.ready || f.sf.Out.Unsent() > spread
}

// feed wakes a goroutine that may send. The caller holds f.mu.
func (f *Flow) feed() {
	for _, st := range f.strands {
		if st.idle && f.mayTake(st) {
			st.idle = false
			st.cond.broadcast()
			return
		}
	}
}

// blockedLanes are those on which somebody waits for room.
func (f *Flow) blockedLanes() (all []*lane) {
	for _, st := range f.strands {
		if st.busy {
			all = append(all, st.l)
		}
	}
	return all
}

// join gives a near flow one more lane; nil: it could not be made. It reports false if the flow
// wants none. The caller holds f.mu.
func (f *Flow) join(l *lane) bool {
	f.joining--
	if l == nil || l.home != home(f.s) || !f.joinable() || !l.bind(f) {
		return false
	}
	f.sf.In.Merge(maxSpill)
	st := f.addStrand(l, wire.AppendJoin(nil, f.id, f.sf.In.Position()), false)
	st.attaching = true
	f.takeMemory(st)
	f.pumpAll()
	return true
}

// joinable reports whether lanes may join the flow now: both ends know its main lane.
func (f *Flow) joinable() bool {
	return f.s.near && f.phase == phaseOpen && f.lane() != nil && !f.strands[0].attaching && !f.releasing && !f.releaseDue &&
		f.phase != phaseOver && !f.sf.Dead() && !f.sf.Clean() && f.s.knows(wire.FeatureLanes) && len(f.strands) < f.wantLanes &&
		f.s.node.budget.fits(laneMemory, laneRoom)
}

// joined takes the far relay's answer on a lane that has joined. The caller holds f.mu.
func (f *Flow) joined(l *lane, received uint64) {
	st := f.strand(l)
	if st == nil {
		return
	}
	st.ready, st.attaching, st.since = true, false, stampNow()
	if err := f.sf.Arrived(received); err != nil {
		f.abort(cause(flow.EndDamaged, errPosition(received)))
	}
	f.feed()
}

// joinFar gives a far flow one more lane; received is the near relay's position.
func (f *Flow) joinFar(l *lane, received uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.phase == phaseOver || !f.s.knows(wire.FeatureLanes) || len(f.strands) >= maxLanes || f.has(l) || !l.bind(f) {
		l.close()
		return
	}
	f.sf.In.Merge(maxSpill)
	first := f.lane() == nil
	f.takeMemory(f.addStrand(l, wire.AppendJoin(nil, f.id, f.sf.In.Position()), true))
	f.pumpAll()
	if first {
		f.wokeAt = 0
		f.attached(received)
	} else if err := f.sf.Arrived(received); err != nil {
		f.abort(cause(flow.EndDamaged, errPosition(received)))
	}
	f.feed()
}

// releaseStrand gives a near flow's lane back while the flow goes on with the others. What
// nobody acknowledged goes over these.
func (f *Flow) releaseStrand(st *strand) {
	f.dropStrand(st)
	f.sf.Out.Lost(&st.sent)
	f.feed()
	f.s.drain(f, st.l)
}

// releaseFrom gives back all lanes but the first n.
func (f *Flow) releaseFrom(n int) {
	for len(f.strands) > n {
		f.releaseStrand(f.strands[len(f.strands)-1])
	}
}

// attached takes the other end's position. The caller holds f.mu.
func (f *Flow) attached(received uint64) {
	var err error
	if f.sf.Out.Attached() {
		err = f.sf.Arrived(received)
	} else {
		err = f.sf.Attach(received)
	}
	switch {
	case err != nil && f.s.noResume:
		f.abort(cause(flow.EndWANLost, errNoResume))
	case err != nil:
		f.abort(cause(flow.EndDamaged, errPosition(received)))
	}
	f.ackedAt = stampNow()
	if f.lost {
		f.lost = false
		f.resumes++
		f.s.resumes.Add(1)
	}
	f.wake()
	f.feed()
}

func errPosition(received uint64) error {
	return fmt.Errorf("position %d of the other relay cannot be", received)
}

// cannotDoWithout reports that a flow is cut with its lane: one of its ends may keep no copy of
// what the lane had.
func (f *Flow) cannotDoWithout(l *lane) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.s.noResume && f.has(l) && (f.sf.Out.AtRisk() || f.sf.In.Position() > 0)
}

// closeStrands closes all lanes of a flow that goes on without what they carried.
func (f *Flow) closeStrands() {
	for _, st := range f.strands {
		st.l.unbind(f)
		st.l.close()
	}
	f.dropStrands()
	f.sf.Detach()
}

// leaveLane gives the lanes back, or has them drained of what may still come.
func (f *Flow) leaveLane() {
	strands := f.strands
	if len(strands) == 0 {
		return
	}
	f.releasing = false
	f.dropStrands()
	f.sf.Detach()
	f.cond.broadcast()
	for _, st := range strands {
		l := st.l
		l.mu.Lock()
		l.settle() // the release may come after the end
		sawEnd := l.sawEnd || f.s.sealed() && f.sf.In.Complete(l.reached)
		reusable := sawEnd && f.sf.Clean() && !f.sf.In.Merges() // else something may follow the end
		l.mu.Unlock()
		switch {
		case !f.s.near:
			l.unbind(f)
		case reusable:
			l.unbind(f)
			f.s.takeBack(l)
		default:
			f.s.drain(f, l)
		}
	}
}

// laneLost takes the news that a lane has ended.
func (f *Flow) laneLost(l *lane) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.loseLane(l)
}

// loseLane is laneLost for a caller that holds f.mu.
func (f *Flow) loseLane(l *lane) {
	st := f.strand(l)
	if st == nil {
		return
	}
	l.unbind(f)
	f.releasing, f.releaseDue = false, false
	if f.dropStrand(st); f.lane() != nil {
		f.sf.Out.Lost(&st.sent)
		f.feed()
		f.wake()
		return
	}
	atRisk := f.sf.Out.AtRisk()
	f.sf.Detach()
	f.lost = !f.sf.Over() && !atRisk
	if atRisk {
		f.abort(cause(flow.EndWANLost, errNoResume))
	}
	f.wake()
}

// closeLanes closes the flow's lanes that are meant, by a reset, and reports whether there were any.
func (f *Flow) closeLanes(meant func(*strand) bool) (some bool) {
	for _, st := range slices.Clone(f.strands) {
		if !st.gone && meant(st) {
			some = true
			st.l.closeByReset()
			f.loseLane(st.l)
		}
	}
	return some
}

// loseLanes closes all lanes of the flow.
func (f *Flow) loseLanes() { f.closeLanes(func(*strand) bool { return true }) }

// packing decides which of the flow's records are worth compressing.
func (f *Flow) packing(begin bool) *compress.Policy {
	if begin && f.policy.Load() == nil {
		f.policy.CompareAndSwap(nil, new(compress.Policy))
	}
	return f.policy.Load()
}

// answeredAttach takes the far relay's answer to an ATTACH or a JOIN.
func (f *Flow) answeredAttach(l *lane, id, received uint64, join bool) {
	if f.id != id {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heard(l)
	switch {
	case join:
		f.joined(l, received)
	case f.lane() == l:
		st := f.strands[0]
		st.attaching, st.since, f.wokeAt = false, stampNow(), 0
		f.attached(received)
	}
}

// answeredRelease takes the far relay's answer to a RELEASE, and reports whether the lane is free.
func (f *Flow) answeredRelease(l *lane) (free bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lane() != l || !f.releasing {
		return false
	}
	f.releasing = false
	f.dropStrands()
	f.sf.Detach()
	l.unbind(f)
	f.wake()
	return true
}
