package pair

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/sys/eyeballs"
	"longhaul/internal/sys/halfopen"
)

// This is what a connection over a path needs: which path, its addresses, and its socket.

// controlPaths are those on which a control connection is tried at once: the one that answers
// first gets it. Those for standby wait until the others have had time to answer.
func (l *Link) controlPaths(away time.Duration) (all []*wanPath) {
	paths := l.pathsNow()
	others := slices.ContainsFunc(paths, func(p *wanPath) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.o.Standby && (p.up || p.err == nil)
	})
	for _, p := range paths {
		if !p.options().Standby || !others || away > time.Second {
			all = append(all, p)
		}
	}
	return all
}

// addresses are where to connect on the path, in the order in which they are tried. A lane leads to
// the host at which the session's latest control connection ended, if that is an address of the
// path. An only path over which that connection went need not look its addresses up.
func (p *wanPath) addresses(ctx context.Context, o LinkOptions, host netip.AddrPort, over *wanPath) ([]netip.AddrPort, error) {
	at := p.options()
	if len(o.Paths) < 2 && over == p && host.IsValid() {
		return []netip.AddrPort{host}, nil
	}
	addresses := o.Addresses
	if at.Addresses != nil {
		addresses = at.Addresses
	}
	found, err := addresses(ctx)
	found = slices.DeleteFunc(slices.Clone(found), func(a netip.AddrPort) bool { return !at.reaches(a) })
	if err != nil || len(found) == 0 {
		return nil, problem(flow.PairPathDown, "no address of the far relay: %w", cmp.Or(err, errNoAddress))
	}
	if slices.Contains(found, host) {
		return []netip.AddrPort{host}, nil
	}
	p.mu.Lock()
	turn := p.turn
	p.turn++
	p.mu.Unlock()
	return p.hosts.Order(nil, found, turn), nil
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

// prepare sets a socket of a link up before it is bound and connects.
func prepare(fd int, over PathOptions, o LinkOptions) error {
	if err := over.prepare(fd); err != nil || o.Prepare == nil {
		return err
	}
	return o.Prepare(fd)
}

var errNoAddress = errors.New("none of the path's family")

// reaches reports whether a connection from the path's local address can lead to a: both must be
// of one family.
func (o PathOptions) reaches(a netip.AddrPort) bool {
	return !o.Local.IsValid() || o.Local.Is4() == a.Addr().Unmap().Is4()
}

// bind has a dialer connect over the path.
func (o PathOptions) bind(d *net.Dialer) {
	if o.Local.IsValid() {
		d.LocalAddr = &net.TCPAddr{IP: o.Local.AsSlice(), Zone: o.Local.Zone()}
	}
}

// prepare sets a socket up before it is bound and connects.
func (o PathOptions) prepare(fd int) error {
	if o.Local.IsValid() {
		// Ports are shared by connections to different addresses.
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	}
	if o.Interface == "" {
		return nil
	}
	if err := unix.BindToDevice(fd, o.Interface); err != nil {
		return errors.New("use interface " + o.Interface + ": " + err.Error())
	}
	return nil
}

// mayRedial counts one more attempt for a control connection, if it may begin; redialEnded
// follows. While the node is busy with others the path has one at a time.
func (p *wanPath) mayRedial(busy bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.redials >= maxRedials || p.redials > 0 && busy {
		return false
	}
	p.redials++
	return true
}

func (p *wanPath) redialEnded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.redials--
}

// moveControl takes the control connection to a better path: from one that is for standby to
// another, or to one of much less delay.
func (l *Link) moveControl(s *session, now time.Time) {
	ctl := s.control()
	if ctl == nil || !l.several() {
		return
	}
	best := l.bestPath()
	from, to := ctl.c.path, best
	if from == nil || from == to || !slices.Contains(l.usable(), to) || !better(to, from, now) {
		return
	}
	s.mu.Lock()
	due := now.Sub(s.moved) > time.Second
	if due {
		s.moved = now
	}
	s.mu.Unlock()
	if !due {
		return
	}
	l.node.tasks.Go(func() {
		if err := l.dialControl(s, to, ctl); err != nil {
			to.failed(err)
		}
	})
}

// betterBy is the least gain in delay for which the control connection moves.
const betterBy = 10 * time.Millisecond

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
