package pair

import (
	"slices"
	"time"

	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/socket"
)

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

// share is what a path is to have of a flow's lanes, and has.
type share struct {
	path              *wanPath
	want, have, ready int
}

// stripePause is the silence after which a flow has to move StripeAfter bytes again before
// it gets more than one lane.
const stripePause = 2 * time.Second

// mix is what a flow that moves knows of its lanes together. A parked flow has none.
type mix struct {
	quickest   *strand // which gets what is little; nil: the main one
	uneven     bool    // the lanes differ much in delay
	window     window
	farLimited stamp // near: the far relay's latest word that it lacks room on the lanes
	movers     [2]mover
	moving     moving
}

// limitedFor is how long the far relay's word that it lacks room counts. It repeats it at each tick.
const limitedFor = 3 * tickEvery

// A flow that moves much has lanes on each usable path of its link; one that moves little has one.

// laneSpread is what decides how many lanes a flow is to have, and which.
type laneSpread struct {
	f         *Flow
	want      int32  // near: so many lanes are to carry the flow
	joining   int32  // near: lanes that are on their way to it
	burstFrom uint64 // what had been moved, both ways, when it last began to move
	mix       *mix   // what is known of several lanes; nil: nothing
}

// overPaths gives a near flow of a link with several paths its lanes: the same number on each
// usable path if it moves much. Lanes on a path that is not to be used any more go once there
// are others.
func (sp *laneSpread) overPaths(large bool) {
	f := sp.f
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
	sp.want = int32(len(f.lanes.strands) + missing)
	for _, s := range shares {
		for n := s.have; n < s.want && int(sp.joining) < missing && sp.joinable(); n++ {
			f.s.link.wantMore(f, s.path)
		}
	}
	if lacking {
		return
	}
	for i := len(f.lanes.strands) - 1; i >= 0; i-- {
		st := f.lanes.strands[i]
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

// shares divides the flow's lanes. One that moves little stays where it is, if it may.
func (sp *laneSpread) shares(paths []*wanPath, large bool) []share {
	f := sp.f
	all := make([]share, len(paths))
	for i, p := range paths {
		all[i].path = p
	}
	stays := -1
	for _, st := range f.lanes.strands {
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
	f := sp.f
	moved := f.sf.Out.Length() + f.sf.In.Position()
	if f.lanes.main() == nil || f.moved.until(now) > stripePause {
		sp.burstFrom, sp.mix = moved, nil
	}
	sp.measure()
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
		for sp.joinable() && int32(len(f.lanes.strands))+sp.joining < sp.want {
			f.s.link.wantMore(f, f.s.paths.best())
		}
	}
	if large && len(f.lanes.strands) > 1 && !sp.moves() {
		sp.keepAsMany(now)
	}
}

// keepAsMany has the pool keep the lanes that the flow has now when it has ended.
func (sp *laneSpread) keepAsMany(now time.Time) {
	lanes := map[*wanPath]int{}
	for _, st := range sp.f.lanes.strands {
		lanes[st.l.path]++
	}
	for p, n := range lanes {
		p.keepAsMany(n, now)
	}
}

// measure finds whether the flow's lanes differ, and which one is quickest.
func (sp *laneSpread) measure() {
	f := sp.f
	if len(f.lanes.strands) < 2 {
		if sp.mix != nil {
			sp.mix.quickest, sp.mix.uneven = nil, false
		}
		return
	}
	var quickest *strand
	var slowest time.Duration
	for _, st := range f.lanes.strands {
		p := st.pace()
		if !st.ready || st.leaving || p.rtt == 0 {
			continue
		}
		slowest = max(slowest, p.rtt)
		if quickest == nil || p.rtt < quickest.paced.rtt {
			quickest = st
		}
	}
	if quickest == nil {
		return
	}
	// Lanes of one path differ by what they queue, which is no reason to change.
	m := sp.mixed()
	m.uneven = slowest > 2*quickest.paced.rtt && slowest-quickest.paced.rtt > betterBy
	if !m.uneven {
		quickest = f.lanes.strands[0]
	}
	if was := m.quickest; was == nil || was.gone || !m.uneven || 2*quickest.paced.rtt < was.paced.rtt {
		m.quickest = quickest
	}
	f.lanes.feed() // a lane may have left a record to others that have become slower
}

// slowestLane is the longest round trip of the flow's lanes, or the session's.
func (sp *laneSpread) slowestLane() time.Duration {
	f := sp.f
	rtt := f.s.rtt()
	for _, st := range f.lanes.strands {
		rtt = max(rtt, st.paced.rtt)
	}
	return rtt
}

// quickest is the strand for what is little.
func (sp *laneSpread) quickest() *strand {
	f := sp.f
	if sp.mix == nil {
		return f.lanes.strands[0]
	}
	if q := sp.mix.quickest; q != nil && !q.gone && q.ready && !q.leaving {
		return q
	}
	return f.lanes.strands[0]
}

// leavesRecord reports whether a strand leaves the next record to a faster one.
func (sp *laneSpread) leavesRecord(st *strand) bool {
	f := sp.f
	if !sp.uneven() {
		return false
	}
	others := make([]pace, 0, maxLanes)
	for _, o := range f.lanes.strands {
		if o != st && o.ready && !o.leaving {
			others = append(others, o.pace())
		}
	}
	backlog := f.sf.Out.Unsent()
	if f.leg.open() && f.leg.readable {
		backlog += int64(socket.Unread(f.leg.fd))
	}
	return st.pace().leaves(others, backlog)
}

func (sp *laneSpread) mixed() *mix {
	if sp.mix == nil {
		sp.mix = &mix{}
	}
	return sp.mix
}

func (sp *laneSpread) uneven() bool { return sp.mix != nil && sp.mix.uneven }

// farLacksRoom reports that the far relay has said of late that it lacks room on the lanes.
func (sp *laneSpread) farLacksRoom(now time.Time) bool {
	return sp.mix != nil && !sp.mix.farLimited.IsZero() && sp.mix.farLimited.until(now) < limitedFor
}
