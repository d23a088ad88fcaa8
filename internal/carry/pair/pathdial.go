package pair

import (
	"context"
	"net/netip"
	"time"

	"longhaul/internal/sys/eyeballs"
	"longhaul/internal/sys/halfopen"
)

// This is what a connection over a path needs: which path, its addresses, and its socket.

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
