package pair

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/sys/eyeballs"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/units"
)

// A link has one path to its far relay, or several: local addresses, interfaces, addresses
// of the far relay. Only the near end knows of them. Each of several has a connection of its
// own that finds whether it stands (probe.go).

// PathOptions are one way to a far relay.
type PathOptions struct {
	Name      string     // that no other of the link has
	Local     netip.Addr // that connections are bound to; invalid: any
	Interface string     // through which packets leave; empty: any
	// Addresses are those of the far relay on this path; nil: those of the link.
	Addresses func(context.Context) ([]netip.AddrPort, error)
	Standby   bool // used while all others are lost
}

// suspectFor is the time after the loss of a lane for which its path is chosen last, unless the
// path's probe finds it dead before.
const suspectFor = time.Second

// wanPath is one way of a link to its far relay.
type wanPath struct {
	mu      sync.Mutex // taken after all others
	o       PathOptions
	turn    uint           // of the address to try
	hosts   *eyeballs.Host // what is known of the addresses
	up      bool
	since   time.Time // when up last changed
	err     error     // why it is not up; nil: nothing was tried yet
	suspect time.Time // when a lane on it was last given up
	rtt     time.Duration
	redials int // attempts for a control connection under way
	pools   int // dials for the pool under way

	kept      int       // lanes that the pool keeps, since a flow had as many over the path
	keptUntil time.Time // when the pool goes back to its usual number

	probe   *lane     // nil: none
	probing bool      // a probe is being dialed
	tried   time.Time // when one was last dialed
	probed  time.Time // when bytes were last sent on the probe
	asked   time.Time // when the first of its unacknowledged bytes were sent; zero: all are acknowledged
	told    string    // the latest line of the log: up or down; empty: none

	lanes    map[*lane]struct{}
	sent     int64 // bytes, over lanes that are closed
	received int64
}

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

func (p *wanPath) options() PathOptions {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.o
}

// stood notes that a handshake over the path has succeeded.
func (p *wanPath) stood(c *connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.up {
		p.up, p.since = true, time.Now()
	}
	p.err = nil
	kernelSays(c.bulk, func(i *tcpinfo.Info) bool {
		if p.rtt == 0 && i.Has(tcpinfo.FieldRTT) {
			p.rtt = i.RTT
		}
		return true
	})
}

// failed notes that no connection over the path could be made. It changes nothing while one
// stands.
func (p *wanPath) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.probe == nil {
		p.fall(err)
	}
}

// fall marks the path as down. The caller holds p.mu.
func (p *wanPath) fall(err error) {
	if p.up {
		p.up, p.since = false, time.Now()
	}
	p.err, p.rtt = err, 0
}

// suspicious notes that a lane on the path was given up.
func (p *wanPath) suspicious() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.suspect, p.probed = time.Now(), time.Time{}
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

var errPathGone = errors.New("the configuration has the path no more")

// enter counts a lane on its path.
func (p *wanPath) enter(l *lane) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lanes[l] = struct{}{}
}

// leave counts what a lane has carried, just before it is closed.
func (p *wanPath) leave(l *lane) {
	if p == nil {
		return
	}
	sent, received := l.carried()
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, here := p.lanes[l]; here {
		delete(p.lanes, l)
		p.sent += sent
		p.received += received
	}
}

// carried are the bytes that the other end has acknowledged on the lane, and those that have
// come.
func (l *lane) carried() (sent, received int64) {
	kernelSays(l.bulk, func(i *tcpinfo.Info) bool {
		if i.Has(tcpinfo.FieldBytesAcked) {
			sent, received = int64(i.BytesAcked), int64(i.BytesReceived)
		}
		return true
	})
	return sent, received
}

func (p *wanPath) allLanes() []*lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*lane, 0, len(p.lanes))
	for l := range p.lanes {
		all = append(all, l)
	}
	return all
}

// pathStates are the link's paths at this moment.
func (l *Link) pathStates(ctl *control) (all []flow.Path) {
	usable := l.usable()
	for _, p := range l.pathsNow() {
		lanes := p.allLanes()
		p.mu.Lock()
		st := flow.Path{Path: p.o.Name, Standby: p.o.Standby, Up: p.up || !l.several(), Since: p.since, RTT: units.Seconds(p.rtt),
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

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
