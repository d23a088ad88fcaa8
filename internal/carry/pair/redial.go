package pair

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

// maxRedials bounds attempts for a control connection at the same time, on each path.
const maxRedials = 64

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

// redialer gets a session of a link its control connections.
type redialer struct {
	l *Link
	s *session
}

// redial begins another attempt to get a control connection.
func (r redialer) redial(now time.Time) {
	r.checkDead(now)
	l, s := r.l, r.s
	s.mu.Lock()
	away := now.Sub(s.since)
	every := redialEvery(away)
	if refuses(s.problem) {
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
	seeks := r.seeks(away)
	for _, p := range l.paths.forControl(away) {
		r.attempt(p, false)
		if seeks {
			r.attempt(p, true)
		}
	}
}

// attempt begins one for a control connection over a path, with any for that of any host of the site.
func (r redialer) attempt(p *wanPath, any bool) {
	l, s := r.l, r.s
	if !p.mayRedial(l.node.dials.Load() >= maxDials) {
		return
	}
	l.node.dials.Add(1)
	l.node.tasks.Go(func() {
		err := r.dialControl(p, nil, any)
		l.node.dials.Add(-1)
		p.redialEnded()
		if err != nil {
			p.failed(err)
			s.note(err)
			switch {
			case !any:
				s.missed.Store(true)
			case problemOf(err) == flow.PairUnpaired:
				s.mu.Lock()
				s.sought = time.Now()
				s.mu.Unlock()
			}
		}
		l.poke()
	})
}

// seekAfter is the least time for which a session's own host may be away before others of its site are
// asked to take new flows: as long as an answer takes that is late for some other reason.
const seekAfter = 300 * time.Millisecond

// seeks reports that any host of the site may take new flows, since the session's does not answer.
func (r redialer) seeks(away time.Duration) bool {
	l, s := r.l, r.s
	s.mu.Lock()
	refused := time.Since(s.sought) < refusedEvery // by each of the keys
	s.mu.Unlock()
	return s.host().key != nil && !refused && (s.missed.Load() || away > s.patience(seekAfter, 4)) && l.current() == s &&
		len(l.node.identity.Hosts(s.peer)) > 1
}

func (s *session) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.control() != nil || s.node.closing.Load() {
		return
	}
	if s.instance != 0 {
		err = broken(err)
	}
	if problemOf(err) == flow.PairPathDown && time.Since(s.refused) < 2*refusedEvery {
		return // on another path somebody answers
	}
	if refuses(problemOf(err)) && s.paths.several() {
		s.refused = time.Now()
	}
	if p := problemOf(err); p != s.problem {
		s.node.limited.Log(slog.LevelWarn, "far relay not reached", []string{"peer", "tunnel", "problem"}, slog.String("peer", s.peer), slog.String("tunnel", s.tunnel),
			slog.String("problem", string(p)), slog.Any("error", err))
	}
	s.problem, s.text = problemOf(err), err.Error()
	s.unmade.note(err)
}

// dialControl makes a control connection over a path, in place of replace, if that still stands. With any
// another host of the site may answer than the session's: then another session begins.
func (r redialer) dialControl(p *wanPath, replace *control, any bool) error {
	l, s := r.l, r.s
	ctx, cancel := context.WithTimeout(l.node.ctx, handshakeTimeout)
	defer cancel()
	o := l.options()
	s.mu.Lock()
	instance := s.instance
	s.mu.Unlock()
	who := s.host()
	d := dialer{node: l.node, session: s, options: o, peer: s.target(), path: p, hello: s.nearHello(o), within: s.connectWithin(),
		preface: preface.Preface{Kind: preface.Control, Instance: instance}}
	var next *session // with another host
	if any {
		d.peer = s.peer
		d.names = func(other host) wire.Hello {
			next = nil
			if l.node.same(other, who) {
				return d.hello
			}
			l.mu.Lock()
			next = l.newSession(s.peer)
			l.mu.Unlock()
			return next.nearHello(o)
		}
	}
	listed, err := r.locate(ctx, &d, who, any)
	if err != nil {
		return err
	}
	if who.key != nil && !any && replace == nil {
		s.refusals.begin(p, d.addresses)
		d.met = func(to netip.AddrPort, err error) { s.refusals.note(p, to, err, time.Now()) }
	}
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
	var greeted *bulkConn
	d.greets = func(bulk *bulkConn) bool {
		if next != nil { // a session of its own
			return true
		}
		s.greeter.end(greeted) // that was to another host
		if greeted = nil; s.greeter.begin(bulk, s.answerWithin(suspectAfter, 4), func() bool { return s.control() == replace }) {
			greeted = bulk
		}
		return greeted != nil
	}
	defer func() { s.greeter.end(greeted) }()
	if replace == nil {
		d.turn = func() (leave func(), mine bool) { return r.controlTurn(any) }
	}
	c, err := d.dial(l.node.ctx)
	if err != nil && greeted != nil && !s.greeter.is(greeted) {
		err = errNoHello
	}
	if err != nil || c == nil {
		return err
	}
	defer c.leave()
	c.listed = slices.Contains(listed, c.hello.Address)
	if next != nil {
		return r.goTo(next, c)
	}
	s.beginning.Lock() // attempts run side by side
	defer s.beginning.Unlock()
	s.mu.Lock()
	// Another attempt may have found another process meanwhile. Then this answer says nothing of that: it
	// may live, with flows.
	stale := s.instance != instance && s.instance != c.hello.Instance
	late := s.control() != nil && s.control() != replace || !s.greeter.is(c.bulk) || s.closed.Load() || stale || l.node.closing.Load()
	restarted := s.instance != 0 && s.instance != c.hello.Instance
	s.mu.Unlock()
	if late {
		c.bulk.Close()
		return nil
	}
	p.stood(c)
	if restarted {
		r.restarted(c)
	}
	s.begin(c)
	if !slices.Contains(l.paths.list(), p) {
		l.leavePath(p, errPathGone)
	}
	return nil
}

// locate finds where to ask for a session's host, or any of its site. It returns the tunnel's own addresses.
func (r redialer) locate(ctx context.Context, d *dialer, who host, any bool) (listed []netip.AddrPort, err error) {
	l, s, p := r.l, r.s, d.path
	listed, err = p.addresses(ctx, d.options, netip.AddrPort{}, nil)
	d.addresses, d.known = listed, p.hosts
	at := p.options()
	if who.key == nil || any || at.Addresses != nil {
		return listed, err
	}
	s.mu.Lock()
	own := s.own
	s.mu.Unlock()
	var all []netip.AddrPort
	add := func(a netip.AddrPort) {
		if at.reaches(a) && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	if own.allowed(d.options.LanesTo) {
		add(own.at)
	}
	for _, a := range l.node.placesOf(d.options.Tunnel, who, func(a netip.Addr) bool { return inAny(d.options.LanesTo, a) }) {
		if !slices.Contains(listed, a) {
			add(a)
		}
	}
	more := len(all) > 0
	for _, a := range listed {
		if last, met := l.node.book.last(d.options.Tunnel, a); !met || l.node.same(last, who) {
			add(a)
		}
	}
	if len(all) == 0 || !more && len(all) == len(listed) {
		return listed, err
	}
	d.addresses, d.known = all, nil // of others than the path's
	return listed, nil
}

// goTo has a session with another host of the site take new flows in place of one whose host is away.
// Flows of which nothing has gone out go along.
func (r redialer) goTo(next *session, c *connection) error {
	l, s := r.l, r.s
	next.beginning.Lock()
	defer next.beginning.Unlock()
	l.mu.Lock()
	late := l.s != s || s.control() != nil || l.node.closing.Load() || !l.replaceBy(next)
	l.mu.Unlock()
	if late {
		c.bulk.Close()
		return nil
	}
	c.path.stood(c)
	next.begin(c)
	l.node.limited.Log(slog.LevelInfo, "another host of the site takes new flows", []string{"peer", "tunnel"},
		slog.String("peer", c.who.name), slog.String("tunnel", s.tunnel), slog.String("before", s.peerNow()))
	for _, f := range s.allFlows() {
		f.mu.Lock()
		if f.s == s && f.phase == phaseFresh && l.moveOn(f) {
			f.wake()
		}
		f.mu.Unlock()
	}
	if !slices.Contains(l.paths.list(), c.path) {
		l.leavePath(c.path, errPathGone)
	}
	return nil
}

// lookEvery is the time between two looks at where the addresses of a hop lead that is not used: an operator
// who has corrected one waits for it, and each look is a handshake.
const lookEvery = 10 * time.Second

// lookElsewhere begins another session if the link's own addresses lead to another host than the session's,
// and to that no more.
func (r redialer) lookElsewhere(now time.Time) {
	l, s := r.l, r.s
	hosts, who, o := l.node.identity.Hosts(s.peer), s.host(), l.options()
	l.mu.Lock()
	due := now.Sub(l.looked) >= lookEvery && len(hosts) > 1 && !l.closed && !l.node.closing.Load()
	if due {
		l.looked = now
	}
	l.mu.Unlock()
	paths := l.paths.usable()
	if !due || len(paths) == 0 {
		return
	}
	hosts = slices.DeleteFunc(hosts, func(h string) bool { return h == who.name })
	l.node.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(l.node.ctx, lookEvery)
		defer cancel()
		d := dialer{node: l.node, session: s, options: o, path: paths[0], within: s.connectWithin()}
		listed, err := d.path.addresses(ctx, o, netip.AddrPort{}, nil)
		config, unknown := l.node.identity.ClientTLS(s.peer)
		if err != nil || unknown != nil {
			return
		}
		for _, name := range append([]string{who.name}, hosts...) { // its own first: each other one refuses that
			for _, at := range listed {
				switch {
				case !d.answers(ctx, at, name, config):
				case name == who.name:
					return
				default:
					s.mu.Lock()
					s.draining = true
					s.mu.Unlock()
					l.leave(s)
					l.poke()
					return
				}
			}
		}
	})
}

// controlTurn lets one attempt at a time go beyond the connect, so that an outage does not end in hundreds of
// handshakes. Another one goes on beside an attempt that hangs.
func (r redialer) controlTurn(any bool) (leave func(), mine bool) {
	s := r.s
	s.mu.Lock()
	defer s.mu.Unlock()
	turn := &s.greeting
	if any {
		turn = &s.seeking
	}
	within := s.answerWithin(handshakeTimeout/5, 8)
	if s.control() != nil || !turn.IsZero() && time.Since(*turn) < within {
		return nil, false
	}
	began := time.Now()
	*turn = began
	r.l.poke() // lanes need not wait for this handshake
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if turn.Equal(began) {
			*turn = time.Time{}
		}
	}, true
}

var errNoHello = problem(flow.PairPathDown, "no answer to HELLO")

// moveControl takes the control connection to a better path: from one that is for standby to
// another, or to one of much less delay.
func (r redialer) moveControl(now time.Time) {
	l, s := r.l, r.s
	ctl := s.control()
	if ctl != nil {
		l.node.book.hear(ctl.c.hello.Instance, now.Add(-stamp(ctl.heard.Load()).until(now)))
	}
	if ctl == nil || !l.paths.several() {
		return
	}
	best := l.paths.best()
	from, to := ctl.c.path, best
	if from == nil || from == to || !slices.Contains(l.paths.usable(), to) || !better(to, from, now) {
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
		if err := r.dialControl(to, ctl, false); err != nil {
			to.failed(err)
		}
	})
}

// reachable reports whether lanes may be dialed: the control connection stands, or the
// far process is known and its host has just answered a connect, or answers on another path.
func (s *session) reachable() bool {
	elsewhere := s.paths.several() && len(s.paths.usable()) > 0
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.control() != nil || s.instance != 0 && (!s.greeting.IsZero() || elsewhere)
}

// restarted drops everything that the far process had, which is gone. If that has ended in order, a
// flow of which it has said nothing, and that it does not owe, was never dialed for, and begins again.
func (r redialer) restarted(c *connection) {
	s, h := r.s, c.hello
	s.mu.Lock()
	s.agree(wire.Features(s.agreed.Load()) & c.both) // lanes to either process may be there
	inOrder := h.Follows == s.instance
	owed := h.Owed.Numbers()
	s.instance, s.draining = h.Instance, false
	s.ended.Store(false)
	s.mu.Unlock()
	r.gone(cause(flow.EndPeerRestarted, errors.New("the far relay was restarted")), func(f *Flow) bool {
		return inOrder && f.phase == phaseAsked && f.near.untouched() && !slices.Contains(owed, f.id)
	})
}

// gone ends what the far process had, which is gone, but for flows that may begin again. It returns how many
// flows end.
func (r redialer) gone(c stream.Cause, again func(*Flow) bool) (ended int) {
	l, s := r.l, r.s
	s.closeLanes(func(*lane) bool { return true })
	for _, f := range s.allFlows() {
		f.mu.Lock()
		switch {
		case f.near.giveBack(c, false):
		case f.phase.unheard() || f.phase == phaseOver || f.s != s:
		case again(f):
			l.mu.Lock()
			f.near.unsend()
			l.mu.Unlock()
			f.wake()
		default:
			ended++
			f.near.openDue = false // nor is the new process to hear of it: it would dial for an OPEN
			f.phase.take(eventGone)
			f.sf.PeerGone(c)
			f.wake()
		}
		f.mu.Unlock()
	}
	return ended
}

// checkDead ends the flows of a far process that is dead, as its host says.
func (r redialer) checkDead(now time.Time) {
	l, s := r.l, r.s
	s.mu.Lock()
	instance, away := s.instance, now.Sub(s.since)
	s.mu.Unlock()
	if instance == 0 || !s.refusals.some() || s.flowCount() == 0 {
		return
	}
	lanes := s.pool.all()
	s.refusals.watch(lanes)
	for _, lane := range lanes {
		l.node.book.hear(instance, ackedAt(lane.bulk, now)) // other tunnels' sessions may have no lane
	}
	acked := l.node.book.lastHeard(instance)
	long := l.node.options.RefusedFor
	if away < long || !s.refusals.all(l.paths.forControl(away), acked, now, long) {
		return
	}
	dead := fmt.Errorf("the far relay is dead: its host has refused all connections for %v", long)
	if r.gone(cause(flow.EndPeerRefused, dead), func(*Flow) bool { return false }) > 0 {
		s.tell(slog.LevelWarn, "flows of a far relay end", dead)
	}
	s.refusals.clear()
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
