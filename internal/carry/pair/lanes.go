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

// add gives the flow a lane. The caller holds f.mu, and has bound the lane.
func (ls *laneSet) add(l *lane, greet []byte, ready bool) *subflow {
	st := &subflow{l: l, greet: greet, ready: ready, since: stampNow()}
	ls.all = append(ls.all, st)
	if ls.flow().sf.In.Merges() {
		ls.pumpAll()
	}
	return st
}

// drop takes a lane from the flow. What nobody acknowledged of it goes over the others.
func (ls *laneSet) drop(st *subflow) {
	ls.end(st)
	ls.all = slices.DeleteFunc(ls.all, func(other *subflow) bool { return other == st })
	if len(ls.all) == 0 {
		ls.all = nil
		return
	}
	ls.flow().sf.Out.Lost(&st.sent)
	ls.feed() // also since another one may be the main lane now, and takes small messages
}

// dropAll takes all lanes from the flow.
func (ls *laneSet) dropAll() {
	for _, st := range ls.all {
		ls.end(st)
	}
	ls.all = nil
}

// end stops whoever sends on a lane that the flow gives up, and returns its memory.
func (ls *laneSet) end(st *subflow) {
	st.gone = true
	st.cond.broadcast()
	if st.further {
		st.further = false
		ls.flow().s.node.budget.Give(laneMemory)
	}
}

// takeMemory counts what a further lane takes.
func (ls *laneSet) takeMemory(st *subflow) {
	st.further = true
	ls.flow().s.node.budget.Force(laneMemory)
}

// pumpAll has each lane send by a goroutine of its own: from the second lane on none may
// wait for the room of another.
func (ls *laneSet) pumpAll() {
	for _, st := range ls.all {
		if !st.pumped {
			st.pumped = true
			ls.flow().s.node.tasks.Go(func() { ls.pump(st) })
		}
	}
}

// pump sends on one of the flow's lanes.
func (ls *laneSet) pump(st *subflow) {
	f := ls.flow()
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
func (ls *laneSet) awaitRoom(st *subflow) bool {
	f := ls.flow()
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

// send writes a lane's first frame, if that is due, and an item.
func (ls *laneSet) send(st *subflow, item stream.Item, some bool) {
	f := ls.flow()
	greet := st.greet
	st.greet, st.busy, st.roomAt = nil, true, stampNow()
	f.watch.toldSent = f.watch.toldSent && !some
	f.mu.Unlock()
	var next *stream.Item
	if some {
		next = &item
	}
	err := st.l.send(f, greet, next)
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

// join gives a near flow one more lane; nil: it could not be made. It reports false if the flow
// wants none. The caller holds f.mu.
func (sp *laneSpread) join(l *lane) bool {
	f := sp.flow()
	sp.joining--
	if l == nil || l.home != home(f.s) || !sp.joinable() || !l.bind(f) {
		return false
	}
	f.sf.In.Merge()
	st := f.lanes.add(l, wire.AppendJoin(nil, f.id, f.sf.In.Position()), false)
	st.attaching = true
	f.lanes.takeMemory(st)
	f.lanes.pumpAll()
	return true
}

// joinable reports whether lanes may join the flow now: both ends know its main lane.
func (sp *laneSpread) joinable() bool {
	f := sp.flow()
	return f.s.near && f.phase == phaseOpen && f.lanes.main() != nil && !f.lanes.all[0].attaching && !f.near.releasing && !f.near.releaseDue &&
		f.phase != phaseOver && !f.sf.Dead() && !f.sf.Clean() && f.s.knows(wire.FeatureLanes) && len(f.lanes.all) < int(sp.want) &&
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

// takePosition takes the other end's position, which a lane has brought.
func (ls *laneSet) takePosition(received uint64) {
	f := ls.flow()
	before, take := f.sf.Out.Acknowledged(), f.sf.Attach
	if f.sf.Out.Attached() {
		take = f.sf.Arrived
	}
	switch err := take(received); {
	case err != nil && f.s.noResume:
		f.abort(cause(flow.EndWANLost, errNoResume))
	case err != nil:
		f.abort(cause(flow.EndDamaged, fmt.Errorf("position %d of the other relay cannot be", received)))
	case f.sf.Out.Acknowledged() > before:
		f.watch.noteAck()
	}
}

// giveBack gives a near flow's lane back while the flow goes on with the others.
func (ls *laneSet) giveBack(st *subflow) {
	ls.drop(st)
	ls.flow().s.drain(ls.flow(), st.l)
}

// releaseFrom gives back all lanes but the first n.
func (ls *laneSet) releaseFrom(n int) {
	for len(ls.all) > n {
		ls.giveBack(ls.all[len(ls.all)-1])
	}
}

// attached takes the other end's position on a flow's only lane. The caller holds f.mu.
func (ls *laneSet) attached(received uint64) {
	f := ls.flow()
	ls.takePosition(received)
	f.watch.ackedAt = stampNow()
	if f.need.lost {
		f.need.lost = false
		f.need.resumes = max(f.need.resumes+1, f.need.resumes)
		f.s.resumes.Add(1)
	}
	f.wake()
	ls.feed()
}

// cannotDoWithout reports that a flow is cut with its lane: one of its ends may keep no copy of
// what the lane had.
func (f *Flow) cannotDoWithout(l *lane) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.s.noResume && f.lanes.has(l) && (f.sf.Out.AtRisk() || f.sf.In.Position() > 0)
}

// replace closes all lanes of the flow but for one that comes in their place; nil: none does.
func (ls *laneSet) replace(by *lane) {
	f := ls.flow()
	for _, st := range ls.all {
		if st.l != by {
			st.l.unbind(f)
			st.l.close()
			f.need.lost = true
		}
	}
	ls.dropAll()
	f.sf.Detach()
}

// leave gives the lanes back, or has them drained of what may still come.
func (ls *laneSet) leave() {
	f := ls.flow()
	left := ls.all
	if len(left) == 0 {
		return
	}
	f.near.releasing = false
	ls.dropAll()
	f.sf.Detach()
	f.cond.broadcast()
	for _, st := range left {
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
	f.lanes.lose(l)
}

// lose is laneLost for a caller that holds f.mu.
func (ls *laneSet) lose(l *lane) {
	f := ls.flow()
	st := ls.of(l)
	if st == nil {
		return
	}
	l.unbind(f)
	f.near.releasing, f.near.releaseDue = false, false
	if ls.drop(st); ls.main() != nil {
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
func (ls *laneSet) closeThose(meant func(*subflow) bool) (some bool) {
	for _, st := range slices.Clone(ls.all) {
		if !st.gone && meant(st) {
			some = true
			st.l.closeByReset()
			ls.lose(st.l)
		}
	}
	return some
}

// loseAll closes all lanes of the flow.
func (ls *laneSet) loseAll() { ls.closeThose(func(*subflow) bool { return true }) }

// packing decides which of the flow's records are worth compressing.
func (f *Flow) packing(begin bool) *compress.Policy {
	if begin && f.lanes.policy.Load() == nil {
		f.lanes.policy.CompareAndSwap(nil, new(compress.Policy))
	}
	return f.lanes.policy.Load()
}

// noteAck notes that the other end has more than before: a lane that carried that may have
// something to send now. The caller holds f.mu.
func (fw *flowWatch) noteAck() {
	f := fw.flow()
	fw.ackedAt = stampNow()
	for _, st := range f.lanes.all { // room may come with the next segment
		if st.roomAt != 0 {
			st.roomAt = fw.ackedAt
		}
	}
	f.lanes.feed()
}
