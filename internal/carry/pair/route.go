package pair

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"slices"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/wire"
)

// handle takes a message of the other end.
func (s *session) handle(ctl *control, m wire.Message) {
	if ctl.trusted() {
		s.poke()
	}
	switch m.Type {
	case wire.MessagePing:
		ctl.answerPing(binary.BigEndian.Uint64(m.Bytes))
	case wire.MessagePong:
		if sent, rtt, known, ok := ctl.takePong(binary.BigEndian.Uint64(m.Bytes)); ok {
			s.measured(sent, rtt, known)
		}
	case wire.MessageTrouble:
		if s.near && s.control() == ctl {
			s.trouble.take(m.Text, time.Now())
			s.poke() // new flows may go elsewhere
		}
	case wire.MessageTrace:
		if s.traces.note(traceAsked{m.Flow, time.Now().Add(min(m.Within, flow.TraceWithin))}) {
			s.node.tasks.Go(func() { answerTraces(s) })
		}
	case wire.MessageTraced:
		s.traces.answered(m.Flow, m.Bytes)
	case wire.MessageDrain:
		s.drained(m.Flags&wire.FlagLast != 0)
	case wire.MessageKey:
		err := s.node.identity.Learn(s.peerNow(), slices.Clone(m.Bytes))
		if errors.Is(err, identity.ErrTooSoon) {
			return // the peer announces it again
		}
		if err != nil {
			s.tell(slog.LevelWarn, "peer's new key is not stored", err)
			return
		}
		ctl.reply(wire.Message{Type: wire.MessageKeyTaken, Bytes: slices.Clone(m.Bytes)})
	case wire.MessageKeyTaken:
		if err := s.node.identity.Taken(s.peerNow(), slices.Clone(m.Bytes)); err != nil {
			s.tell(slog.LevelWarn, "peer's receipt of the new key is not stored", err)
		}
	default:
		s.handleFlow(ctl, m)
	}
}

// answerTraces answers the other end's TRACEs one after the other. A near relay may ask for a flow whose OPEN
// has not come yet, so GONE would be no answer.
func answerTraces(s *session) {
	for {
		q, ok := s.traces.next()
		if !ok {
			return
		}
		m := wire.Message{Type: wire.MessageTraced, Flow: q.flow}
		if f := s.flow(q.flow); f != nil && s.node.options.Trace != nil {
			// The other end needs the rest of the time for its own part.
			ctx, cancel := context.WithTimeout(s.node.ctx, time.Until(q.until)*3/4)
			m.Bytes = s.node.options.Trace(ctx, f).AppendTrace(nil, wire.MaxTraced)
			cancel()
		}
		s.reply(m)
	}
}

func (s *session) handleFlow(ctl *control, m wire.Message) {
	if m.Type == wire.MessageOpen && !s.near {
		s.takeOpen(m)
		return
	}
	f := s.flow(m.Flow)
	if f == nil {
		if !s.near && (m.Type == wire.MessageReset || m.Type == wire.MessageGone) {
			s.bury(m.Flow, 0)
			s.outcomes.answered(m.Flow)
		}
		if m.Type != wire.MessageGone {
			ctl.reply(wire.Message{Type: wire.MessageGone, Flow: m.Flow})
		}
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.phase == phaseOver || f.s != s { // it has moved on
		return
	}
	f.take(m)
	f.wake()
}

// attach takes an ATTACH: at the near relay the answer to its own.
func (s *session) attach(l *lane, id uint64, frame wire.Frame) error {
	received, join := frame.Offset, frame.Flags&wire.FlagJoin != 0
	if s.near {
		if f := l.bound(); f != nil {
			f.answeredAttach(l, id, received, join)
		}
		return nil
	}
	if frame.Flags == wire.FlagBegin && s.sealed() {
		return s.beginOn(l, id)
	}
	f := s.flow(id)
	if f == nil {
		l.bind(nil)
		s.reply(wire.Message{Type: wire.MessageGone, Flow: id})
		return nil
	}
	if join {
		f.far().join(l, received)
		return nil
	}
	f.far().attach(l, received, wire.AppendAttach)
	return nil
}

// beginOn takes the first frame of a flow's lane, whose OPEN is on the control connection.
func (s *session) beginOn(l *lane, id uint64) error {
	if s.near {
		return errWrongEnd
	}
	f, err := s.awaitOpen(s.node.ctx, id)
	switch {
	case err != nil:
		return err
	case f == nil:
		l.bind(nil) // the near relay gets the flow's end by the answer to its OPEN
	default:
		f.far().attach(l, 0, nil)
	}
	return nil
}

// released takes a RELEASE, or at the near relay the answer to one. f is the flow that has the lane.
func (s *session) released(l *lane, f holder, frame wire.Frame) error {
	final := frame.Flags&wire.FlagFinal != 0
	switch {
	case s.near && final:
		switch drained, retired := l.endDrain(); {
		case drained && retired:
			l.close()
		case drained:
			s.link.place(s, l)
		}
	case s.near:
		if f != nil && f.answeredRelease(l) {
			s.link.place(s, l)
		}
	case f != nil && !f.giveLane(l, final, frame.Offset):
		l.keepOffer(f, frame)
	default:
		return l.release(f, frame.Flags&wire.FlagFinal, 0)
	}
	return nil
}

// laneEnded takes the news that a lane's reader has returned.
func (s *session) laneEnded(l *lane, err error) {
	s.blame(err)
	s.pool.leave(l)
	l.path.probeEnded(l)
	if f := l.die(); f != nil {
		s.debug("lane lost", err)
		f.laneLost(l)
	}
	s.poke()
}

// takeOpen takes an OPEN that came ahead of its flow's lane; the flow may be known.
func (s *session) takeOpen(m wire.Message) {
	a := s.latest()
	f, fresh, err := s.admit(nil, *m.Open, a)
	if err != nil {
		s.decline(m.Flow, err)
	}
	s.opened(m.Flow)
	switch {
	case err != nil:
	case fresh:
		f.far().ask(*m.Open, a, slices.Clone(m.Bytes))
	default:
		f.mu.Lock()
		defer f.mu.Unlock()
		if !s.sealed() || len(m.Bytes) > 0 { // else it may be repeated, beside a lane
			f.need.dropForgotten()
		}
		f.need.takeAhead(0, m.Bytes)
		f.wake()
	}
}

// begin makes c the control connection, which replaces an older one.
func (s *session) begin(c *connection) {
	ctl := newControl(c)
	old, oldWriter, writer, ok := s.stand(ctl)
	if !ok {
		ctl.close()
		return
	}
	if old != nil {
		old.close()
	}
	if oldWriter != nil {
		<-oldWriter // else it may take what becomes due again below
	}
	if s.node.draining.Load() || !s.near && s.stale.Load() {
		ctl.post(wire.Message{Type: wire.MessageDrain})
	}
	ctl.sendPing()
	if !s.near {
		s.outcomes.again(s.owesFor())
	}
	for _, f := range s.allFlows() {
		f.resync()
	}
	s.node.tasks.Go(func() {
		defer close(writer)
		_ = ctl.write(s.fill)
		ctl.close()
	})
	s.node.tasks.Go(func() {
		err := ctl.read(func(m wire.Message) { s.handle(ctl, m) })
		ctl.close()
		s.controlLost(ctl, err)
	})
}
