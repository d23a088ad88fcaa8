package pair

import (
	"slices"
	"time"

	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/socket"
)

// A flow that moves much has lanes on each usable path of its link; one that moves little has one.

// leavePath closes a lane whose path is lost. A flow that has moved of late gets another one
// at once: it may be the far relay that has bytes.
func (f *Flow) leavePath(l *lane) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.has(l) {
		return
	}
	l.closeByReset() // what the kernel has queued would come late
	f.loseLane(l)
	if f.lane() == nil && f.phase.known() && !f.queued && f.phase != phaseOver && f.moved.since() < stripePause {
		f.wanted = true
		f.s.link.want(f)
	}
}

// spreadLanes gives a near flow of a link with several paths its lanes: the same number on each
// usable path if it moves much. Lanes on a path that is not to be used any more go once there
// are others.
func (f *Flow) spreadLanes(large bool) {
	paths := f.s.paths.usable()
	if len(paths) == 0 || f.lane() == nil {
		return
	}
	shares := f.shares(paths, large)
	lacking, missing := false, 0
	for _, s := range shares {
		lacking = lacking || s.ready < s.want
		missing += max(s.want-s.have, 0)
	}
	f.wantLanes = len(f.strands) + missing
	for _, s := range shares {
		for n := s.have; n < s.want && int(f.joining) < missing && f.joinable(); n++ {
			f.s.link.wantMore(f, s.path)
		}
	}
	if lacking {
		return
	}
	for i := len(f.strands) - 1; i >= 0; i-- {
		st := f.strands[i]
		k := slices.IndexFunc(shares, func(s share) bool { return s.path == st.l.path })
		switch {
		case k < 0:
			f.releaseStrand(st)
		case shares[k].have > shares[k].want:
			shares[k].have--
			f.releaseStrand(st)
		}
	}
}

// share is what a path is to have of a flow's lanes, and has.
type share struct {
	path              *wanPath
	want, have, ready int
}

// shares divides the flow's lanes. One that moves little stays where it is, if it may.
func (f *Flow) shares(paths []*wanPath, large bool) []share {
	all := make([]share, len(paths))
	for i, p := range paths {
		all[i].path = p
	}
	stays := -1
	for _, st := range f.strands {
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
	n := max(f.wantLanes, len(paths))
	for i := range all {
		if all[i].want = btoi(i == stays); large {
			all[i].want = n/len(paths) + btoi(i < n%len(paths))
		}
	}
	return all
}

// adjustLanes gives a near flow the number of lanes that it should have. A far one tells
// that it could use more.
func (f *Flow) adjustLanes(now time.Time) {
	moved := f.sf.Out.Length() + f.sf.In.Position()
	if f.lane() == nil || f.moved.until(now) > stripePause {
		f.burstFrom, f.mix = moved, nil
	}
	f.measureLanes()
	if f.mix != nil && f.sf.Out.Limit() > limitStart {
		f.setWindow()
	}
	f.wantLanes = 1
	large := f.lane() != nil && f.s.knows(wire.FeatureLanes) && moved-f.burstFrom >= f.s.node.options.StripeAfter
	if !f.s.near {
		if large && f.lanesFull() {
			f.s.offer(wire.Message{Type: wire.MessageLimited, Flow: f.id})
		}
		return
	}
	if large {
		f.wantLanes = min(max(f.s.link.options().Lanes, 1), maxLanes)
	}
	switch {
	case f.s.paths.several():
		f.spreadLanes(large)
	default:
		f.moveLanes(now)
		f.releaseFrom(max(f.wantLanes, 1))
		for f.joinable() && len(f.strands)+int(f.joining) < f.wantLanes {
			f.s.link.wantMore(f, f.s.paths.best())
		}
	}
	if large && len(f.strands) > 1 && !f.moves() {
		f.keepAsMany(now)
	}
}

// keepAsMany has the pool keep the lanes that the flow has now when it has ended.
func (f *Flow) keepAsMany(now time.Time) {
	lanes := map[*wanPath]int{}
	for _, st := range f.strands {
		lanes[st.l.path]++
	}
	for p, n := range lanes {
		p.keepAsMany(n, now)
	}
}

// stripePause is the silence after which a flow has to move StripeAfter bytes again before
// it gets more than one lane.
const stripePause = 2 * time.Second

// measureLanes finds whether the flow's lanes differ, and which one is quickest.
func (f *Flow) measureLanes() {
	if len(f.strands) < 2 {
		if f.mix != nil {
			f.mix.quickest, f.mix.uneven = nil, false
		}
		return
	}
	var quickest *strand
	var slowest time.Duration
	for _, st := range f.strands {
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
	m := f.mixed()
	m.uneven = slowest > 2*quickest.paced.rtt && slowest-quickest.paced.rtt > betterBy
	if !m.uneven {
		quickest = f.strands[0]
	}
	if was := m.quickest; was == nil || was.gone || !m.uneven || 2*quickest.paced.rtt < was.paced.rtt {
		m.quickest = quickest
	}
	f.feed() // a lane may have left a record to others that have become slower
}

// slowestLane is the longest round trip of the flow's lanes, or the session's.
func (f *Flow) slowestLane() time.Duration {
	rtt := f.s.rtt()
	for _, st := range f.strands {
		rtt = max(rtt, st.paced.rtt)
	}
	return rtt
}

// firstStrand is the strand for what is little.
func (f *Flow) firstStrand() *strand {
	if f.mix == nil {
		return f.strands[0]
	}
	if q := f.mix.quickest; q != nil && !q.gone && q.ready && !q.leaving {
		return q
	}
	return f.strands[0]
}

// leavesRecord reports whether a strand leaves the next record to a faster one.
func (f *Flow) leavesRecord(st *strand) bool {
	if !f.uneven() {
		return false
	}
	others := make([]pace, 0, maxLanes)
	for _, o := range f.strands {
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

func (f *Flow) mixed() *mix {
	if f.mix == nil {
		f.mix = &mix{}
	}
	return f.mix
}

func (f *Flow) uneven() bool { return f.mix != nil && f.mix.uneven }

// farLacksRoom reports that the far relay has said of late that it lacks room on the lanes.
func (f *Flow) farLacksRoom(now time.Time) bool {
	return f.mix != nil && !f.mix.farLimited.IsZero() && f.mix.farLimited.until(now) < limitedFor
}

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
