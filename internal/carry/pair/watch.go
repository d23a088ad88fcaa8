package pair

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

const (
	checkKeysTick = 10 // ticks
	// wakeStale is the age of a lane beyond which a WAKE was sent in its knowledge.
	wakeStale     = 100 * time.Millisecond
	announceEvery = 10 * time.Second // a key that the peer has not taken
	renewEvery    = time.Hour        // of the pool's lanes, one at a time
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
			}
			for _, s := range n.sessions() {
				s.watch(now, tick%checkKeysTick == 0, tick%sweepEvery == 0)
			}
		}
	}
}

func (s *session) watch(now time.Time, slow, sweep bool) {
	resume, admitted := s.rules(slow)
	if !admitted {
		s.revoke()
		return
	}
	s.revoked = s.revoked && !slow // the peer is admitted again
	s.tellTrouble()
	s.watchControl(now, slow)
	if slow {
		s.renew(now)
		if s.near {
			s.link.trimPool(s, now)
		}
	}
	w, away, empty := s.waitAt(now, resume)
	if long := s.node.options.ReplacedAfter; away > long && s.node.replaced(s, now, long) {
		s.endAll(cause(flow.EndPeerRestarted, errors.New("the near relay was restarted")))
		s.close()
		return
	}
	for _, f := range s.watchedFlows(sweep || w.down) {
		f.watch(now, w)
	}
	s.closeLanes(func(l *lane) bool { return l.overdue(now) })
	if empty && !s.near && away > min(resume, emptyFor) {
		s.close()
	}
}

// wait is what flows without a lane have to wait for.
type wait struct {
	resume time.Duration // so long at most
	outage bool          // the control connection is away, for less than resume
	down   bool          // for longer
	makes  bool          // it stands, or is about to, and lanes are being made, as far as is known
	after  time.Duration // since the end of the latest outage; without one, and after resume, endless
}

// waitAt is what flows wait for at a moment. away is how long the control connection has
// been away; 0: it stands.
func (s *session) waitAt(now time.Time, resume time.Duration) (w wait, away time.Duration, empty bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w = wait{resume: resume, after: math.MaxInt64}
	w.makes = s.ctl != nil && (s.laneErr == nil || problemOf(s.laneErr).waits()) || s.ctl == nil && s.proven.Load() > 0
	if s.ctl == nil {
		away = now.Sub(s.since)
		w.outage, w.down = s.stood && away <= resume, away > resume
	} else if s.outage > 0 {
		w.after = now.Sub(s.since)
	}
	return w, away, len(s.flows) == 0
}

// revoke ends the session of a peer that is admitted no more: its flows first, so that
// it learns why, and its connections a second later.
func (s *session) revoke() {
	if s.revoked {
		s.close()
		return
	}
	s.revoked = true
	s.tell(slog.LevelWarn, "peer is not admitted any more", nil)
	s.resetAll(flow.EndDenied, errors.New("the peer is not admitted any more"))
}

// rules are the time that flows wait for a lane, and whether the peer may be here.
func (s *session) rules(slow bool) (resume time.Duration, admitted bool) {
	if s.near {
		return s.waits(s.link.options()), true
	}
	s.mu.Lock()
	a, resume := s.acceptor, s.resume
	s.mu.Unlock()
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
	return cmp.Or(resume, DefaultResume), !slow || a.Admits(s.peer) && len(s.node.identity.PeerKeys(s.peer)) > 0
}

// watchControl measures the round trip and finds a dead control connection.
func (s *session) watchControl(now time.Time, slow bool) {
	ctl := s.control()
	if ctl == nil {
		return
	}
	ctl.mu.Lock()
	waiting, since := ctl.ping != 0, now.Sub(ctl.pinged)
	ctl.mu.Unlock()
	within := s.suspectWithin()
	dead := since > within && stuck(ctl.c.bulk, within)
	switch {
	case waiting && (dead || since > s.answerWithin(pongWithin, 8) && ctl.silent(now, pongWithin+s.strained())):
		s.node.log.Debug("path is dead", "peer", s.peer, "tunnel", s.tunnel)
		err := errors.New("no answer to PING")
		if !dead && s.strained() >= overloadedFrom {
			err = problem(ProblemOverloaded, "%w", err)
		}
		s.controlLost(ctl, err) // before the close, of which the reader tells
		ctl.close()
		s.dropWarm(ctl.c.path)
	case !waiting && (since > pingEvery):
		s.sendPing(ctl)
	}
	if slow {
		s.announce(ctl)
	}
}

// announce tells the peer a key that a rotation made, and again while one of them could
// not store it.
func (s *session) announce(ctl *control) {
	key := s.node.identity.Announced(s.peer)
	if key == nil {
		return
	}
	ctl.mu.Lock()
	due := ctl.keys != string(key) || time.Since(ctl.announced) > announceEvery
	if due {
		ctl.keys, ctl.announced = string(key), time.Now()
	}
	ctl.mu.Unlock()
	if due {
		ctl.post(wire.Message{Type: wire.MessageKey, Bytes: key})
	}
}

func (s *session) sendPing(ctl *control) {
	s.mu.Lock()
	s.pings++
	id := s.pings
	s.mu.Unlock()
	_, repeats := pathOf(ctl.c.bulk)
	ctl.mu.Lock()
	ctl.ping, ctl.pinged, ctl.repeats = id, time.Now(), repeats
	ctl.mu.Unlock()
	ctl.post(wire.Message{Type: wire.MessagePing, Bytes: binary.BigEndian.AppendUint64(nil, id)})
}

// renew closes the lane of the pool that was used longest ago, each hour; another is
// dialed. So each end sees the other's new key although no flow needs a lane.
func (s *session) renew(now time.Time) {
	s.mu.Lock()
	var old *lane
	if now.Sub(s.renewed) > renewEvery {
		s.renewed = now
		if len(s.warm) > 0 {
			old, s.warm = s.warm[0], s.warm[1:]
		}
	}
	s.mu.Unlock()
	if old != nil {
		old.close()
	}
}

// dropWarm closes the lanes of the pool that a path has; others are dialed.
func (s *session) dropWarm(p *wanPath) {
	for l := s.takeWarm(p); l != nil; l = s.takeWarm(p) {
		l.close()
	}
}

// whyLost is why a flow has had no lane for as long as it waits.
func (s *session) whyLost() stream.Cause {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctl == nil && errors.Is(s.laneErr, unix.ECONNREFUSED) {
		return cause(flow.EndPeerRefused, fmt.Errorf("no lane for the time that a flow waits: %w", s.laneErr))
	}
	return cause(flow.EndWANLost, errors.New("no lane for the time that a flow waits"))
}

// whyDown is why a flow has got no lane.
func (s *session) whyDown() stream.Cause {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(s.laneErr, unix.EADDRNOTAVAIL):
		return cause(flow.EndNoLocalPort, s.laneErr)
	case s.problem != ProblemNone:
		return cause(flow.EndPairDown, errors.New(string(s.problem)+": "+s.text))
	case s.laneErr != nil:
		return cause(flow.EndPairDown, fmt.Errorf("no new lane: %w", s.laneErr))
	}
	return cause(flow.EndPairDown, errors.New("no lane to the far relay"))
}

// closeLanes closes the lanes that are meant.
func (s *session) closeLanes(meant func(*lane) bool) {
	s.mu.Lock()
	lanes := slices.Collect(maps.Keys(s.lanes))
	s.mu.Unlock()
	for _, l := range lanes {
		if meant(l) {
			l.close()
		}
	}
}

// resetAll resets the flows at both ends.
func (s *session) resetAll(r flow.EndReason, err error) {
	for _, f := range s.allFlows() {
		f.Reset(r, err)
	}
}

// endAll ends the flows without the other end.
func (s *session) endAll(c stream.Cause) {
	for _, f := range s.allFlows() {
		f.mu.Lock()
		if f.phase != phaseOver {
			f.giveUp(c)
		}
		f.mu.Unlock()
	}
}

func (s *session) dropAll() { s.endAll(cause(flow.EndDrain, nil)) }

// close ends the session's connections, and flows that are left.
func (s *session) close() {
	s.mu.Lock()
	s.closed = true
	ctl, timer := s.ctl, s.timer
	s.ctl = nil
	key := NearSession{s.peer, s.instance, s.id}
	s.mu.Unlock()
	if timer != nil {
		timer.Stop()
	}
	if ctl != nil {
		ctl.close()
	}
	s.closeLanes(func(*lane) bool { return true })
	s.dropAll() // whose outcomes are left with the others
	owesFor := s.owesFor()
	s.node.mu.Lock()
	defer s.node.mu.Unlock()
	if s.node.accepted[key] == s {
		delete(s.node.accepted, key)
		s.use.leave(left{near: key, outcomes: s.outcomes, owesFor: owesFor})
	}
}

// sweepEvery is the time between two looks at flows that rest, in ticks. Others are
// looked at each tick.
const sweepEvery = 100
