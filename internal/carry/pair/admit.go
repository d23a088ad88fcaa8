package pair

import (
	"errors"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

// The errors of admit.
var (
	errDenied  = errors.New("the peer is not admitted any more")
	errRemoved = errors.New("the tunnel was removed")
	errOver    = errors.New("the flow is over")
	errEnding  = errors.New("the process ends")
)

// open takes an OPEN of the near relay: a new flow, or a known one on another lane.
func (s *session) open(l *lane, frame wire.Frame, b []byte) error {
	if s.near {
		return errWrongEnd
	}
	o, err := wire.ParseOpen(b)
	if err != nil {
		return err
	}
	a := l.acceptor
	f, fresh, err := s.admit(l, o, a)
	switch {
	case err != nil:
		l.bind(nil)
		s.decline(o.Flow, err)
	case fresh:
		f.far().ask(o, a, nil)
	default:
		f.far().attach(l, frame.Offset, nil)
	}
	return nil
}

// refusedBefore is the error of an OPEN that comes again.
type refusedBefore struct{ code byte }

func (refusedBefore) Error() string { return "the flow was refused before" }

// causeOf is what the near relay gets for an error of admit. Any other error than these tells it
// that the flow is gone. A removed tunnel and a process that ends count as ones that drain: the near
// relay takes the flow to the next process.
func causeOf(err error) (c stream.Cause, refused bool) {
	var again refusedBefore
	switch {
	case errors.As(err, &again):
		return stream.Cause{Code: again.code, Text: err.Error()}, true
	case err == errDenied:
		return cause(flow.EndDenied, err), true
	case err == errRemoved, err == errEnding:
		return cause(flow.EndDrain, err), true
	}
	return c, false
}

// admit finds the flow of an OPEN or makes it. The lane that the OPEN came on is nil if it
// came ahead.
func (s *session) admit(l *lane, o wire.Open, a Acceptor) (f *Flow, fresh bool, err error) {
	admitted, removed := a.Admits(s.peerNow()), a.Removed()
	if admitted && s.revoked.Load() {
		if admitted = s.node.listed(&s.proved); admitted {
			s.revoked.Store(false)
		}
	}
	if !admitted {
		return nil, false, errDenied
	}
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	if removed && s.flows[o.Flow] == nil {
		return nil, false, errRemoved
	}
	if f := s.flows[o.Flow]; f != nil {
		return f, false, nil
	}
	if code, over := s.buried.has(o.Flow); over && code != 0 {
		return nil, false, refusedBefore{code}
	} else if over {
		return nil, false, errOver
	} else if s.closed.Load() || s.node.closing.Load() {
		return nil, false, errEnding
	}
	f = newFlow(s, o.Flow, nil)
	f.phase, f.opening = phaseDialing, &opening{}
	if s.noResume {
		f.sf.NoResume()
	}
	f.sf.Seal(s.sealed())
	if l != nil {
		l.bind(f)
		f.lanes.add(l, nil, true)
		_ = f.sf.Attach(0)
	}
	s.enroll(f)
	s.undecided.Add(1)
	s.node.flowsNow.Add(1)
	return f, true, nil
}

// decline answers an OPEN that admit did not take.
func (s *session) decline(id uint64, err error) {
	if c, refused := causeOf(err); refused {
		s.refuse(id, c)
		return
	}
	s.reply(wire.Message{Type: wire.MessageGone, Flow: id})
}
