package pair

import (
	"maps"
	"time"
)

// State is the node at this moment.
func (n *Node) State() State {
	st := State{Instance: n.instance, Retained: n.budget.used.Load(), RetainedLimit: n.budget.limit.Load()}
	for _, s := range n.sessions() {
		st.Sessions = append(st.Sessions, s.state())
	}
	n.mu.Lock()
	st.Strangers = maps.Clone(n.strangers)
	n.mu.Unlock()
	return st
}

func (s *session) state() SessionState {
	flows := s.allFlows()
	s.mu.Lock()
	st := SessionState{Peer: s.peer, Tunnel: s.tunnel, Near: s.near, Session: s.id, Instance: s.instance, Release: s.release,
		Remote: s.remote, Up: s.ctl != nil, Since: s.since, Draining: s.draining, RTT: s.rtt(),
		FlowsTotal: s.flowsTotal.Load(), Resumes: s.resumes.Load(), Outage: s.outage, Problem: s.problem, ProblemText: s.text}
	if s.ctl == nil && s.instance != 0 {
		st.Outage += time.Since(s.since)
	}
	st.LanesWarm = len(s.warm)
	lanes := len(s.lanes)
	s.mu.Unlock()
	for _, f := range flows {
		g := f.Figures()
		st.Retained += g.Retained
		switch {
		case f.hasLane():
			st.FlowsLane++
		case g.State == FlowParked:
			st.FlowsParked++
		default:
			st.FlowsWaiting++
		}
	}
	st.LanesBusy = st.FlowsLane
	if !s.near {
		st.LanesWarm = max(lanes-st.LanesBusy, 0)
	}
	return st
}

func (f *Flow) hasLane() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lane != nil
}
