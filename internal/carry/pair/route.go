package pair

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/wire"
	"slices"
)

// handle takes a message of the other end.
func (s *session) handle(ctl *control, m wire.Message) {
	switch m.Type {
	case wire.MessagePing:
		ctl.answerPing(binary.BigEndian.Uint64(m.Bytes))
	case wire.MessagePong:
		s.pong(ctl, binary.BigEndian.Uint64(m.Bytes))
	case wire.MessageTrouble:
		s.takeTrouble(ctl, m.Text)
	case wire.MessageDrain:
		s.drained(m.Flags&wire.FlagLast != 0)
	case wire.MessageKey:
		err := s.node.identity.Learn(s.peer, slices.Clone(m.Bytes))
		if errors.Is(err, identity.ErrTooSoon) {
			return // the peer announces it again
		}
		if err != nil {
			s.tell(slog.LevelWarn, "peer's new key is not stored", err)
			return
		}
		ctl.reply(wire.Message{Type: wire.MessageKeyTaken, Bytes: slices.Clone(m.Bytes)})
	case wire.MessageKeyTaken:
		if err := s.node.identity.Taken(s.peer, slices.Clone(m.Bytes)); err != nil {
			s.tell(slog.LevelWarn, "peer's receipt of the new key is not stored", err)
		}
	default:
		s.handleFlow(ctl, m)
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
			s.bury(m.Flow)
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
		f := l.bound()
		if f == nil || f.id != id {
			return nil
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.heard(l)
		switch {
		case join:
			f.joined(l, received)
		case f.lane() == l:
			st := f.strands[0]
			st.attaching, st.since, f.wokeAt = false, stampNow(), 0
			f.attached(received)
		}
		return nil
	}
	if frame.Flags == wire.FlagBegin && s.sealed.Load() {
		return s.beginOn(l, id)
	}
	f := s.flow(id)
	if f == nil {
		l.bind(nil)
		s.reply(wire.Message{Type: wire.MessageGone, Flow: id})
		return nil
	}
	if join {
		f.joinFar(l, received)
		return nil
	}
	f.attachFar(l, received, wire.AppendAttach)
	return nil
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

// released takes a RELEASE.
func (s *session) released(l *lane, f *Flow, frame wire.Frame) error {
	if s.near {
		s.releasedNear(l, f, frame)
		return nil
	}
	final := frame.Flags&wire.FlagFinal != 0
	if f != nil && !f.giveLane(l, final, frame.Offset) {
		l.keepOffer(f, frame)
		return nil
	}
	return l.release(f, frame.Flags&wire.FlagFinal, 0)
}

// releasedNear takes the far relay's answer to a RELEASE.
func (s *session) releasedNear(l *lane, f *Flow, frame wire.Frame) {
	if frame.Flags&wire.FlagFinal != 0 {
		l.mu.Lock()
		drained, retired := l.draining, l.retired
		l.draining = false
		l.mu.Unlock()
		switch {
		case drained && retired:
			l.close()
		case drained:
			s.link.place(l)
		}
		return
	}
	if f == nil {
		return
	}
	f.mu.Lock()
	given := f.lane() == l && f.releasing
	if given {
		f.releasing = false
		f.dropStrands()
		f.sf.Detach()
		l.unbind(f)
		f.wake()
	}
	f.mu.Unlock()
	if given {
		s.link.place(l)
	}
}

// laneEnded takes the news that a lane's reader has returned.
func (s *session) laneEnded(l *lane, err error) {
	s.blame(err)
	s.mu.Lock()
	delete(s.lanes, l)
	if l.pads {
		l.pads = false
		s.padding--
	}
	s.warm = slices.DeleteFunc(s.warm, func(w *lane) bool { return w == l })
	s.mu.Unlock()
	l.path.probeEnded(l)
	if f := l.die(); f != nil {
		s.node.log.Debug("lane lost", "peer", s.peer, "tunnel", s.tunnel, "error", err)
		f.laneLost(l)
	}
	if s.link != nil {
		s.link.poke()
	}
}

// takeOpen takes an OPEN that came ahead of its flow's lane; the flow may be known.
func (s *session) takeOpen(m wire.Message) {
	s.mu.Lock()
	a := s.acceptor
	s.mu.Unlock()
	f, fresh, err := s.admit(nil, *m.Open, a)
	if err != nil {
		s.decline(m.Flow, err)
	}
	s.opened(m.Flow)
	switch {
	case err != nil:
	case fresh:
		f.ask(*m.Open, a, slices.Clone(m.Bytes))
	default:
		f.mu.Lock()
		defer f.mu.Unlock()
		if !s.sealed.Load() || len(m.Bytes) > 0 { // else it may be repeated, beside a lane
			f.dropForgotten()
		}
		f.takeAhead(0, m.Bytes)
		f.wake()
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
