package pair

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/sys/eyeballs"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/units"
)

// betterBy is the least gain in delay for which the control connection moves.
const betterBy = 10 * time.Millisecond

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

func (p *wanPath) allLanes() []*lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*lane, 0, len(p.lanes))
	for l := range p.lanes {
		all = append(all, l)
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

// keepAsMany has the pool keep as many lanes over the path as a flow has now, for keptFor. The next
// flow profits from them: their windows are open and, on a group of links, their ports lead to each
// link.
func (p *wanPath) keepAsMany(lanes int, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if lanes >= p.kept || now.After(p.keptUntil) {
		p.kept, p.keptUntil = lanes, now.Add(keptFor)
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

// keptFor is how long the pool keeps the lanes of a flow that had several.
const keptFor = 10 * time.Minute

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

// closeProbe closes the probe of a path that others were beside.
func (p *wanPath) closeProbe() {
	p.mu.Lock()
	probe := p.probe
	p.mu.Unlock()
	if probe != nil {
		probe.close()
	}
}

// probeEnded takes the news that a lane has ended, if it is the path's probe.
func (p *wanPath) probeEnded(l *lane) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.probe == l {
		p.probe = nil
	}
}

// lost reports that nothing comes over the path: what its probe sends is not acknowledged, and
// its other lanes hear nothing either. Otherwise it takes note of the round trip.
func (p *wanPath) lost(probe *lane, now time.Time) bool {
	silent, within := false, silentAfter
	kernelSays(probe.bulk, func(i *tcpinfo.Info) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.rtt = i.RTT
		if i.Unacked == 0 && i.NotsentBytes == 0 { // a host without the path's address sends nothing
			p.asked = time.Time{}
		}
		within = max(within, 4*i.RTT, i.RTT+4*i.RTTVar)
		silent = !p.asked.IsZero() && now.Sub(p.asked) > within && i.LastAckRecv > within
		return true
	})
	if !silent {
		return false
	}
	for _, l := range p.allLanes() {
		if l == probe || !heardOf(l, within) {
			continue
		}
		if stuck(probe.bulk, 4*within) {
			probe.close() // it alone is dead
		}
		return false
	}
	return true
}

// heardOf reports that something has come over a lane of late.
func heardOf(l *lane, within time.Duration) bool {
	return kernelSays(l.bulk, func(i *tcpinfo.Info) bool { return min(i.LastAckRecv, i.LastDataRecv) < within })
}

var errPathGone = errors.New("the configuration has the path no more")

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// silentAfter is how long a write on a probe may lack an acknowledgement while nothing
// comes over the path's other lanes either.
const silentAfter = 400 * time.Millisecond

// pathSet are the paths of a link: at least one.
type pathSet struct{ all atomic.Pointer[[]*wanPath] }

// several reports whether the link has more than one path.
func (s *pathSet) several() bool { return len(s.list()) > 1 }

func (s *pathSet) list() []*wanPath {
	all := s.all.Load()
	return *all
}

// usable are the paths that flows may use now, in the order of the configuration: those for
// standby while no other is up.
func (s *pathSet) usable() []*wanPath {
	paths := s.list()
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
func (s *pathSet) preferred() []*wanPath {
	all := slices.Clone(s.usable())
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

// best is the path of the least delay, for small messages and the control connection.
func (s *pathSet) best() *wanPath {
	if all := s.preferred(); len(all) > 0 {
		return all[0]
	}
	return s.list()[0]
}

// states are the link's paths at this moment.
func (s *pathSet) states(ctl *control) (all []flow.Path) {
	usable := s.usable()
	for _, p := range s.list() {
		lanes := p.allLanes()
		p.mu.Lock()
		st := flow.Path{Path: p.o.Name, Standby: p.o.Standby, Up: p.up || !s.several(), Since: p.since, RTT: units.Seconds(p.rtt),
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

// forControl are those on which a control connection is tried at once: the one that answers
// first gets it. Those for standby wait until the others have had time to answer.
func (s *pathSet) forControl(away time.Duration) (all []*wanPath) {
	paths := s.list()
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

// poolDials is the number of dials for the pool under way.
func (p *wanPath) poolDials() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pools
}
