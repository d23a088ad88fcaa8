package pair

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

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

func errPosition(received uint64) error {
	return fmt.Errorf("position %d of the other relay cannot be", received)
}

// cannotDoWithout reports that a flow is cut with its lane: one of its ends may keep no copy of
// what the lane had.
func (f *Flow) cannotDoWithout(l *lane) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.s.noResume && f.lanes.has(l) && (f.sf.Out.AtRisk() || f.sf.In.Position() > 0)
}

// laneLost takes the news that a lane has ended.
func (f *Flow) laneLost(l *lane) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lanes.lose(l)
}

// packing decides which of the flow's records are worth compressing.
func (f *Flow) packing(begin bool) *compress.Policy {
	if begin && f.lanes.policy.Load() == nil {
		f.lanes.policy.CompareAndSwap(nil, new(compress.Policy))
	}
	return f.lanes.policy.Load()
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
		f.lanes.joined(l, received)
	case f.lanes.main() == l:
		st := f.lanes.strands[0]
		st.attaching, st.since, f.need.wokeAt = false, stampNow(), 0
		f.lanes.attached(received)
	}
}

// answeredRelease takes the far relay's answer to a RELEASE, and reports whether the lane is free.
func (f *Flow) answeredRelease(l *lane) (free bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lanes.main() != l || !f.near.releasing {
		return false
	}
	f.near.releasing = false
	f.lanes.dropAll()
	f.sf.Detach()
	l.unbind(f)
	f.wake()
	return true
}

// laneSet are the lanes of a flow.
type laneSet struct {
	f       *Flow
	strands []*strand                       // the main one first
	counted sentOver                        // of lanes that it has left
	policy  atomic.Pointer[compress.Policy] // of what it sends; nil: it has sent nothing that may be compressed
}

// of finds a lane among the flow's.
func (ls *laneSet) of(l *lane) *strand {
	for _, st := range ls.strands {
		if st.l == l {
			return st
		}
	}
	return nil
}

// has reports whether the flow has a lane. The caller holds f.mu.
func (ls *laneSet) has(l *lane) bool { return ls.of(l) != nil }

// add gives the flow a lane. The caller holds f.mu, and has bound the lane.
func (ls *laneSet) add(l *lane, greet []byte, ready bool) *strand {
	st := &strand{l: l, greet: greet, ready: ready, since: stampNow()}
	ls.strands = append(ls.strands, st)
	if ls.f.sf.In.Merges() {
		ls.pumpAll()
	}
	return st
}

// drop takes a lane from the flow.
func (ls *laneSet) drop(st *strand) {
	st.gone = true
	st.cond.broadcast()
	ls.giveMemory(st)
	ls.strands = slices.DeleteFunc(ls.strands, func(other *strand) bool { return other == st })
	if len(ls.strands) == 0 {
		ls.strands = nil
		return
	}
	ls.feed() // another one may be the main lane now, and takes small messages
}

// dropAll takes all lanes from the flow.
func (ls *laneSet) dropAll() {
	for _, st := range ls.strands {
		st.gone = true
		st.cond.broadcast()
		ls.giveMemory(st)
	}
	ls.strands = nil
}

// takeMemory counts what a further lane takes.
func (ls *laneSet) takeMemory(st *strand) {
	st.further = true
	ls.f.s.node.budget.Force(laneMemory)
}

func (ls *laneSet) giveMemory(st *strand) {
	if st.further {
		st.further = false
		ls.f.s.node.budget.Give(laneMemory)
	}
}

// main is the main lane; nil: there is none.
func (ls *laneSet) main() *lane {
	if len(ls.strands) == 0 {
		return nil
	}
	return ls.strands[0].l
}

// attaching reports whether the main lane's ATTACH has no answer yet.
func (ls *laneSet) attaching() bool { return len(ls.strands) > 0 && ls.strands[0].attaching }

// blocked reports whether somebody writes to the main lane or waits for its room.
func (ls *laneSet) blocked() bool { return len(ls.strands) > 0 && ls.strands[0].busy }

// greeting reports whether the main lane's first frame has not gone out yet.
func (ls *laneSet) greeting() bool { return ls.main() != nil && ls.strands[0].greet != nil }

// pumpAll has each lane send by a goroutine of its own: from the second lane on none may
// wait for the room of another.
func (ls *laneSet) pumpAll() {
	for _, st := range ls.strands {
		if !st.pumped {
			st.pumped = true
			ls.f.s.node.tasks.Go(func() { ls.pump(st) })
		}
	}
}

// pump sends on one of the flow's lanes.
func (ls *laneSet) pump(st *strand) {
	f := ls.f
	defer st.l.bulk.pull()()
	f.mu.Lock()
	defer f.mu.Unlock()
	for !st.gone {
		if st.greet == nil && !ls.mayTake(st) {
			st.idle = true
			st.cond.wait(&f.mu)
			st.idle = false
			continue
		}
		if st.greet == nil && !ls.awaitRoom(st) {
			continue
		}
		var item stream.Item
		some := false
		if ls.mayTake(st) {
			if !f.sf.Out.InFlight() {
				f.watch.ackedAt = stampNow()
			}
			item, some = f.sf.Out.Next(&st.sent, st.pace().record())
		}
		ls.feed() // another lane, if there is more
		ls.send(st, item, some)
	}
}

// awaitRoom waits until the lane has room for a record, and reports whether it is to have one.
// Meanwhile another lane may take what is next, and no buffer holds it.
func (ls *laneSet) awaitRoom(st *strand) bool {
	f := ls.f
	st.pace()
	st.boundUnsent()
	ls.feed()
	st.busy, st.roomAt = true, stampNow()
	f.mu.Unlock()
	err := st.l.awaitRoom(f)
	f.mu.Lock()
	st.busy, st.roomAt = false, 0
	if err != nil && !st.gone {
		ls.lose(st.l)
	}
	return !st.gone && (st.greet != nil || ls.mayTake(st))
}

// send writes a strand's first frame, if that is due, and an item. It reports whether the
// lane took them.
func (ls *laneSet) send(st *strand, item stream.Item, some bool) {
	f := ls.f
	greet := st.greet
	st.greet, st.busy, st.roomAt = nil, true, stampNow()
	f.watch.toldSent = f.watch.toldSent && !some
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
		ls.lose(st.l)
	case err == nil && some:
		f.moved = stampNow()
		st.sentAt = f.moved
	}
}

// mayTake reports whether a strand gets what is to be sent next. A small message waits for
// the first lane, unless that is busy, and a slow lane leaves a record to a faster one.
func (ls *laneSet) mayTake(st *strand) bool {
	f := ls.f
	if !st.ready || f.near.releasing || !f.sf.Out.Pending() {
		return false
	}
	if st != ls.strands[0] && st.leaving {
		return false
	}
	main := f.spread.quickest()
	if st != main && f.spread.leavesRecord(st) {
		return false
	}
	return st == main || main.busy || !main.ready || f.sf.Out.Unsent() > spread
}

// feed wakes a goroutine that may send. The caller holds f.mu.
func (ls *laneSet) feed() {
	for _, st := range ls.strands {
		if st.idle && ls.mayTake(st) {
			st.idle = false
			st.cond.broadcast()
			return
		}
	}
}

// blockedLanes are those on which somebody waits for room.
func (ls *laneSet) blockedLanes() (all []*lane) {
	for _, st := range ls.strands {
		if st.busy {
			all = append(all, st.l)
		}
	}
	return all
}

// join gives a near flow one more lane; nil: it could not be made. It reports false if the flow
// wants none. The caller holds f.mu.
func (sp *laneSpread) join(l *lane) bool {
	f := sp.f
	sp.joining--
	if l == nil || l.home != home(f.s) || !sp.joinable() || !l.bind(f) {
		return false
	}
	f.sf.In.Merge(maxSpill)
	st := f.lanes.add(l, wire.AppendJoin(nil, f.id, f.sf.In.Position()), false)
	st.attaching = true
	f.lanes.takeMemory(st)
	f.lanes.pumpAll()
	return true
}

// joinable reports whether lanes may join the flow now: both ends know its main lane.
func (sp *laneSpread) joinable() bool {
	f := sp.f
	return f.s.near && f.phase == phaseOpen && f.lanes.main() != nil && !f.lanes.strands[0].attaching && !f.near.releasing && !f.near.releaseDue &&
		f.phase != phaseOver && !f.sf.Dead() && !f.sf.Clean() && f.s.knows(wire.FeatureLanes) && len(f.lanes.strands) < int(sp.want) &&
		f.s.node.budget.fits(laneMemory, laneRoom)
}

// joined takes the far relay's answer on a lane that has joined. The caller holds f.mu.
func (ls *laneSet) joined(l *lane, received uint64) {
	st := ls.of(l)
	if st == nil {
		return
	}
	st.ready, st.attaching, st.since = true, false, stampNow()
	ls.takePosition(received)
	ls.feed()
}

// takePosition takes the other end's position, which a lane that joins has brought.
func (ls *laneSet) takePosition(received uint64) {
	f := ls.f
	before := f.sf.Out.Acknowledged()
	if err := f.sf.Arrived(received); err != nil {
		f.abort(cause(flow.EndDamaged, errPosition(received)))
	} else if f.sf.Out.Acknowledged() > before {
		f.watch.noteAck()
	}
}

// join gives a far flow one more lane; received is the near relay's position.
func (fr *farPart) join(l *lane, received uint64) {
	f := fr.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.phase == phaseOver || !f.s.knows(wire.FeatureLanes) || len(f.lanes.strands) >= maxLanes || f.lanes.has(l) || !l.bind(f) {
		l.close()
		return
	}
	f.sf.In.Merge(maxSpill)
	first := f.lanes.main() == nil
	f.lanes.takeMemory(f.lanes.add(l, wire.AppendJoin(nil, f.id, f.sf.In.Position()), true))
	f.lanes.pumpAll()
	if first {
		f.need.wokeAt = 0
		f.lanes.attached(received)
	} else {
		f.lanes.takePosition(received)
	}
	f.lanes.feed()
}

// giveBack gives a near flow's lane back while the flow goes on with the others. What
// nobody acknowledged goes over these.
func (ls *laneSet) giveBack(st *strand) {
	f := ls.f
	ls.drop(st)
	f.sf.Out.Lost(&st.sent)
	ls.feed()
	f.s.drain(f, st.l)
}

// releaseFrom gives back all lanes but the first n.
func (ls *laneSet) releaseFrom(n int) {
	for len(ls.strands) > n {
		ls.giveBack(ls.strands[len(ls.strands)-1])
	}
}

// attached takes the other end's position. The caller holds f.mu.
func (ls *laneSet) attached(received uint64) {
	f := ls.f
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
	f.watch.ackedAt = stampNow()
	if f.need.lost {
		f.need.lost = false
		f.need.resumes++
		f.s.resumes.Add(1)
	}
	f.wake()
	ls.feed()
}

// closeAll closes all lanes of a flow that goes on without what they carried.
func (ls *laneSet) closeAll() {
	f := ls.f
	for _, st := range ls.strands {
		st.l.unbind(f)
		st.l.close()
	}
	ls.dropAll()
	f.sf.Detach()
}

// leave gives the lanes back, or has them drained of what may still come.
func (ls *laneSet) leave() {
	f := ls.f
	strands := ls.strands
	if len(strands) == 0 {
		return
	}
	if f.s.near && len(strands) > 1 {
		f.spread.keepAsMany(time.Now())
	}
	f.near.releasing = false
	ls.dropAll()
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

// lose is laneLost for a caller that holds f.mu.
func (ls *laneSet) lose(l *lane) {
	f := ls.f
	st := ls.of(l)
	if st == nil {
		return
	}
	l.unbind(f)
	f.near.releasing, f.near.releaseDue = false, false
	if ls.drop(st); ls.main() != nil {
		f.sf.Out.Lost(&st.sent)
		ls.feed()
		f.wake()
		return
	}
	atRisk := f.sf.Out.AtRisk()
	f.sf.Detach()
	f.need.lost = !f.sf.Over() && !atRisk
	if atRisk {
		f.abort(cause(flow.EndWANLost, errNoResume))
	}
	f.wake()
}

// closeThose closes the flow's lanes that are meant, by a reset, and reports whether there were any.
func (ls *laneSet) closeThose(meant func(*strand) bool) (some bool) {
	for _, st := range slices.Clone(ls.strands) {
		if !st.gone && meant(st) {
			some = true
			st.l.closeByReset()
			ls.lose(st.l)
		}
	}
	return some
}

// loseAll closes all lanes of the flow.
func (ls *laneSet) loseAll() { ls.closeThose(func(*strand) bool { return true }) }
