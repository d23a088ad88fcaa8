package pair

import (
	"slices"
	"time"
)

// A link has one path to its far relay, or several: local addresses, interfaces, addresses
// of the far relay. Only the near end knows of them. Each of several has a connection of its
// own that finds whether it stands (probe.go).

// setPaths changes the paths. Lanes of those that go are closed.
func (l *Link) setPaths(options []PathOptions) {
	if len(options) == 0 {
		options = []PathOptions{{}}
	}
	var before, now []*wanPath
	if all := l.paths.all.Load(); all != nil {
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
	l.paths.all.Store(&now)
	for _, p := range before {
		if !slices.Contains(now, p) {
			l.node.tasks.Go(func() { l.leavePath(p, errPathGone) })
		}
	}
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
