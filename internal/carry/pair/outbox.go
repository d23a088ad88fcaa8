package pair

import (
	"longhaul/internal/carry/pair/wire"
	"time"
)

// post notes that a flow has something for the control connection.
func (s *session) post(f *Flow, urgent bool) { // with f.mu
	s.mu.Lock()
	defer s.mu.Unlock()
	if !f.dirty {
		f.dirty = true
		s.dirty = append(s.dirty, f)
	}
	if s.ctl == nil {
		return
	}
	if urgent {
		s.ctl.flush()
	} else if s.timer == nil {
		s.timer = time.AfterFunc(ackDelay, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.timer = nil
			if s.ctl != nil {
				s.ctl.flush()
			}
		})
	}
}

// message sends a message, if the control connection stands.
func (s *session) message(m wire.Message) {
	if ctl := s.control(); ctl != nil {
		ctl.post(m)
	}
}

// offer is message for one that is repeated: it reports whether it went.
func (s *session) offer(m wire.Message) bool {
	ctl := s.control()
	return ctl != nil && ctl.offer(m)
}

// reply is message for an answer to what a lane brought: it waits as control's does.
func (s *session) reply(m wire.Message) {
	if ctl := s.control(); ctl != nil {
		ctl.reply(m)
	}
}

// fill appends the messages that flows have due, of so many flows that they come to about
// maxFill.
func (s *session) fill(out []byte) []byte {
	before, more := len(out), false
	s.mu.Lock()
	if !s.near {
		out, more = s.outcomes.fill(out, before+maxFill)
	}
	dirty := s.dirty
	s.dirty = nil
	last := s.lastDue && len(dirty) == 0 && !more
	s.lastDue = s.lastDue && !last
	s.mu.Unlock()
	if last { // behind all that this end says of flows
		return wire.Message{Type: wire.MessageDrain, Flags: wire.FlagLast}.Append(out)
	}
	for len(dirty) > 0 && len(out) <= before+maxFill {
		f := dirty[0]
		dirty = dirty[1:]
		s.mu.Lock()
		f.dirty = false
		s.mu.Unlock()
		out = f.messages(out)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirty = append(dirty, s.dirty...) // they have waited longer
	if s.lastDue && s.ctl != nil {
		s.ctl.flush()
	}
	return out
}
