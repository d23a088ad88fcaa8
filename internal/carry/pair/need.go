package pair

import (
	"time"

	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/socket"
)

// Bytes of a flow that waits for its lane go ahead on the control connection. After an
// outage a crowd of flows waits: their lanes need a thousand handshakes, a few bytes of each
// fit in the control connection's first round trips.

const (
	// maxAhead bounds the bytes of streams on a control connection that have not
	// arrived: messages wait behind them.
	maxAhead = 64 << 10
	// crowdShare is what one of them gets at most, and crowdAhead is about what all get:
	// with their heads the bytes of a thousand flows fit in three round trips of a new
	// connection, whose window begins with 14 kB and doubles.
	crowdShare = 64
	crowdLeast = 16
	crowdAhead = 32 << 10
	// aheadFirst is the least time for which a crowd has a new control connection to
	// itself: the handshakes of its lanes begin then. It is for a path without delay.
	aheadFirst = 100 * time.Millisecond
)

// room is how many bytes of one stream may go ahead of its lane while so many flows wait
// for theirs. If they are few, that is no more than a quarter of what is left for all.
func (c *control) room(waiting int) int {
	c.mu.Lock()
	queued := len(c.queue)
	c.mu.Unlock()
	c.c.bulk.control(func(fd int) { queued += socket.Unacknowledged(fd) })
	if waiting >= crowd {
		return min(max(2*maxAhead-queued, 0), max(min(crowdAhead/waiting, crowdShare), crowdLeast))
	}
	return min(max(maxAhead-queued, 0)/4, wire.MaxWake)
}

// crowded reports that a crowd of a near session waits for lanes whose handshakes would
// delay what goes ahead: they begin once that had its three round trips.
func (s *session) crowded(now time.Time) bool {
	if !s.isCrowd() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.instance != 0 && (s.control() == nil || now.Sub(s.since) < max(aheadFirst, 3*s.rtt()))
}

// openAhead sends a flow's OPEN ahead of its lane, if a crowd waits for lanes. The caller
// holds f.mu.
func (nd *laneNeed) openAhead() {
	f, s := nd.flow(), nd.flow().s
	ctl := s.control()
	waiting := int(s.waiting.Load())
	if ctl == nil || f.opening == nil || !nd.wokeAt.IsZero() || waiting < crowd || !s.knows(wire.FeatureAhead) || f.near.misled() {
		return
	}
	room := ctl.room(waiting)
	if room == 0 {
		return
	}
	_, b := f.sf.Out.Peek(room)
	if ctl.offer(wire.Message{Type: wire.MessageOpen, Flow: f.id, Open: &f.opening.Open, Bytes: b}) {
		f.near.begin()
		nd.wokeAt = stampNow()
		s.link.sentAhead(f)
	}
}

// wakePeer sends bytes ahead of the flow's lane; at the far relay it asks for the lane,
// with or without bytes. The caller holds f.mu.
func (nd *laneNeed) wakePeer() {
	f, s := nd.flow(), nd.flow().s
	ctl := s.control()
	if ctl == nil || !nd.wokeAt.IsZero() {
		return
	}
	waiting := int(s.waiting.Load())
	offset, b := f.sf.Out.Peek(ctl.room(waiting))
	if len(b) == 0 && (f.s.near || b != nil && waiting >= crowd) {
		return // nothing, or no room yet
	}
	if ctl.offer(wire.Message{Type: wire.MessageWake, Flow: f.id, Offset: offset, Bytes: b}) {
		nd.wokeAt = stampNow()
	}
}

// wentAhead takes an acknowledgement that has moved: what went ahead is there, or came too
// late to be of use. More may follow. The caller holds f.mu and wakes the flow.
func (nd *laneNeed) wentAhead() {
	if nd.flow().lanes.main() == nil {
		nd.wokeAt = 0
	}
}

// wakeStale is the age of a lane beyond which a WAKE was sent in its knowledge.
const wakeStale = 100 * time.Millisecond

// takeWake takes bytes that came ahead of a lane.
func (nd *laneNeed) takeWake(offset uint64, b []byte) {
	f := nd.flow()
	f.phase.take(eventHeard)
	f.near.targetFound()
	within := f.s.answerWithin(wakeStale, 2)
	if f.lanes.attaching() || f.s.sealed() && f.phase != phaseOpen {
		within = f.s.answerWithin(pongWithin, 8) // a far relay with many lanes may not have come to it
	}
	if f.lanes.main() != nil && f.s.near && f.lanes.all[0].since.since() > within {
		// The far relay has lost the lane. Nobody here saw it: the reader waits for
		// the client, and nothing is left to write.
		f.s.debug("lane given up", "the other relay asks for one")
		f.lanes.loseAll()
	}
	nd.dropForgotten()
	nd.takeAhead(offset, b)
	if f.lanes.main() == nil && f.s.near && !f.near.queued {
		f.near.wanted = true
		f.s.link.want(f)
	}
}

// dropForgotten has the far relay give up lanes of which the near one, as it sends bytes
// ahead, has none any more: else the target's bytes go to a dead lane. A young lane may be
// one that the near relay has got since.
func (nd *laneNeed) dropForgotten() {
	f := nd.flow()
	if f.s.near || f.lanes.main() == nil || f.phase != phaseOpen || f.s.noResume || f.lanes.all[0].since.since() <= f.s.answerWithin(pongWithin, 8) {
		return
	}
	f.s.debug("lane given up", "the other relay has lost it")
	f.lanes.loseAll()
}

// takeAhead writes bytes that came ahead of a lane, as far as the socket takes them. The
// flow may have a lane: perhaps a dead one, of which this end does not know. Bytes that
// were there before are skipped. Without resumption a lane alone brings bytes.
func (nd *laneNeed) takeAhead(offset uint64, b []byte) {
	f := nd.flow()
	if f.lanes.main() != nil && f.s.noResume || !f.leg.open() || f.leg.busyOut || !f.leg.writable {
		return
	}
	if rest, err := f.sf.In.Data(offset, b); err == nil && len(rest) > 0 {
		f.leg.write(rest)
		f.received()
	}
}

// note keeps account of the time without a lane, and asks for one.
func (nd *laneNeed) note() {
	f := nd.flow()
	need := f.lanes.main() == nil && f.phase != phaseOver && (f.sf.NeedsLane() || f.s.near && !f.phase.known() && !f.sf.Over() && f.leg.open())
	switch {
	case !need && !nd.since.IsZero():
		nd.outage += uint32(nd.since.since().Milliseconds())
		nd.since = 0
		if !f.lanes.attaching() {
			nd.wokeAt = 0
		}
		f.s.waiting.Add(-1)
	case need && nd.since.IsZero():
		nd.since, nd.wokeAt = stampNow(), 0
		f.s.waiting.Add(1)
	}
	if need && f.s.near && !f.near.queued {
		f.s.link.want(f)
	}
	nd.goAhead()
}

// goAhead sends the first bytes ahead of the lane that the flow needs. At the near relay
// the flow may have that lane in place of a lost one, but the far relay has not come to it.
func (nd *laneNeed) goAhead() {
	f := nd.flow()
	switch {
	case f.s.near && !f.phase.known():
		if f.lanes.main() == nil && !nd.since.IsZero() {
			nd.openAhead()
		}
	case f.lanes.main() == nil && !nd.since.IsZero() || f.lanes.main() != nil && nd.lost && f.lanes.attaching() && !f.s.noResume:
		nd.wakePeer()
	}
}
