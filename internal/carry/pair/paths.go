package pair

import (
	"cmp"
	"slices"
	"time"
)

// A link has one path to its far relay, or several: local addresses, interfaces, addresses
// of the far relay. Only the near end knows of them. Each of several has a connection of its
// own that finds whether it stands (probe.go).

// several reports whether the link has more than one path.
func (l *Link) several() bool { return len(l.pathsNow()) > 1 }

func (l *Link) pathsNow() []*wanPath {
	all := l.paths.Load()
	return *all
}

// setPaths changes the paths. Lanes of those that go are closed.
func (l *Link) setPaths(options []PathOptions) {
	if len(options) == 0 {
		options = []PathOptions{{}}
	}
	var before, now []*wanPath
	if all := l.paths.Load(); all != nil {
		before = *all
	}
	for _, o := range options {
		i := slices.IndexFunc(before, func(p *wanPath) bool { return p.o.Name == o.Name })
		if i < 0 {
			p := &wanPath{o: o, lanes: map[*lane]struct{}{}, since: time.Now()}
			p.hosts = l.knownAddresses(p)
			now = append(now, p)
			continue
		}
		p := before[i]
		p.mu.Lock()
		p.o = o
		p.mu.Unlock()
		now = append(now, p)
	}
	l.paths.Store(&now)
	for _, p := range before {
		if !slices.Contains(now, p) {
			l.node.tasks.Go(func() { l.leavePath(p, errPathGone) })
		}
	}
}

// usable are the paths that flows may use now, in the order of the configuration: those for
// standby while no other is up.
func (l *Link) usable() []*wanPath {
	paths := l.pathsNow()
	if len(paths) == 1 {
		return paths
	}
	var ordinary, standby []*wanPath
	for _, p := range paths {
		p.mu.Lock()
		switch {
		case !p.up:
		case p.o.Standby:
			standby = append(standby, p)
		default:
			ordinary = append(ordinary, p)
		}
		p.mu.Unlock()
	}
	if len(ordinary) == 0 {
		return standby
	}
	return ordinary
}

// preferred are the usable paths, that of the least delay first.
func (l *Link) preferred() []*wanPath {
	all := slices.Clone(l.usable())
	if len(all) < 2 {
		return all
	}
	now := time.Now()
	worth := make(map[*wanPath]time.Duration, len(all))
	for _, p := range all {
		p.mu.Lock()
		worth[p] = p.rtt
		if now.Sub(p.suspect) < suspectFor {
			worth[p] += time.Minute
		}
		p.mu.Unlock()
	}
	slices.SortStableFunc(all, func(a, b *wanPath) int { return cmp.Compare(worth[a], worth[b]) })
	return all
}

// bestPath is the path of the least delay, for small messages and the control connection.
func (l *Link) bestPath() *wanPath {
	if all := l.preferred(); len(all) > 0 {
		return all[0]
	}
	return l.pathsNow()[0]
}

// pathStates are the link's paths at this moment.
func (l *Link) pathStates(ctl *control) (all []PathState) {
	usable := l.usable()
	for _, p := range l.pathsNow() {
		lanes := p.allLanes()
		p.mu.Lock()
		st := PathState{Name: p.o.Name, Standby: p.o.Standby, Up: p.up || !l.several(), Since: p.since, Remote: p.remote, RTT: p.rtt,
			Sent: p.sent, Received: p.received, Control: ctl != nil && ctl.c.path == p}
		if !p.up && p.err != nil {
			st.Error = p.err.Error()
		}
		probe := p.probe
		p.mu.Unlock()
		st.Active = slices.Contains(usable, p)
		for _, lane := range lanes {
			sent, received := lane.carried()
			st.Sent += sent
			st.Received += received
			st.Lanes += btoi(lane != probe)
			st.Busy += btoi(lane.bound() != nil)
		}
		all = append(all, st)
	}
	return all
}

// leavePath closes all connections over a path. Flows go on over others.
func (l *Link) leavePath(p *wanPath, why error) {
	p.mu.Lock()
	p.fall(why)
	p.probe = nil
	p.mu.Unlock()
	for _, s := range l.sessions() {
		if ctl := s.control(); ctl != nil && ctl.c.path == p {
			s.controlLost(ctl, why) // before the close, of which the reader tells
			ctl.close()
		}
	}
	for _, lane := range p.allLanes() {
		if f := lane.bound(); f != nil {
			f.leavePath(lane)
		}
		lane.closeByReset()
	}
	l.mu.Lock()
	l.redialNow()
	l.mu.Unlock()
	l.poke()
}
