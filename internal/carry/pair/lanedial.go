package pair

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/wire"
)

// purpose is what a lane is made for.
type purpose uint8

const (
	forFlow purpose = iota
	forPool         // both ends open its window
	forLook         // at each other's certificates: it is no lane before the far relay's HELLO
)

// dialLanes dials lanes that flows or the pool lack.
func (l *Link) dialLanes(s *session, now time.Time) {
	best := l.paths.best()
	s.mu.Lock()
	up, ahead := s.control() != nil, s.knows(wire.FeatureAhead)
	s.mu.Unlock()
	crowded := s.crowded(now)
	l.mu.Lock()
	waiting, fresh := 0, 0
	for _, f := range l.waiting {
		if f.s == s {
			waiting++
		}
		if f.s == s && f.near.needsOpen && !ahead {
			fresh++
		}
	}
	if crowded {
		waiting = fresh
	}
	forFlows := max(waiting-s.laneDials, 0)
	var forPool []*wanPath
	if s == l.s && !l.closed && up {
		forPool = s.lacks(l.paths.usable(), l.o.Warm)
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
	if enough && !refusesKeys(problemOf(s.unmade.why())) { // else a look at certificates finds its end
		s.unmade.note(nil)
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
	to := forFlow
	if pool {
		to = forPool
	}
	lane, err := l.dialCounted(s, p, to, func() {
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
	l.place(s, lane)
	lane.flush() // what is left of the handshake, if no flow took the lane
}

// dialCounted makes a lane over a path for which the link's laneDials has been raised. overdue may be nil.
func (l *Link) dialCounted(s *session, p *wanPath, to purpose, overdue func()) (*lane, error) {
	began := time.Now()
	lane, err := l.newLane(s, p, to, overdue)
	l.mu.Lock()
	l.laneDialed(s, lane, err, began)
	l.mu.Unlock()
	if err != nil {
		l.laneFailed(s, err)
		return nil, err
	}
	s.mu.Lock()
	s.own.astray = false // lanes to this address lead to the session's process
	s.mu.Unlock()
	if lane.instance == 0 { // else the far relay may refuse it still, in place of HELLO
		s.unmade.note(nil)
	}
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
		says = err != nil && waits(problemOf(err))
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
	s.unmade.note(err)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.laneRetry = time.Now().Add(tickEvery)
	if refusesKeys(problemOf(err)) {
		l.laneRetry = time.Now().Add(refusedEvery)
	}
}

// newLane makes a lane over a path. overdue, unless nil, is called if the far relay takes longer for the
// handshake than for an answer.
func (l *Link) newLane(s *session, p *wanPath, to purpose, overdue func()) (*lane, error) {
	ctx, cancel := context.WithTimeout(l.node.ctx, handshakeTimeout)
	defer cancel()
	o := l.options()
	s.mu.Lock()
	instance, remote, over := s.instance, s.remote, s.over
	s.mu.Unlock()
	own := l.laneAt(s, o, p)
	addresses := []netip.AddrPort{own}
	if !own.IsValid() {
		var err error
		if addresses, err = p.addresses(ctx, o, remote, over); err != nil {
			return nil, err
		}
	}
	hello := s.nearHello(o)
	if to == forPool {
		hello.Features |= wire.FeaturePad
	}
	d := dialer{node: l.node, session: s, options: o, peer: s.target(), path: p, addresses: addresses, known: p.hosts, hello: hello, within: s.laneWithin(time.Now()),
		preface: preface.Preface{Kind: preface.Lane, Instance: instance},
		early:   !s.clear && to != forLook, overdue: overdue}
	c, err := d.dial(l.node.ctx)
	if own.IsValid() {
		s.triedOwn(own, err)
	}
	if err != nil {
		p.failed(err)
		return nil, err
	}
	p.stood(c)
	if !d.early && c.hello.Instance != instance {
		c.bulk.Close()
		return nil, errOtherProcess
	}
	s.proved.Store(&c.who)
	lane := newLane(&s.relation, s, c, nil)
	if d.early {
		lane.instance = instance
	}
	s.mu.Lock()
	joined := s.instance == instance && s.join(lane, to == forPool) // what the session knows is of its process
	s.mu.Unlock()
	if !joined {
		c.bulk.Close()
		return nil, errors.New("the session is closed, or with another process")
	}
	if !slices.Contains(l.paths.list(), p) { // whose other lanes are closed
		lane.close()
		return nil, errPathGone
	}
	return lane, nil
}

// refresh makes a lane, so that both ends see each other's present certificates.
func (l *Link) refresh(s *session, made func(error)) {
	l.mu.Lock()
	l.laneDials++
	l.mu.Unlock()
	l.node.tasks.Go(func() {
		lane, err := l.dialCounted(s, l.paths.best(), forLook, nil)
		if err == nil {
			l.place(s, lane)
		}
		made(err)
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
	lane, _ := l.dialCounted(s, p, forFlow, nil)
	return lane
}

// wantMore gets the flow one more lane, over a path. The caller holds f.mu.
func (l *Link) wantMore(f *Flow, p *wanPath) {
	f.spread.joining++
	s := f.s
	l.node.tasks.Go(func() {
		lane := l.laneOver(s, p)
		f.mu.Lock()
		taken := f.spread.join(lane)
		f.mu.Unlock()
		switch {
		case taken:
		case lane != nil:
			l.place(s, lane)
		}
		if lane != nil {
			lane.flush() // what is left of the handshake, if no flow took the lane
		}
	})
}

// laneWithin is connectWithin for a lane. While no lane can be made although the control connection
// stands, the path may have become slower than that: each connect gets as long as that has lasted.
func (s *session) laneWithin(now time.Time) time.Duration {
	within := s.connectWithin()
	since, err := s.unmade.now()
	if s.control() == nil || err == nil {
		return within
	}
	return max(within, min(now.Sub(since), handshakeTimeout))
}

// laneAt is where a lane goes in place of the address of the control connection; invalid: it goes there.
func (l *Link) laneAt(s *session, o LinkOptions, p *wanPath) netip.AddrPort {
	who := s.host()
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.own.at
	if path := p.options(); !s.own.allowed(o.LanesTo) || path.Addresses != nil || !path.reaches(at) {
		return netip.AddrPort{}
	}
	last, met := l.node.book.last(s.tunnel, at)
	if !s.own.choose(time.Now(), met && l.node.same(last, who)) {
		return netip.AddrPort{}
	}
	return at
}
