package pair

import (
	"cmp"
	"net"
	"slices"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/words/sorted"
)

const maxSessions = 512 // of one peer

const maxIdleLanes = 1024 // of one peer: lanes that carry no flow

const maxPeerResume = time.Hour // for which a peer may have its flows wait for a lane

func keyOf(peer string, h wire.Hello) NearSession {
	return NearSession{peer, h.Instance, h.Session}
}

// known reports whether a HELLO names a session of this process.
func (n *Node) known(who host, h wire.Hello) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.find(who, h) != nil
}

// find returns the session that a HELLO names, or nil. The peer may have got another name since it
// began. The caller holds n.mu.
func (n *Node) find(who host, h wire.Hello) *session {
	now := keyOf(who.name, h)
	if s := n.accepted[now]; s != nil {
		return s
	}
	for was, s := range n.accepted {
		if was.Instance != h.Instance || was.Session != h.Session || !n.same(*s.proved.Load(), who) {
			continue
		}
		delete(n.accepted, was)
		n.accepted[now], s.key = s, now
		if n.uses[who.name] == nil {
			n.uses[who.name] = s.use
		}
		return s
	}
	return nil
}

// roomFor reports whether a peer may have one more session, perhaps in place of one without flows
// that has lost its control connection: victim, which the caller closes. The caller holds n.mu.
func (n *Node) roomFor(peer string) (victim *session, ok bool) {
	var all []*session
	for key, s := range n.accepted {
		if key.Peer == peer {
			all = append(all, s)
		}
	}
	if len(all) < maxSessions {
		return nil, true
	}
	var oldest time.Time
	for _, s := range all {
		if since, idle := s.abandoned(); idle && (victim == nil || since.Before(oldest)) {
			victim, oldest = s, since
		}
	}
	return victim, victim != nil
}

// tooMany is why a peer gets no further session.
func tooMany(peer string) error {
	return problem(flow.PairBusy, "peer %s has %d sessions, as many as one may have", peer, maxSessions)
}

// full reports that a HELLO asks for a session that the peer may not have.
func (n *Node) full(who host, h wire.Hello) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.find(who, h) != nil {
		return false
	}
	_, ok := n.roomFor(who.name)
	return !ok
}

// trimIdle closes the peer's lanes that have carried no flow for longest, if it has too many.
func (n *Node) trimIdle(s *session) {
	over := int(s.use.idle.Load()) - maxIdleLanes
	if over <= 0 {
		return
	}
	type idle struct {
		l     *lane
		since stamp
	}
	var all []idle
	for _, other := range n.sessions() {
		if other.near || other.use != s.use {
			continue
		}
		other.pool.mu.Lock()
		for l := range other.lanes {
			if since, yes := l.idle(); yes {
				all = append(all, idle{l, since})
			}
		}
		other.pool.mu.Unlock()
	}
	sorted.By(all, func(a, b idle) int { return cmp.Compare(a.since, b.since) })
	for _, one := range all[:min(over+maxIdleLanes/16, len(all))] { // some more: the next look is not at once
		one.l.close()
	}
}

// sessionOf finds or makes the session of an accepted connection.
func (n *Node) sessionOf(c *connection, a Acceptor) (*session, error) {
	var victim *session
	defer func() {
		if victim != nil {
			victim.close()
		}
	}()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closing.Load() {
		return nil, net.ErrClosed
	}
	s := n.find(c.who, c.hello)
	if s == nil {
		var ok bool
		peer, key := c.who.name, keyOf(c.who.name, c.hello)
		if victim, ok = n.roomFor(peer); !ok {
			return nil, tooMany(peer)
		}
		if n.uses[peer] == nil {
			n.uses[peer] = &peerUse{}
		}
		s = newSession(&n.process, peer, c.hello.Session, false)
		s.use, s.left, s.key = n.uses[peer], n.sessionEnded, key
		s.idle = &s.use.idle
		s.tunnel, s.mode = a.Tunnel(), modeOf(c.hello.Features)
		s.origin, s.boot = origin{peer, a.Tunnel(), c.hello.Origin}, c.hello.Boot
		s.agree(c.both) // its first lane may come before begin
		if o := s.use.takeLeft(key); o != nil {
			s.outcomes = o
			for id, code := range o.codes() { // a repeated OPEN dials nothing here either
				s.bury(id, code)
			}
		}
		n.accepted[key] = s
	}
	s.acceptor.Store(&a)
	s.proved.Store(&c.who)
	if c.hello.Resume > 0 {
		s.resume.Store(int64(min(c.hello.Resume, maxPeerResume)))
	}
	s.mu.Lock()
	s.instance, s.release = c.hello.Instance, c.hello.Release
	s.mu.Unlock()
	return s, nil
}

// sessions lists the sessions of both kinds.
func (n *Node) sessions() (all []*session) {
	n.mu.Lock()
	links := slices.Clone(n.links)
	for _, s := range n.accepted {
		all = append(all, s)
	}
	n.mu.Unlock()
	for _, l := range links {
		all = append(all, l.sessions()...)
	}
	return all
}

// replaced reports whether another process has taken the place of the session's near relay, which is
// away: one of the same near tunnel and the same start of its host, which has been connected for
// long. (One process may have several sessions here: several hops of its tunnel may lead to this one.) A process that lives would be connected too, after an upgrade as well. That does not hold of
// relays that have run beside each other, nor of those on two hosts, whose paths fail each for
// itself.
func (n *Node) replaced(s *session, now time.Time, long time.Duration) bool {
	s.mu.Lock()
	instance, alone := s.instance, s.origin.name != "" && !s.twin
	s.mu.Unlock()
	if !alone {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for key, other := range n.accepted {
		if key.Instance != instance && other.origin == s.origin && other.boot == s.boot && other.upSince(now) > long {
			return true
		}
	}
	return false
}

// findTwins finds near relays with the same key, host name and entrance that live beside each other,
// as clones of a host do. An older process that drains after an upgrade is none.
func (n *Node) findTwins(now time.Time) {
	within := max(n.options.ReplacedAfter, 3*pingEvery)
	alive, instances := map[origin][]*session{}, map[origin]map[uint64]bool{}
	n.mu.Lock()
	defer n.mu.Unlock()
	for key, s := range n.accepted {
		if s.origin.name == "" {
			continue
		}
		s.mu.Lock()
		s.beside = false
		// Who was heard since all of them were connected has not died meanwhile.
		if s.control() != nil && !s.draining && now.Sub(s.since) > within && stamp(s.control().heard.Load()).until(now) < within {
			if instances[s.origin] == nil {
				instances[s.origin] = map[uint64]bool{}
			}
			instances[s.origin][key.Instance] = true
			alive[s.origin] = append(alive[s.origin], s)
		}
		s.mu.Unlock()
	}
	for o, all := range alive {
		if len(instances[o]) < 2 {
			continue
		}
		for _, s := range all {
			s.mu.Lock()
			s.twin, s.beside = true, true
			s.mu.Unlock()
		}
	}
}

// sessionEnded keeps the outcomes of a session that is closed.
func (n *Node) sessionEnded(s *session) {
	owesFor := s.owesFor()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.accepted[s.key] == s {
		delete(n.accepted, s.key)
		s.use.leave(left{near: s.key, outcomes: s.outcomes, owesFor: owesFor})
	}
}
