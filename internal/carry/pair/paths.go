package pair

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"longhaul/internal/sys/eyeballs"
	"longhaul/internal/sys/halfopen"
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

// knownAddresses remembers which addresses of the far relay answer on the path.
func (l *Link) knownAddresses(p *wanPath) *eyeballs.Host {
	n := l.node
	return eyeballs.New(eyeballs.Options{
		Background: func(check func(context.Context)) { n.tasks.Go(func() { check(n.ctx) }) },
		Ask: func(ctx context.Context, a netip.AddrPort) error {
			over, o := p.options(), l.options()
			_, err := halfopen.Ask(ctx, a.String(), halfopen.Options{Local: netip.AddrPortFrom(over.Local, 0), Prepare: func(fd int) error { return prepare(fd, over, o) }})
			return err
		},
		Changed: func(f eyeballs.Family) {
			o := l.options()
			about := []any{"peer", o.Peer, "tunnel", o.Tunnel}
			if name := p.options().Name; name != "" {
				about = append(about, "path", name)
			}
			if f.Dead {
				n.log.Warn(f.Name+" of the far relay does not answer; connections go to "+f.To.Addr().String(), append(about, "error", f.Err)...)
				return
			}
			n.log.Info(f.Name+" of the far relay answers again", about...)
		},
	})
}

// better reports whether the control connection should move: to is up for a second, and is not
// for standby as from is, or has much less delay.
func better(to, from *wanPath, now time.Time) bool {
	from.mu.Lock()
	standby, rtt := from.o.Standby, from.rtt
	from.mu.Unlock()
	to.mu.Lock()
	defer to.mu.Unlock()
	if !to.up || now.Sub(to.since) < time.Second {
		return false
	}
	if standby != to.o.Standby {
		return standby
	}
	return to.rtt > 0 && 2*to.rtt < rtt && rtt-to.rtt > betterBy
}
