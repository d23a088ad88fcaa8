package pair

import (
	"errors"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/wire"
)

const (
	checkKeysTick = 10 // ticks
)

// watch looks after sessions until the node closes.
func (n *Node) watch() {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	looked := time.Now()
	for tick := 0; ; tick++ {
		select {
		case <-n.ctx.Done():
			return
		case <-ticker.C:
			runtime.Gosched() // behind all that is ready now
			now := time.Now()
			n.strain.note(now.Sub(looked)-tickEvery, now)
			looked = now
			if tick%checkKeysTick == 0 {
				n.boundStores()
				n.limited.Flush()
				n.findTwins(now)
				n.lookElsewhere(now)
			}
			for _, s := range n.sessions() {
				n.look(s, now, tick%checkKeysTick == 0, tick%sweepEvery == 0)
			}
		}
	}
}

// lookElsewhere has links look at their own addresses whose session is with the host of another hop of their
// tunnel: that session is not used, so nothing else would find that they lead to another host by now.
func (n *Node) lookElsewhere(now time.Time) {
	n.mu.Lock()
	links := slices.Clone(n.links)
	n.mu.Unlock()
	links = slices.DeleteFunc(links, (*Link).closing) // what it has left are flows
	slices.SortStableFunc(links, func(a, b *Link) int { return a.options().Place - b.options().Place })
	type met struct{ tunnel, host string }
	first := map[met]bool{}
	for _, l := range links {
		s := l.current()
		who := s.host()
		if who.key == nil || s.control() == nil {
			continue
		}
		if at := (met{s.tunnel, who.name}); first[at] {
			redialer{l, s}.lookElsewhere(now)
		} else {
			first[at] = true
		}
	}
}

// look looks after one session, slow each second, sweep now and then at flows that rest.
func (n *Node) look(s *session, now time.Time, slow, sweep bool) {
	resume, admitted := n.rules(s, slow)
	if !admitted {
		n.revoke(s)
		return
	}
	if slow {
		s.revoked.Store(false) // the peer is admitted again
	}
	if !s.near {
		if ctl := s.control(); ctl != nil && s.knows(wire.FeatureTrouble) {
			if text, known := s.latest().Trouble(); known {
				s.trouble.tell(ctl, text)
			}
		}
	}
	s.watchControl(now, slow)
	if slow {
		lookAtCertificates(s, now)
	}
	if slow && s.near {
		s.renew(now)
		s.trim(s.paths.list(), s.link.options().Warm, now)
	}
	w, away, empty := s.waitAt(now, resume)
	if long := n.options.ReplacedAfter; !s.near && away > long && n.replaced(s, now, long) {
		s.endAll(cause(flow.EndPeerRestarted, errors.New("the near relay was restarted")))
		s.close()
		return
	}
	flows := s.watchedFlows
	if sweep || w.down {
		flows = s.allFlows
	}
	resuming := 0
	for _, f := range flows() {
		resuming += btoi(f.watch.look(now, w))
	}
	s.resuming.Store(int64(resuming))
	s.closeLanes(func(l *lane) bool { return l.overdue(now) })
	if empty && !s.near && away > min(resume, emptyFor) {
		s.close()
	}
}

// lookAtCertificates finds that new connections of a session are refused for a certificate, or are not any more.
func lookAtCertificates(s *session, now time.Time) {
	v, key := &s.validity, s.host().key
	own, peers := s.node.identity.Ends(key)
	v.look(own, peers, s.peerNow(), s.near, now)
	if !s.near || s.control() == nil {
		return
	}
	shows := s.node.identity.Shown(key) // before the handshake, which may show a later one
	if v.begin(shows, own, peers, refusesKeys(problemOf(s.unmade.why())), now) {
		s.link.refresh(s, func(err error) { v.ended(shows, err) })
	}
}

// waitAt is what flows wait for at a moment. away is how long the control connection has
// been away; 0: it stands.
func (s *session) waitAt(now time.Time, resume time.Duration) (w wait, away time.Duration, empty bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w = wait{resume: resume, after: math.MaxInt64}
	stands := s.control() != nil
	if s.near {
		err := s.unmade.why()
		w.makes = stands && (err == nil || waits(problemOf(err))) || !stands && s.proven.Load() > 0
	}
	if !stands {
		away = now.Sub(s.since)
		w.outage, w.down = s.stood && away <= resume, away > resume
	} else if s.outage > 0 {
		w.after = now.Sub(s.since)
	}
	return w, away, s.flowCount() == 0
}

// rules are the time that flows wait for a lane, and whether the peer may be here.
func (n *Node) rules(s *session, slow bool) (resume time.Duration, admitted bool) {
	if s.near {
		if slow {
			leaveUnmeant(s)
		}
		return s.waits(s.link.options()), !slow || n.listed(&s.proved)
	}
	a := s.latest()
	if slow {
		switch {
		case a.Removed():
			s.setStale("the tunnel of a peer was removed")
		case a.Clear() != s.clear:
			s.setStale("the tunnel of a peer has another encrypt now")
		default:
			s.setStale("")
		}
	}
	return s.waitsFor(), !slow || n.listed(&s.proved) && a.Admits(s.peerNow())
}

// leaveUnmeant has a near session's host keep its flows, but get no new ones, if it has a name by now that the
// tunnel does not mean, and there are hosts that it means.
func leaveUnmeant(s *session) {
	if who := s.host(); who.key != nil && !who.means(s.peer) && len(s.node.identity.Hosts(s.peer)) > 0 {
		s.mu.Lock()
		s.draining = true
		s.mu.Unlock()
		s.link.leave(s)
	}
}

// watchControl measures the round trip and finds a dead control connection.
func (s *session) watchControl(now time.Time, slow bool) {
	ctl := s.control()
	if ctl == nil {
		return
	}
	since, waiting := ctl.waits(now)
	if s.near && ctl.suspectNow(now, s.owesWithin(now, ctl.c.bulk.rtt)) {
		s.debug("far relay is suspect", "no answer to PING")
		s.poke()
	}
	within := s.suspectWithin()
	dead := since > within && stuck(ctl.c.bulk, within)
	switch {
	case waiting && (dead || since > s.answerWithin(pongWithin, 8) && ctl.silent(now, pongWithin+s.strained())):
		s.node.log.Debug("path is dead", "peer", s.peer, "tunnel", s.tunnel)
		err := errors.New("no answer to PING")
		if !dead && s.strained() >= overloadedFrom {
			err = problem(flow.PairOverloaded, "%w", err)
		}
		s.controlLost(ctl, err) // before the close, of which the reader tells
		ctl.close()
		s.dropWarm(ctl.c.path)
	case !waiting && (since > pingEvery):
		ctl.sendPing()
	case s.holds():
		ctl.ask(now) // else its death shows only at the next PING
	}
	if slow {
		ctl.announce(s.node.identity.Announced(s.peerNow()))
	}
}

// revoke ends the session of a peer that is admitted no more: its flows first, so that
// it learns why, and its connections a second later.
func (n *Node) revoke(s *session) {
	again := s.revoked.Swap(true)
	if s.near && again {
		s.close()
		return
	}
	if s.near {
		err := errors.New("the peer was taken out of this host's list")
		s.tell(slog.LevelWarn, "session ends", err)
		s.link.revoke(s, err)
		return
	}
	// Since the look before, the peer may have been admitted for a moment, and begun flows.
	if told := s.resetAll(flow.EndDenied, errDenied); told || !again {
		s.tell(slog.LevelWarn, "peer is not admitted any more", nil)
		return
	}
	s.close()
}
