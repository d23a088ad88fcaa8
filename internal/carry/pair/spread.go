package pair

import (
	"slices"
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
	if f.lane == nil && f.known && !f.queued && !f.finished && f.moved.since() < stripePause {
		f.wanted = true
		f.s.link.want(f)
	}
}

// spreadLanes gives a near flow of a link with several paths its lanes: the same number on each
// usable path if it moves much. Lanes on a path that is not to be used any more go once there
// are others.
func (f *Flow) spreadLanes(large bool) {
	paths := f.s.link.usable()
	if len(paths) == 0 || f.lane == nil {
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
		stays = max(slices.Index(paths, f.s.link.bestPath()), 0)
	}
	n := max(f.wantLanes, len(paths))
	for i := range all {
		if all[i].want = btoi(i == stays); large {
			all[i].want = n/len(paths) + btoi(i < n%len(paths))
		}
	}
	return all
}
