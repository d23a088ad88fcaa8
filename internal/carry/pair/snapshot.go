package pair

import (
	"maps"
	"time"
)

// laneErrSettles is how long no lane can be made until a session's state says so.
const laneErrSettles = time.Second

// State is the node at this moment. It looks at every flow.
func (n *Node) State() State { return n.snapshot((*session).state) }

// Overview is State without a look at the flows: of a session's counts it has Flows,
// FlowsTotal and Resumes.
func (n *Node) Overview() State { return n.snapshot((*session).overview) }

func (n *Node) snapshot(of func(*session) SessionState) State {
	st := State{Instance: n.instance, Retained: n.budget.used.Load(), RetainedLimit: n.budget.limit.Load()}
	for _, s := range n.sessions() {
		st.Sessions = append(st.Sessions, of(s))
	}
	n.mu.Lock()
	st.Strangers = maps.Clone(n.strangers)
	n.mu.Unlock()
	return st
}

func (s *session) overview() SessionState {
	var paths []PathState
	if s.near && len(s.link.options().Paths) > 0 {
		paths = s.link.pathStates(s.control())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := SessionState{Peer: s.peer, Tunnel: s.tunnel, Near: s.near, Session: s.id, Instance: s.instance, Release: s.release,
		Remote: s.remote, Up: s.ctl != nil, Since: s.since, Draining: s.draining, Clear: s.clear, Sealed: s.sealed.Load(), Summed: s.summed.Load(), Twin: s.beside, NoResume: s.noResume, Compress: s.compress, CompressKnown: s.compresses.Load(),
		Plain: s.compressed.plain.Load(), Packed: s.compressed.packed.Load(), RTT: s.rtt(), Flows: len(s.flows),
		FlowsTotal: s.flowsTotal.Load(), Resumes: s.resumes.Load(), Outage: s.outage, Problem: s.problem, ProblemText: s.text}
	if s.ctl != nil && s.laneErr != nil && time.Since(s.laneErrSince) > laneErrSettles {
		st.LaneError, st.LaneProblem = s.laneErr.Error(), problemOf(s.laneErr)
	}
	if s.ctl == nil && s.stood {
		st.Outage += time.Since(s.since)
	}
	if late := s.strained(); late >= overloadedFrom {
		st.Overload = late
	}
	st.Paths = paths
	st.Outage = st.Outage.Truncate(time.Millisecond) // the far end's first connection takes microseconds
	return st
}

func (s *session) state() SessionState {
	st, flows := s.overview(), s.allFlows()
	for _, f := range flows {
		g := f.Figures()
		st.Retained += g.Retained
		switch {
		case g.Lanes > 0:
			st.FlowsLane++
			st.LanesBusy += g.Lanes
			if g.Lanes > 1 {
				st.FlowsStriped++
			}
		case g.State == FlowParked:
			st.FlowsParked++
		default:
			st.FlowsWaiting++
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.LanesWarm = len(s.warm); !s.near {
		st.LanesWarm = max(len(s.lanes)-st.LanesBusy, 0)
	}
	return st
}
