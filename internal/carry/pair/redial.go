package pair

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/wire"
)

// maxRedials bounds attempts for a control connection at the same time, on each path.
const maxRedials = 64

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

// redial begins another attempt to get a control connection.
func (l *Link) redial(s *session, now time.Time) {
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
	for _, p := range l.paths.forControl(away) {
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
	d := dialer{node: l.node, session: s, options: o, path: p, addresses: addresses, hello: s.nearHello(o), within: s.connectWithin(),
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
	late := s.control() != replace || s.closed.Load() || stale || l.node.closing.Load()
	restarted := s.instance != 0 && s.instance != c.hello.Instance
	s.mu.Unlock()
	if late {
		c.bulk.Close()
		return nil
	}
	p.stood(c)
	if restarted {
		l.restarted(s, c.hello)
	}
	s.begin(c)
	if !slices.Contains(l.paths.list(), p) {
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
	if s.control() != nil || !s.greeting.IsZero() && time.Since(s.greeting) < within {
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

// moveControl takes the control connection to a better path: from one that is for standby to
// another, or to one of much less delay.
func (l *Link) moveControl(s *session, now time.Time) {
	ctl := s.control()
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
		if err := l.dialControl(s, to, ctl); err != nil {
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
func (l *Link) restarted(s *session, h wire.Hello) {
	s.mu.Lock()
	inOrder := h.Follows == s.instance
	owed := h.Owed.Numbers()
	s.instance, s.draining = h.Instance, false
	s.ended.Store(false)
	s.mu.Unlock()
	s.closeLanes(func(*lane) bool { return true })
	c := cause(flow.EndPeerRestarted, errors.New("the far relay was restarted"))
	for _, f := range s.allFlows() {
		f.mu.Lock()
		switch {
		case f.near.giveBack(c, false):
		case f.phase.unheard() || f.phase == phaseOver || f.s != s:
		case inOrder && f.phase == phaseAsked && f.near.untouched() && !slices.Contains(owed, f.id):
			l.mu.Lock()
			f.near.unsend()
			l.mu.Unlock()
			f.wake()
		default:
			f.near.openDue = false // nor is the new process to hear of it: it would dial for an OPEN
			f.phase.take(eventGone)
			f.sf.PeerGone(c)
			f.wake()
		}
		f.mu.Unlock()
	}
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
