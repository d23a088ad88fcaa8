package pair

import (
	"maps"
	"slices"
	"time"
)

func (s *session) flow(id uint64) *Flow {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flows[id]
}

func (s *session) add(f *Flow) {
	s.flowsTotal.Add(1)
	s.mu.Lock()
	s.flows[f.id] = f
	s.watched[f] = struct{}{}
	s.mu.Unlock()
}

// forget drops a flow that is over.
func (s *session) forget(f *Flow) {
	s.mu.Lock()
	delete(s.flows, f.id)
	delete(s.watched, f)
	if !s.near {
		s.buried.add(f.id, 0)
	}
	s.mu.Unlock()
	s.node.flowsNow.Add(-1)
}

func (s *session) bury(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buried.add(id, 0)
	s.outcomes.answered(id)
}

func (s *session) allFlows() []*Flow {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.flows))
}

// watchedFlows are the flows to look at now: those that do not rest, or all.
func (s *session) watchedFlows(all bool) []*Flow {
	if all {
		return s.allFlows()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.watched))
}

// rested reports that the session has had no flow for long enough that the other end
// has the last acknowledgements: it would wait for a lost one until resume.
func (s *session) rested() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.flows) > 0 {
		s.emptySince = time.Time{}
		return false
	}
	if s.emptySince.IsZero() {
		s.emptySince = time.Now()
	}
	return s.ctl == nil || time.Since(s.emptySince) > s.patience(time.Second, 4)
}

// abandoned reports that the session has neither flows nor a control connection, and since when.
func (s *session) abandoned() (since time.Time, yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since, s.ctl == nil && len(s.flows) == 0
}

// dropped are the numbers of flows that are over, of which a late OPEN may still come, each with
// the code of the reason for which it was refused; 0: it was not.
type dropped struct{ now, before map[uint64]byte }

func (d *dropped) add(id uint64, code byte) {
	if was, known := d.has(id); known && was != 0 {
		code = was
	}
	if len(d.now) >= maxBuried {
		d.before, d.now = d.now, nil
	}
	if d.now == nil {
		d.now = map[uint64]byte{}
	}
	d.now[id] = code
}

func (d *dropped) has(id uint64) (code byte, known bool) {
	if code, known = d.now[id]; !known {
		code, known = d.before[id]
	}
	return code, known
}

// expected are the lanes that wait for the OPEN of one flow.
type expected struct {
	come  chan struct{} // closed when it is here
	lanes int
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
