package pair

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/wire"
)

const (
	// maxRedials bounds attempts for a control connection at the same time, on each path.
	maxRedials = 64
	// maxLaneDials bounds handshakes of lanes at the same time: after an outage each
	// flow needs one. It stays below the far relay's maxHandshakes.
	maxLaneDials = 768
	// maxDials bounds the attempts of all links of a node together that nobody waits for:
	// further ones for a control connection, and lanes for pools. After an outage hundreds of
	// tunnels come back at once, and a far relay that is flooded answers too late for all.
	maxDials  = 256
	tickEvery = 100 * time.Millisecond
)

// refusedEvery is the time between two attempts while something answers and refuses:
// it may be somebody's server, to which each of them is an odd client.
const refusedEvery = 2 * time.Second

// redialEvery is the time between two attempts to reach a far relay that has been away
// for so long: each with a fresh socket, since the kernel's back-off outlasts outages.
func redialEvery(away time.Duration) time.Duration {
	switch {
	case away < 30*time.Second:
		return 100 * time.Millisecond
	case away < 5*time.Minute:
		return 500 * time.Millisecond
	}
	return 2 * time.Second
}

// Link is the way of a near tunnel to its far relay.
type Link struct {
	node   *Node
	kick   chan struct{}
	stop   chan struct{}
	flowID atomic.Uint64

	mu  sync.Mutex
	o   LinkOptions
	s   *session   // takes new flows
	old []*session // that drain
	// replaced is when the latest of old was s.
	replaced time.Time
	waiting  []*Flow // for a lane
	closed   bool
	paths    atomic.Pointer[[]*wanPath] // at least one; changed under mu

	laneDials int
	admission admission // of handshakes of lanes
	laneRetry time.Time // no lane is dialed before it
}

func (o LinkOptions) withDefaults() LinkOptions {
	if o.Resume == 0 {
		o.Resume = DefaultResume
	}
	return o
}

// Link adds the way of a near tunnel to its far relay and starts to connect.
func (n *Node) Link(o LinkOptions) *Link {
	l := &Link{node: n, kick: make(chan struct{}, 1), stop: make(chan struct{}), o: o.withDefaults()}
	l.setPaths(o.Paths)
	l.s = l.newSession()
	if o.Stood {
		l.s.stood, l.s.since = true, time.Now().Add(-o.Away)
	}
	n.mu.Lock()
	n.links = append(n.links, l)
	n.mu.Unlock()
	n.tasks.Go(l.run)
	return l
}

func (l *Link) newSession() *session {
	s := newSession(l.node, l.o.Peer, randomID(), true)
	s.link, s.tunnel, s.mode = l, l.o.Tunnel, l.o.mode()
	return s
}

// Update changes options; flows go on.
func (l *Link) Update(o LinkOptions) {
	l.mu.Lock()
	o = o.withDefaults()
	if o.Peer != l.o.Peer || o.Tunnel != l.o.Tunnel || o.mode() != l.o.mode() {
		l.old = append(l.old, l.s)
		samePeer := o.Peer == l.o.Peer
		l.o = o
		if l.s = l.newSession(); samePeer {
			l.s.goesOnFrom(l.old[len(l.old)-1])
		}
	}
	l.o = o
	l.setPaths(o.Paths)
	l.redialNow() // a reload tries at once
	l.mu.Unlock()
	l.poke()
}

// Close stops taking clients. Connections end with their last flow.
func (l *Link) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.poke()
}

func (l *Link) sessions() []*session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append(slices.Clone(l.old), l.s)
}

// Stood reports whether the pair has ever stood, and for how long it has been away; 0: it stands.
func (l *Link) Stood() (away time.Duration, stood bool) {
	s := l.current()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctl == nil {
		away = time.Since(s.since)
	}
	return away, s.stood
}

// current is the session that takes new flows.
func (l *Link) current() *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.s
}

func (l *Link) options() LinkOptions {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.o
}

func (l *Link) poke() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// Carry takes over a client. done gets the flow's end, once.
func (l *Link) Carry(c Client, done func(*Flow, End)) *Flow {
	l.mu.Lock()
	s, refuse := l.s, l.closed || l.node.draining.Load() || l.node.closing.Load()
	l.mu.Unlock()
	f := newFlow(s, l.flowID.Add(1), true, c.Legs)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done = done
	f.opening = &wire.Open{Flow: f.id, Deadline: cmp.Or(c.Deadline, handshakeTimeout), Client: c.From, Listen: c.Listen}
	if s.noResume {
		f.sf.NoResume()
	}
	f.sf.Out.Keep(c.Early)
	l.node.flowsNow.Add(1)
	s.add(f)
	l.followEnd(f) // the far process may have ended since
	err := f.takeLeg(c.FD)
	if err != nil {
		unix.Close(c.FD)
		f.leg.fd = -1
	}
	switch {
	case err != nil:
		f.sf.LocalReset(cause(flow.EndNoResources, err))
	case refuse:
		f.sf.Abort(cause(flow.EndDrain, errors.New("the relay takes no new flows")))
	}
	f.wake()
	return f
}

// want finds a lane for a flow, now or later. The caller holds f.mu.
func (l *Link) want(f *Flow) {
	if lane := f.s.takeWarm(l.bestPath()); lane != nil {
		if f.assign(lane) {
			l.poke() // the pool lacks one
			return
		}
		lane.close()
	}
	f.queued = true
	l.mu.Lock()
	f.needsOpen = !f.known
	if f.gaveBack {
		l.waiting = slices.Insert(l.waiting, 0, f)
	} else {
		l.waiting = append(l.waiting, f)
	}
	l.mu.Unlock()
	l.poke()
}

// takeWaiting takes a flow of a session that waits for a lane: first of those of which
// nothing can go ahead on the control connection. The caller holds l.mu.
func (l *Link) takeWaiting(s *session) *Flow {
	i := slices.IndexFunc(l.waiting, func(f *Flow) bool { return f.s == s && f.needsOpen })
	if i < 0 {
		i = slices.IndexFunc(l.waiting, func(f *Flow) bool { return f.s == s })
	}
	if i < 0 {
		return nil
	}
	f := l.waiting[i]
	l.waiting = slices.Delete(l.waiting, i, i+1)
	return f
}

// place gives a lane to a flow that waits for one of its session, or to the pool.
func (l *Link) place(lane *lane) {
	for {
		l.mu.Lock()
		f := l.takeWaiting(lane.s)
		warm := l.o.Warm
		l.mu.Unlock()
		if f == nil {
			lane.s.putWarm(lane, lane.path.poolLimit(warm, time.Now()))
			return
		}
		f.mu.Lock()
		elsewhere := f.s != lane.s // it has moved on
		taken := !elsewhere && f.assign(lane)
		again := !taken && (elsewhere || lane.isDead())
		f.queued = again
		f.mu.Unlock()
		if again {
			l.mu.Lock()
			l.waiting = append(l.waiting, f)
			l.mu.Unlock()
		}
		if taken || again && !elsewhere {
			return
		}
	}
}

// moveOn takes a flow to the session after its own, whose far process takes no new flows
// and has refused this one, or has ended and never heard of it: an upgrade overtook its OPEN. It
// reports false if the flow has to end. The caller holds f.mu.
func (l *Link) moveOn(f *Flow) bool {
	if !f.untouched() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.node.closing.Load() {
		return false
	}
	was := f.s
	if l.s == was && !l.replace() { // DRAIN comes later than this answer
		return false
	}
	was.mu.Lock()
	was.draining = true
	delete(was.flows, f.id)
	f.dirty = false
	was.dirty = slices.DeleteFunc(was.dirty, func(other *Flow) bool { return other == f })
	was.mu.Unlock()
	was.message(wire.Message{Type: wire.MessageGone, Flow: f.id}) // the answer to its refusal
	f.s = l.s
	f.unsend()
	if !f.needSince.IsZero() {
		was.waiting.Add(-1)
		f.s.waiting.Add(1)
	}
	f.s.add(f)
	return true
}

// followEnd takes a flow on from a session whose far process has said its last and has not spoken of
// this flow: it has not dialed for it, and never will. The caller holds f.mu.
func (l *Link) followEnd(f *Flow) {
	for !f.known && !f.finished && f.s.hasEnded() {
		if !l.moveOn(f) {
			return
		}
		f.wake()
	}
}

// leave has new flows go to another session than one whose far process takes none.
func (l *Link) leave(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.s == s {
		l.replace()
	}
}

// padded takes the news that a lane's congestion window is open.
func (s *session) padded(l *lane) {
	if !s.near {
		return
	}
	s.mu.Lock()
	pads := l.pads
	if pads {
		l.pads = false
		s.padding--
	}
	s.mu.Unlock()
	if pads {
		s.link.place(l)
	}
}

func (l *Link) run() {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		select {
		case <-l.node.ctx.Done():
			return
		case <-l.kick:
		case <-ticker.C:
		}
		if l.tick() {
			return
		}
	}
}

// tick dials what is missing. It reports true when a closed link has ended.
func (l *Link) tick() (ended bool) {
	now := time.Now()
	l.mu.Lock()
	l.replaceDrained()
	l.waiting = slices.DeleteFunc(l.waiting, func(f *Flow) bool { return f.over.Load() })
	all := append(slices.Clone(l.old), l.s)
	closed := l.closed
	l.mu.Unlock()
	l.watchPaths(now)
	for _, s := range all {
		if s.control() == nil {
			l.redial(s, now)
		} else {
			l.moveControl(s, now)
		}
		if s.reachable() {
			l.dialLanes(s, now)
		}
	}
	if closed && l.idle(all) {
		for _, s := range all {
			s.close()
		}
		l.node.dropLink(l)
		return true
	}
	return false
}

// replace begins another session in place of the current one. It reports false if that would be one
// too many: a far process that drains each session at once is no upgrade. The caller holds l.mu.
func (l *Link) replace() bool {
	now := time.Now()
	if len(l.old) >= maxOldSessions && now.Sub(l.replaced) < time.Minute {
		return false
	}
	l.old = append(l.old, l.s)
	l.s, l.replaced = l.newSession(), now
	l.s.goesOnFrom(l.old[len(l.old)-1])
	return true
}

// replaceDrained begins a session for new flows if the far process takes none, and
// ends drained ones with their last flow. The caller holds l.mu.
func (l *Link) replaceDrained() {
	l.s.mu.Lock()
	draining := l.s.draining
	l.s.mu.Unlock()
	if draining {
		l.replace()
	}
	l.old = slices.DeleteFunc(l.old, func(s *session) bool {
		done := s.rested()
		if done {
			s.close()
		}
		return done
	})
}

func (l *Link) idle(all []*session) bool {
	return !slices.ContainsFunc(all, func(s *session) bool {
		return !s.rested()
	})
}

// rested reports that the session has had no flow for long enough that the other end
// has the last acknowledgements: it would wait for a lost one until resume.
func (s *session) rested() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.flows) > 0 {
		s.emptySince = time.Time{}
		return false
	}
	if s.emptySince.IsZero() {
		s.emptySince = time.Now()
	}
	return s.ctl == nil || time.Since(s.emptySince) > s.patience(time.Second, 4)
}

// redialNow has the next tick try at once. The caller holds l.mu.
func (l *Link) redialNow() {
	for _, s := range append(slices.Clone(l.old), l.s) {
		s.redialed = time.Time{}
	}
}

// redial begins another attempt to get a control connection.
func (l *Link) redial(s *session, now time.Time) {
	s.mu.Lock()
	away := now.Sub(s.since)
	every := redialEvery(away)
	if s.problem.refuses() {
		every = max(every, refusedEvery)
	}
	s.mu.Unlock()
	l.mu.Lock()
	due := now.Sub(s.redialed) >= every-tickEvery/4 // ticks are not exact
	if due {
		s.redialed = now
	}
	l.mu.Unlock()
	if !due {
		return
	}
	for _, p := range l.controlPaths(away) {
		if !p.mayRedial(l.node.dials.Load() >= maxDials) {
			continue
		}
		l.node.dials.Add(1)
		l.node.tasks.Go(func() {
			err := l.dialControl(s, p, nil)
			l.node.dials.Add(-1)
			p.redialEnded()
			if err != nil {
				p.failed(err)
				s.note(err)
			}
			l.poke()
		})
	}
}

func (s *session) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctl != nil || s.node.closing.Load() {
		return
	}
	if s.instance != 0 {
		err = broken(err)
	}
	if problemOf(err) == ProblemPathDown && time.Since(s.refused) < 2*refusedEvery {
		return // on another path somebody answers
	}
	if problemOf(err).refuses() && s.link.several() {
		s.refused = time.Now()
	}
	if p := problemOf(err); p != s.problem {
		s.node.limited.Log(slog.LevelWarn, "far relay not reached", []string{"peer", "tunnel", "problem"}, slog.String("peer", s.peer), slog.String("tunnel", s.tunnel),
			slog.String("problem", string(p)), slog.Any("error", err))
	}
	s.problem, s.text, s.laneErr = problemOf(err), err.Error(), err
}

// dialControl makes a control connection over a path, in place of replace, if that still stands.
func (l *Link) dialControl(s *session, p *wanPath, replace *control) error {
	ctx, cancel := context.WithTimeout(l.node.ctx, handshakeTimeout)
	defer cancel()
	o := l.options()
	addresses, err := p.addresses(ctx, o, netip.AddrPort{}, nil)
	if err != nil {
		return err
	}
	s.mu.Lock()
	instance := s.instance
	s.mu.Unlock()
	d := dialer{node: l.node, session: s, options: o, path: p, addresses: addresses, hello: l.node.nearHello(s, o), within: s.connectWithin(),
		preface: preface.Preface{Kind: preface.Control, Instance: instance}}
	proven := false
	d.proven = func() {
		s.proven.Add(1)
		proven = true
	}
	defer func() {
		if proven {
			s.proven.Add(-1)
		}
	}()
	if replace == nil {
		d.turn = func() (leave func(), mine bool) { return l.controlTurn(s) }
	}
	c, err := d.dial(l.node.ctx)
	if err != nil || c == nil {
		return err
	}
	defer c.leave()
	s.beginning.Lock() // attempts run side by side
	defer s.beginning.Unlock()
	s.mu.Lock()
	// Another attempt may have found another process meanwhile. Then this answer says nothing of that: it
	// may live, with flows.
	stale := s.instance != instance && s.instance != c.hello.Instance
	late := s.ctl != replace || s.closed || stale || l.node.closing.Load()
	restarted := s.instance != 0 && s.instance != c.hello.Instance
	s.mu.Unlock()
	if late {
		c.bulk.Close()
		return nil
	}
	p.stood(c)
	if restarted {
		s.restarted(c.hello)
	}
	s.begin(c)
	if !slices.Contains(l.pathsNow(), p) {
		l.leavePath(p, errPathGone)
	}
	return nil
}

// controlTurn lets one attempt at a time go beyond the connect: the far relay takes the
// control connection that greets last. An attempt that hangs gives way.
func (l *Link) controlTurn(s *session) (leave func(), mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	within := s.answerWithin(handshakeTimeout/5, 8)
	if s.ctl != nil || !s.greeting.IsZero() && time.Since(s.greeting) < within {
		return nil, false
	}
	began := time.Now()
	s.greeting = began
	l.poke() // lanes need not wait for this handshake
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.greeting.Equal(began) {
			s.greeting = time.Time{}
		}
	}, true
}

// reachable reports whether lanes may be dialed: the control connection stands, or the
// far process is known and its host has just answered a connect, or answers on another path.
func (s *session) reachable() bool {
	elsewhere := s.link.several() && len(s.link.usable()) > 0
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ctl != nil || s.instance != 0 && (!s.greeting.IsZero() || elsewhere)
}

// restarted drops everything that the far process had, which is gone. If that has ended in order, a
// flow of which it has said nothing, and that it does not owe, was never dialed for, and begins again.
func (s *session) restarted(h wire.Hello) {
	s.mu.Lock()
	inOrder := h.Follows == s.instance
	owed := h.Owed.Numbers()
	s.instance, s.draining, s.ended = h.Instance, false, false
	s.mu.Unlock()
	s.closeLanes(func(*lane) bool { return true })
	c := cause(flow.EndPeerRestarted, errors.New("the far relay was restarted"))
	for _, f := range s.allFlows() {
		f.mu.Lock()
		switch {
		case !f.sent || f.finished || f.s != s:
		case inOrder && !f.known && f.untouched() && !slices.Contains(owed, f.id):
			s.link.mu.Lock()
			f.unsend()
			s.link.mu.Unlock()
			f.wake()
		default:
			f.sent = false // nor is the new process to hear of it: it would dial for an OPEN
			f.sf.PeerGone(c)
			f.wake()
		}
		f.mu.Unlock()
	}
}

// dialLanes dials lanes that flows or the pool lack.
func (l *Link) dialLanes(s *session, now time.Time) {
	best := l.bestPath()
	s.mu.Lock()
	up, ahead := s.ctl != nil, s.ahead
	s.mu.Unlock()
	crowded := s.crowded(now)
	l.mu.Lock()
	waiting, fresh := 0, 0
	for _, f := range l.waiting {
		if f.s == s {
			waiting++
		}
		if f.s == s && f.needsOpen && !ahead {
			fresh++
		}
	}
	if crowded {
		waiting = fresh
	}
	forFlows := max(waiting-s.laneDials, 0)
	var forPool []*wanPath
	if s == l.s && !l.closed && up {
		forPool = l.poolLacks(s, l.o.Warm)
		forPool = forPool[min(max(s.laneDials-waiting, 0), len(forPool)):]
	}
	n := min(forFlows+len(forPool), l.admission.limit(now, s.delays.without(), l.laneDials)-l.laneDials)
	enough := forFlows+len(forPool)+l.laneDials == 0 // attempts that run may fail
	if now.Before(l.laneRetry) || l.node.closing.Load() {
		n = 0
	}
	if l.node.dials.Load() >= maxDials {
		n = min(n, forFlows)
	}
	n = max(n, 0)
	l.laneDials += n
	l.node.dials.Add(int64(n))
	s.laneDials += min(n, forFlows)
	for _, p := range forPool[:max(n-forFlows, 0)] {
		p.countPool(1)
	}
	l.mu.Unlock()
	if enough {
		s.noteLane(nil)
	}
	for i := range n {
		p, pool := best, i >= forFlows
		if pool {
			p = forPool[i-forFlows]
		}
		l.node.tasks.Go(func() { l.dialLane(s, p, pool) })
	}
}

func (l *Link) dialLane(s *session, p *wanPath, pool bool) {
	counted := !pool // under l.mu
	uncount := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		s.laneDials -= btoi(counted)
		counted = false
	}
	lane, err := l.dialCounted(s, p, pool, func() {
		uncount() // the flow that waits for it gets another attempt beside it
		l.poke()
	})
	l.node.dials.Add(-1)
	uncount()
	if pool {
		p.countPool(-1)
	}
	if err != nil {
		return
	}
	if pool {
		lane.pad(padSize)
		return
	}
	l.place(lane)
	lane.flush() // what is left of the handshake, if no flow took the lane
}

// dialCounted makes a lane over a path for which the link's laneDials has been raised. overdue may be nil.
func (l *Link) dialCounted(s *session, p *wanPath, pool bool, overdue func()) (*lane, error) {
	began := time.Now()
	lane, err := l.newLane(s, p, pool, overdue)
	l.mu.Lock()
	l.laneDialed(s, lane, err, began)
	l.mu.Unlock()
	if err != nil {
		l.laneFailed(s, err)
		return nil, err
	}
	s.noteLane(nil)
	return lane, nil
}

// laneDialed takes the news that an attempt to make a lane is over. The caller holds l.mu.
func (l *Link) laneDialed(s *session, lane *lane, err error, began time.Time) {
	now := time.Now()
	late, says := now.Sub(began), true
	switch {
	case lane != nil && lane.bulk.repeats == 0:
		late -= 3 * s.least(lane.bulk.rtt) // of TCP, of TLS, of HELLO
	default:
		says = err != nil && problemOf(err).waits()
	}
	if says {
		s.noteDial(late, now)
		l.admission.ended(began, now, late, l.laneDials)
	}
	l.laneDials--
}

// laneFailed takes the news that a lane broke before the far relay's HELLO.
func (l *Link) laneFailed(s *session, err error) {
	l.node.log.Debug("lane not made", "peer", s.peer, "tunnel", s.tunnel, "error", err)
	s.noteLane(err)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.laneRetry = time.Now().Add(tickEvery)
}

// noteLane takes note of whether another lane could be made; nil: it could, or none is
// needed.
func (s *session) noteLane(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.laneErr == nil {
		s.laneErrSince = time.Now()
	}
	s.laneErr = err
}

// newLane makes a lane over a path; pool has both ends open its window. overdue, unless nil, is called
// if the far relay takes longer for the handshake than for an answer.
func (l *Link) newLane(s *session, p *wanPath, pool bool, overdue func()) (*lane, error) {
	ctx, cancel := context.WithTimeout(l.node.ctx, handshakeTimeout)
	defer cancel()
	o := l.options()
	s.mu.Lock()
	instance, remote, over := s.instance, s.remote, s.over
	s.mu.Unlock()
	addresses, err := p.addresses(ctx, o, remote, over)
	if err != nil {
		return nil, err
	}
	hello := l.node.nearHello(s, o)
	if pool {
		hello.Features |= wire.FeaturePad
	}
	d := dialer{node: l.node, session: s, options: o, path: p, addresses: addresses, hello: hello, within: s.laneWithin(time.Now()),
		preface: preface.Preface{Kind: preface.Lane, Instance: instance},
		early:   !s.clear, overdue: overdue}
	c, err := d.dial(l.node.ctx)
	if err != nil {
		p.failed(err)
		return nil, err
	}
	p.stood(c)
	if !d.early && c.hello.Instance != instance {
		c.bulk.Close()
		return nil, errOtherProcess
	}
	lane := newLane(s, c, nil)
	if d.early {
		lane.instance = instance
	}
	if !s.join(lane, pool) {
		c.bulk.Close()
		return nil, errors.New("the session is closed")
	}
	if !slices.Contains(l.pathsNow(), p) { // whose other lanes are closed
		lane.close()
		return nil, errPathGone
	}
	return lane, nil
}

func (n *Node) dropLink(l *Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.links = slices.DeleteFunc(n.links, func(x *Link) bool { return x == l })
}
