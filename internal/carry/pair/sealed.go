package pair

import (
	"errors"
	"time"
)

// Whoever is on the path of lanes in clear may read and change what they carry. So where both
// ends know how, a session in clear is sealed: OPEN and END go on the control connection, which
// has TLS. A lane begins with an ATTACH that names its flow, and carries bytes. What it brings may
// come before the OPEN, and behind the END.

var (
	errUnsealed = errors.New("a beginning or an end on a lane in clear, where none may be")
	errNoOpen   = errors.New("no OPEN came for the flow that the lane names")
)

// openWithin bounds the time for which a lane waits for the OPEN of its flow.
const openWithin = handshakeTimeout

// expected are the lanes that wait for the OPEN of one flow.
type expected struct {
	come  chan struct{} // closed when it is here
	lanes int
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
