package pair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/sys/eyeballs"
	"longhaul/internal/sys/halfopen"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/units"
)

// A link has one path to its far relay, or several: local addresses, interfaces, addresses
// of the far relay. Only the near end knows of them. Each of several has a connection of its
// own that finds whether it stands (probe.go).

// PathUse is when a path is used.
type PathUse int

// The uses of a path.
const (
	PathAlways   PathUse = iota
	PathOverflow         // while those of PathAlways are lost, or full
	PathStandby          // while all others are lost
)

func (u PathUse) String() string {
	return [...]string{flow.PathAlways, flow.PathOverflow, flow.PathStandby}[u]
}

// PathOptions are one way to a far relay.
type PathOptions struct {
	Name      string     // that no other of the link has
	Local     netip.Addr // that connections are bound to; invalid: any
	Interface string     // through which packets leave; empty: any
	// Addresses are those of the far relay on this path; nil: those of the link.
	Addresses func(context.Context) ([]netip.AddrPort, error)
	Use       PathUse
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
	told    bool      // the value of up in the latest line of the log
	heard   bool      // the log has such a line

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

// usable are the paths that flows may use now, in the order of the configuration.
func (l *Link) usable(overflow bool) (all []*wanPath) {
	paths := l.pathsNow()
	if len(paths) == 1 {
		return paths
	}
	var by [PathStandby + 1][]*wanPath
	for _, p := range paths {
		p.mu.Lock()
		if p.up {
			by[p.o.Use] = append(by[p.o.Use], p)
		}
		p.mu.Unlock()
	}
	for use, some := range by {
		if len(all) == 0 || overflow && use == int(PathOverflow) {
			all = append(all, some...)
		}
	}
	return all
}

// preferred are the usable paths, that of the least delay first.
func (l *Link) preferred() []*wanPath {
	all := slices.Clone(l.usable(false))
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

// quickPaths are the preferred paths on which a warm lane has less delay than a new lane on the
// first path. The new one takes two more round trips for its handshake.
func (l *Link) quickPaths() []*wanPath {
	all := l.preferred()
	if len(all) < 2 {
		return all
	}
	least := all[0].delay()
	return slices.DeleteFunc(all, func(p *wanPath) bool { return p.delay() > 3*least })
}

func (p *wanPath) delay() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rtt
}

// controlPaths are those on which a control connection is tried at once: the one that answers
// first gets it. Those for standby wait until the others have had time to answer.
func (l *Link) controlPaths(away time.Duration) (all []*wanPath) {
	paths := l.pathsNow()
	others := slices.ContainsFunc(paths, func(p *wanPath) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.o.Use != PathStandby && (p.up || p.err == nil)
	})
	for _, p := range paths {
		if p.options().Use != PathStandby || !others || away > time.Second {
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

var errPathGone = errors.New("the configuration has the path no more")

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
	usable := l.usable(true)
	for _, p := range l.pathsNow() {
		lanes := p.allLanes()
		p.mu.Lock()
		st := flow.Path{Path: p.o.Name, Use: p.o.Use.String(), Up: p.up || !l.several(), Since: p.since, RTT: units.Seconds(p.rtt),
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

// wantMore gets the flow one more lane, over a path. The caller holds f.mu.
func (l *Link) wantMore(f *Flow, p *wanPath) {
	f.joining++
	s := f.s
	l.node.tasks.Go(func() {
		lane := l.laneOver(s, p)
		f.mu.Lock()
		taken := f.join(lane)
		f.mu.Unlock()
		switch {
		case taken:
		case lane != nil:
			l.place(lane)
		}
		if lane != nil {
			lane.flush() // what is left of the handshake, if no flow took the lane
		}
	})
}

// laneOver takes a lane over a path from the pool, or makes one; nil: it cannot be made.
func (l *Link) laneOver(s *session, p *wanPath) *lane {
	if lane := s.takeWarm(p); lane != nil {
		l.poke() // the pool lacks one
		return lane
	}
	reachable := s.reachable()
	l.mu.Lock()
	may := reachable && l.laneDials < l.admission.limit(time.Now(), s.delays.without(), l.laneDials) && !time.Now().Before(l.laneRetry) && !l.node.closing.Load()
	if may {
		l.laneDials++
	}
	l.mu.Unlock()
	if !may {
		return nil
	}
	lane, _ := l.dialCounted(s, p, false, nil)
	return lane
}

// poolLacks lists the path of each lane that the session's pool lacks.
func (l *Link) poolLacks(s *session, warm int) (all []*wanPath) {
	for _, p := range l.usable(false) {
		n := s.warmOver(p)
		p.mu.Lock()
		n += p.pools
		p.mu.Unlock()
		for ; n < warm; n++ {
			all = append(all, p)
		}
	}
	return all
}

// warmOver is the number of lanes over a path that are in the pool, or on their way to it.
func (s *session) warmOver(p *wanPath) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.lanes {
		if l.path == p && l.pads {
			n++
		}
	}
	return n + s.warmOf(p)
}

// keepAsMany has the pool keep as many lanes over the path as a flow has now, for tuneMemory. The next
// flow profits from them: their windows are open and, on a group of links, their ports lead to each
// link.
func (p *wanPath) keepAsMany(lanes int, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if lanes >= p.kept || now.After(p.keptUntil) {
		p.kept, p.keptUntil = lanes, now.Add(tuneMemory)
	}
}

// poolLimit is how many lanes over the path the pool may have, where warm ones are dialed.
func (p *wanPath) poolLimit(warm int, now time.Time) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if warm <= 0 || now.After(p.keptUntil) {
		return warm
	}
	return max(warm, p.kept)
}

// countPool counts dials for the pool that begin or, with -1, end.
func (p *wanPath) countPool(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pools += n
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
	if from == nil || from == to || !slices.Contains(l.usable(false), to) || !better(to, from, now) {
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

// better reports whether the control connection should move: to is up for a second, and comes
// earlier by its use, or has much less delay.
func better(to, from *wanPath, now time.Time) bool {
	from.mu.Lock()
	use, rtt := from.o.Use, from.rtt
	from.mu.Unlock()
	to.mu.Lock()
	defer to.mu.Unlock()
	if !to.up || now.Sub(to.since) < time.Second {
		return false
	}
	return to.o.Use < use || to.o.Use == use && to.rtt > 0 && 2*to.rtt < rtt && rtt-to.rtt > betterBy
}

// spreadLanes gives a near flow of a link with several paths its lanes: the same number on each
// usable path if it moves much. Lanes on a path that is not to be used any more go once there
// are others.
func (f *Flow) spreadLanes(large bool, now time.Time) {
	paths := f.s.link.usable(f.overflows(large, now))
	if len(paths) == 0 || f.lane == nil {
		return
	}
	if large && f.why == "" && len(paths) > 1 {
		f.why = fmt.Sprintf("one on each of %d paths", len(paths))
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

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// overflow counts for how long a flow's lanes have been full.
type overflow struct {
	ticks int       // ticks with full lanes, minus ticks without
	until time.Time // until then paths for overflow carry the flow
}

const (
	overflowAfter = 10 // ticks
	overflowFor   = 10 * time.Second
)

// overflows reports whether the flow may use paths for overflow: its lanes on the others have
// lately been full for a second.
func (f *Flow) overflows(large bool, now time.Time) bool {
	if !large || !slices.ContainsFunc(f.s.link.pathsNow(), func(p *wanPath) bool { return p.options().Use == PathOverflow }) {
		return false
	}
	o := &f.mixed().overflow
	if f.lanesBusy() || f.farLacksRoom(now) {
		o.ticks = min(o.ticks+1, 2*overflowAfter)
	} else {
		o.ticks = max(o.ticks-1, 0)
	}
	if o.ticks >= overflowAfter {
		o.until = now.Add(overflowFor)
	}
	return now.Before(o.until)
}
