package pair

import (
	"slices"
	"time"

	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/tcpinfo"
)

// A flow that moves much has lanes on each usable path of its link; one that moves little has one.

// leavePath closes a lane whose path is lost. A flow that has moved of late gets another one
// at once: it may be the far relay that has bytes.
func (f *Flow) leavePath(l *lane) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.lanes.has(l) {
		return
	}
	l.closeByReset() // what the kernel has queued would come late
	f.lanes.lose(l)
	if f.lanes.main() == nil && f.phase.known() && !f.near.queued && f.phase != phaseOver && f.moved.since() < stripePause {
		f.near.wanted = true
		f.s.link.want(f)
	}
}

// overPaths gives a near flow of a link with several paths its lanes: the same number on each
// usable path if it moves much. Lanes on a path that is not to be used any more go once there
// are others.
func (sp *laneSpread) overPaths(large bool) {
	f := sp.flow()
	paths := f.s.paths.usable()
	if len(paths) == 0 || f.lanes.main() == nil {
		return
	}
	shares := sp.shares(paths, large)
	lacking, missing := false, 0
	for _, s := range shares {
		lacking = lacking || s.ready < s.want
		missing += max(s.want-s.have, 0)
	}
	sp.want = int32(len(f.lanes.all) + missing)
	for _, s := range shares {
		for n := s.have; n < s.want && int(sp.joining) < missing && sp.joinable(); n++ {
			f.s.link.wantMore(f, s.path)
		}
	}
	if lacking {
		return
	}
	for i := len(f.lanes.all) - 1; i >= 0; i-- {
		st := f.lanes.all[i]
		k := slices.IndexFunc(shares, func(s share) bool { return s.path == st.l.path })
		switch {
		case k < 0:
			f.lanes.giveBack(st)
		case shares[k].have > shares[k].want:
			shares[k].have--
			f.lanes.giveBack(st)
		}
	}
}

// share is what a path is to have of a flow's lanes, and has.
type share struct {
	path              *wanPath
	want, have, ready int
}

// shares divides the flow's lanes. One that moves little stays where it is, if it may.
func (sp *laneSpread) shares(paths []*wanPath, large bool) []share {
	f := sp.flow()
	all := make([]share, len(paths))
	for i, p := range paths {
		all[i].path = p
	}
	stays := -1
	for _, st := range f.lanes.all {
		if i := slices.Index(paths, st.l.path); i >= 0 {
			all[i].have++
			all[i].ready += btoi(st.ready)
			if stays < 0 && st.ready {
				stays = i
			}
		}
	}
	if stays < 0 {
		stays = max(slices.Index(paths, f.s.paths.best()), 0)
	}
	n := max(int(sp.want), len(paths))
	for i := range all {
		if all[i].want = btoi(i == stays); large {
			all[i].want = n/len(paths) + btoi(i < n%len(paths))
		}
	}
	return all
}

// adjust gives a near flow the number of lanes that it should have. A far one tells
// that it could use more.
func (sp *laneSpread) adjust(now time.Time) {
	f := sp.flow()
	moved := f.sf.Out.Length() + f.sf.In.Position()
	if f.lanes.main() == nil || f.moved.until(now) > stripePause {
		sp.burstFrom, sp.mix = moved, nil
	}
	sp.measure()
	sp.noteShort(now)
	if sp.mix != nil && f.sf.Out.Limit() > limitStart {
		sp.setWindow()
	}
	sp.want = 1
	large := f.lanes.main() != nil && f.s.knows(wire.FeatureLanes) && moved-sp.burstFrom >= f.s.node.options.StripeAfter
	if !f.s.near {
		if large && sp.lanesFull() {
			f.s.offer(wire.Message{Type: wire.MessageLimited, Flow: f.id})
		}
		return
	}
	if large {
		sp.want = int32(min(max(f.s.link.options().Lanes, 1), maxLanes))
	}
	switch {
	case f.s.paths.several():
		sp.overPaths(large)
	default:
		sp.moveLanes(now)
		f.lanes.releaseFrom(max(int(sp.want), 1))
		for sp.joinable() && int32(len(f.lanes.all))+sp.joining < sp.want {
			f.s.link.wantMore(f, f.s.paths.best())
		}
	}
	if large && len(f.lanes.all) > 1 && !sp.moves() {
		sp.keepAsMany(now)
	}
}

// noteShort notes that memory alone holds the flow up: its lanes have sent all that it may keep, or bring
// what it has no room for before its turn.
func (sp *laneSpread) noteShort(now time.Time) {
	all := sp.flow().lanes.all
	lacks := sp.flow().sf.Out.Short() && !slices.ContainsFunc(all, func(st *subflow) bool { return st.pace().queued > 0 })
	if lacks || slices.ContainsFunc(all, func(st *subflow) bool { return !st.stuckAt.IsZero() }) {
		sp.mixed().shortAt = stampOf(now)
	}
}

// memoryLimited reports that memory has held the flow up of late.
func (sp *laneSpread) memoryLimited() bool {
	return sp.mix != nil && !sp.mix.shortAt.IsZero() && sp.mix.shortAt.since() < max(shortFor, 2*sp.flow().s.rtt())
}

// shortFor is how long a look that found too little memory counts: the relay's figures are taken each
// second.
const shortFor = 2 * time.Second

// stripePause is the silence after which a flow has to move StripeAfter bytes again before
// it gets more than one lane.
const stripePause = 2 * time.Second

// farLacksRoom reports that the far relay has said of late that it lacks room on the lanes.
func (sp *laneSpread) farLacksRoom(now time.Time) bool {
	return sp.mix != nil && !sp.mix.farLimited.IsZero() && sp.mix.farLimited.until(now) < limitedFor
}

// limitedFor is how long the far relay's word that it lacks room counts. It repeats it at each tick.
const limitedFor = 3 * tickEvery

// moveLanes moves the lanes that lag. The caller has decided how many the flow is to have, and
// holds f.mu.
func (sp *laneSpread) moveLanes(now time.Time) {
	f := sp.flow()
	if sp.want < 2 {
		return
	}
	m := sp.mixed()
	m.moving.lanes = slices.DeleteFunc(m.moving.lanes, func(l *lane) bool { return !f.lanes.has(l) })
	for i, s := range [...]sight{
		{now, sp.acknowledgedEach, sp.lanesFull(), f.s.rtt()},
		{now, sp.receivedEach, sp.farLacksRoom(now), f.s.rtt()},
	} {
		if sp.moves() {
			break
		}
		m.moving = moving{lanes: m.movers[i].look(s), since: now}
	}
	sp.moveOver(now)
}

// moves reports whether lanes are to be replaced.
func (sp *laneSpread) moves() bool { return sp.mix != nil && len(sp.mix.moving.lanes) > 0 }

// moveOver closes the lanes that lag once the others are there, and what was sent on them has
// arrived. A flow with all lanes that it may have loses them first. If no others come, they stay.
func (sp *laneSpread) moveOver(now time.Time) {
	f := sp.flow()
	m := &sp.mix.moving
	n := len(m.lanes)
	if n == 0 {
		return
	}
	waited := now.Sub(m.since)
	if !m.emptied {
		missing := sp.ready() < int(sp.want)+n && int(sp.want)+n <= maxLanes
		switch {
		case missing && waited > movePatience:
			m.lanes = nil
			return
		case missing:
			sp.want += int32(n)
			return
		}
		m.emptied, m.since, waited = true, now, 0
		for _, l := range m.lanes {
			f.lanes.of(l).leaving = true
		}
	}
	if waited < moveEmptyWithin && slices.ContainsFunc(m.lanes, func(l *lane) bool { return f.sf.Out.Carries(&f.lanes.of(l).sent) }) {
		sp.want = min(sp.want+int32(n), maxLanes)
		return
	}
	if sp.ready() <= n { // the others are lost
		for _, l := range m.lanes {
			f.lanes.of(l).leaving = false
		}
		m.lanes, m.emptied = nil, false
		return
	}
	for _, l := range m.lanes {
		l.retire()
		f.lanes.giveBack(f.lanes.of(l))
	}
	m.lanes, m.emptied = nil, false
}

// acknowledgedEach is what the other end has got of each lane.
func (sp *laneSpread) acknowledgedEach() []laneBytes {
	return sp.carried(func(i *tcpinfo.Info) uint64 { return i.BytesAcked })
}

// receivedEach is what has come on each lane.
func (sp *laneSpread) receivedEach() []laneBytes {
	return sp.carried(func(i *tcpinfo.Info) uint64 { return i.BytesReceived })
}

func (sp *laneSpread) carried(of func(*tcpinfo.Info) uint64) (each []laneBytes) {
	for _, st := range sp.flow().lanes.all {
		if !st.ready {
			continue
		}
		kernelSays(st.l.bulk, func(i *tcpinfo.Info) bool {
			each = append(each, laneBytes{st.l, of(i)})
			return true
		})
	}
	return each
}

// lanesFull reports that the flow has bytes to send and that its lanes have no room for them,
// as the path limits them and not the other end's reading.
func (sp *laneSpread) lanesFull() bool {
	f := sp.flow()
	return sp.lanesBusy() && !f.lanes.main().tuned.since(f.lanes.main().bulk)
}

// lanesBusy reports that the flow has bytes to send and that its lanes have no room for them.
func (sp *laneSpread) lanesBusy() bool {
	f := sp.flow()
	if f.lanes.main() == nil || !f.sf.Out.Pending() && !(f.leg.readable && f.sf.Hungry()) {
		return false
	}
	return !slices.ContainsFunc(f.lanes.all, func(st *subflow) bool { return st.ready && !sp.hasEnough(st) })
}

// hasEnough reports that a lane has no room, or with the whole window as much as it can send.
func (sp *laneSpread) hasEnough(st *subflow) bool {
	return st.busy || sp.flow().sf.Out.Starved() && st.pace().queued > 0
}

// keepAsMany has the pool keep the lanes that the flow has now when it has ended.
func (sp *laneSpread) keepAsMany(now time.Time) {
	lanes := map[*wanPath]int{}
	for _, st := range sp.flow().lanes.all {
		lanes[st.l.path]++
	}
	for p, n := range lanes {
		p.keepAsMany(n, now)
	}
}

// ready is the number of lanes that may carry bytes.
func (sp *laneSpread) ready() (n int) {
	for _, st := range sp.flow().lanes.all {
		n += btoi(st.ready)
	}
	return n
}
