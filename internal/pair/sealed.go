package pair

import (
	"errors"
	"time"

	"longhaul/internal/flow"
	"longhaul/internal/pair/wire"
	"longhaul/internal/tcpinfo"
)

// Whoever is on the path of lanes in clear may read and change what they carry. So where both
// ends know how, a session in clear is sealed: OPEN and END go on the control connection, which
// has TLS. A lane begins with an ATTACH that names its flow, and carries bytes. What it brings may
// come before the OPEN, and behind the END.

var (
	errUnsealed = errors.New("a beginning or an end on a lane in clear, where none may be")
	errNoOpen   = errors.New("no OPEN came for the flow that the lane names")
	errMissing  = errors.New("bytes before the end are missing, which a lane has not brought")
)

// openWithin bounds the time for which a lane waits for the OPEN of its flow.
const openWithin = handshakeTimeout

// maxLates is how often the other end may say that bytes are missing, and get none of them by
// another lane. Then somebody on the path keeps them back.
const maxLates = 4

// lateNoResume is how long a flow that does not resume waits at least for bytes that went out: a box
// that acknowledges for the other end may have them.
const lateNoResume = 30 * time.Second

// expected are the lanes that wait for the OPEN of one flow.
type expected struct {
	come  chan struct{} // closed when it is here
	lanes int
}

// begin marks the flow as one of which the far relay hears from now on. The caller holds f.mu.
func (f *Flow) begin() {
	if !f.sent {
		f.sent = true
		f.sf.Seal(f.s.sealed.Load())
	}
}

// beginOn takes the first frame of a flow's lane, whose OPEN is on the control connection.
func (s *session) beginOn(l *lane, id uint64) error {
	if s.near {
		return errWrongEnd
	}
	f, err := s.awaitOpen(id)
	switch {
	case err != nil:
		return err
	case f == nil:
		l.bind(nil) // the near relay gets the flow's end by the answer to its OPEN
	default:
		f.attachFar(l, 0, nil)
	}
	return nil
}

// awaitOpen waits until the OPEN of a flow is here; nil: the flow is over.
func (s *session) awaitOpen(id uint64) (*Flow, error) {
	timeout := time.NewTimer(openWithin)
	defer timeout.Stop()
	for {
		s.mu.Lock()
		f := s.flows[id]
		if _, over := s.buried.has(id); f != nil || over {
			s.mu.Unlock()
			return f, nil
		}
		if s.expects == nil {
			s.expects = map[uint64]*expected{}
		}
		e := s.expects[id]
		if e == nil {
			e = &expected{come: make(chan struct{})}
			s.expects[id] = e
		}
		e.lanes++
		s.mu.Unlock()
		var err error
		select {
		case <-e.come:
		case <-timeout.C:
			err = errNoOpen
		case <-s.node.ctx.Done():
			err = s.node.ctx.Err()
		}
		s.mu.Lock()
		if e.lanes--; e.lanes == 0 && s.expects[id] == e {
			delete(s.expects, id)
		}
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
}

// opened wakes the lanes that wait for the OPEN of a flow.
func (s *session) opened(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.expects[id]; e != nil {
		close(e.come)
		delete(s.expects, id)
	}
}

// takeSealedEnd takes an end that came on the control connection. Bytes before it may be under way. The
// caller holds f.mu and wakes the flow.
func (f *Flow) takeSealedEnd(length uint64, crc uint32) {
	f.known = true
	err := errUnsealed
	if f.s.sealed.Load() {
		err = f.sf.In.End(length, crc)
	}
	if err != nil {
		f.abort(cause(flow.EndDamaged, errEnd))
		return
	}
	f.passEnd()
}

// noteReached notes up to where a lane of a sealed session has brought a flow's bytes.
func (l *lane) noteReached(f *Flow, offset uint64) {
	if f == nil || !l.s.sealed.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flow == f && offset > l.reached {
		l.reached, l.reachedAt = offset, stampNow()
	}
}

// lateAfter is how long the position of a flow stands still until it counts as held up. One lane
// alone may take its time, as long as something comes.
func (f *Flow) lateAfter() time.Duration {
	if f.sf.In.Merges() {
		return max(f.s.answerWithin(suspectAfter, 4), 4*f.slowestLane())
	}
	if f.s.noResume {
		return f.s.answerWithin(lateNoResume, 8)
	}
	return f.s.answerWithin(pongWithin, 8)
}

// announce tells the other end how much has gone out, once nothing more does and nobody has
// acknowledged it: somebody on the path may have kept it back, while the kernel has an answer for
// all. The caller holds f.mu.
func (f *Flow) announce(now time.Time) {
	to, some := f.sf.Out.Unannounced()
	if !some || f.announced || !f.s.sealed.Load() || f.near && !f.known {
		return
	}
	for _, st := range f.strands {
		if st.busy || st.sentAt.until(now) < f.s.answerWithin(pongWithin, 8) || holds(st.l.bulk) {
			return
		}
	}
	f.announced = f.s.offer(wire.Message{Type: wire.MessageSent, Flow: f.id, Offset: to})
}

// brings reports that something has come on one of the flow's lanes of late. It may be a part of
// a record, which counts when it is whole: that, and what somebody else sends on a lane in clear,
// is waited for only so long.
func (f *Flow) brings(within time.Duration, now time.Time) (yes bool) {
	for _, st := range f.strands {
		st.l.mu.Lock()
		since := st.l.reachedAt.until(now)
		st.l.mu.Unlock()
		yes = yes || since < within ||
			since < max(lateNoResume, within) && kernelSays(st.l.bulk, func(i *tcpinfo.Info) bool { return i.LastDataRecv < within })
	}
	return yes
}

// takeLate takes the news that bytes at an offset are missing at the other end. Another lane
// brings them; a flow that keeps nothing is cut, unless its kernel still has them.
func (f *Flow) takeLate(offset uint64) {
	if !f.s.sealed.Load() {
		f.closeLate(offset)
		return
	}
	if f.sf.Out.AtRisk() {
		if f.lane != nil && !holds(f.lane.bulk) {
			f.abort(cause(flow.EndWANLost, errMissing))
		}
		return
	}
	if f.sf.Out.WillSend(offset) { // the lane that had it was lost meanwhile
		return
	}
	if f.lates++; f.lates > maxLates {
		f.abort(cause(flow.EndDamaged, errMissing))
		return
	}
	before := len(f.strands)
	if f.closeLate(offset); len(f.strands) == before {
		f.loseLanes() // the position at which a lane began was wrong
	}
}

// holds reports that the kernel has bytes that the other end's has not acknowledged.
func holds(bulk *bulkConn) bool {
	return kernelSays(bulk, func(i *tcpinfo.Info) bool { return i.Unacked > 0 || i.NotsentBytes > 0 })
}

// endsUntold reports that a beginning or an end of a sealed flow waits for the control connection.
func (f *Flow) endsUntold() bool {
	return f.s.sealed.Load() && (f.near && !f.known || f.sf.Out.Ended() && !f.sf.Out.Done())
}

// askedFor is how long a near flow has waited for a sign of its first lane. In a sealed session it
// counts from the latest bytes that went out: a client may be silent for long before its first ones.
func (f *Flow) askedFor(st *strand, now time.Time) time.Duration {
	if !f.s.sealed.Load() {
		return f.laneSince.until(now)
	}
	return min(f.laneSince.until(now), st.sentAt.until(now))
}

// unheardOn reports that nothing shows that a near flow's first lane leads to the far relay.
func (f *Flow) unheardOn(l *lane) bool {
	if !f.s.sealed.Load() {
		return !f.known
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return f.sf.Out.Acknowledged() == 0 && l.reached == 0
}
