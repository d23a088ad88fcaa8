package pair

import (
	"fmt"
	"maps"
	"net/netip"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/words/units"
)

// State is the node at this moment. It looks at every flow.
func (n *Node) State() flow.Pairs { return n.snapshot(stateOf) }

// Overview is State without a look at the flows: of a session's counts it has Flows,
// FlowsTotal and Resumes.
func (n *Node) Overview() flow.Pairs { return n.snapshot(overviewOf) }

func (n *Node) snapshot(of func(*session) flow.Session) flow.Pairs {
	st := flow.Pairs{Instance: NumberText(n.instance), RetainedBytes: n.budget.used.Load(), RetainedLimitBytes: n.budget.limit.Load(),
		Sessions: []flow.Session{}}
	for _, s := range n.sessions() {
		st.Sessions = append(st.Sessions, of(s))
	}
	n.mu.Lock()
	st.Strangers, st.Refused = maps.Clone(n.strangers), n.refused
	n.mu.Unlock()
	return st
}

func overviewOf(s *session) flow.Session {
	var paths []flow.Path
	var lanesTo []netip.Prefix
	several, hop, ports := false, "", 0
	if s.near {
		o := s.link.options()
		hop, ports = o.Hop, o.Ports
		lanesTo, several = o.LanesTo, len(s.node.identity.Hosts(s.peer)) > 1
		if len(o.Paths) > 0 {
			paths = s.paths.states(s.control())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	up := s.control() != nil
	st := flow.Session{
		Tunnel:   s.tunnel,
		Peer:     s.peerNow(),
		Hop:      hop,
		Session:  NumberText(s.id),
		End:      flow.FarEnd,
		Up:       up,
		Since:    s.since,
		Problem:  s.problem,
		Error:    s.text,
		Remote:   flow.Address{AddrPort: s.remote},
		Release:  s.release,
		Draining: s.draining,

		Encrypted:      !s.clear,
		EndsInClear:    up && s.clear && !s.sealed(),
		HeadsUnchecked: up && s.clear && !s.knows(wire.FeatureSums),
		Resumable:      !s.noResume,
		Compress:       s.compressMode(),

		RTT:               units.Seconds(s.rtt()),
		Flows:             s.flowCount(),
		FlowsTotal:        s.flowsTotal.Load(),
		Resumes:           s.resumes.Load(),
		CompressedBytes:   s.compressed.plain.Load(),
		CompressedToBytes: s.compressed.packed.Load(),
		Paths:             paths,
	}
	if s.near {
		st.End = flow.NearEnd
		if allowed := s.own.allowed(lanesTo); allowed || s.own.at.IsValid() && (several || s.own.astray) {
			st.Own, st.OwnUsed, st.OwnError = flow.Address{AddrPort: s.own.at}, allowed && s.own.failing.IsZero(), errorText(s.own.err)
		}
		if since, err := s.unmade.now(); up && err != nil && time.Since(since) > laneErrSettles {
			st.LaneError, st.LaneProblem = err.Error(), problemOf(err)
		}
		st.OnePort = up && ports > 1 && !s.knows(wire.FeatureOffset)
	} else {
		st.Twin = s.beside
	}
	if _, err := refusalOf(s, time.Now()); up && err != nil {
		st.LaneError, st.LaneProblem = err.Error(), problemOf(err)
	}
	if s.instance != 0 {
		st.Instance = NumberText(s.instance)
	}
	if late := s.strained(); late >= overloadedFrom {
		st.Overload = units.Seconds(late)
	}
	if own := s.node.options.Release; s.release != "" && flow.ReleaseOf(s.release) != flow.ReleaseOf(own) {
		st.ReleaseHere = own
	}
	outage := s.outage
	if !up && s.stood {
		outage += time.Since(s.since)
	}
	st.Outage = units.Seconds(outage.Truncate(time.Millisecond)) // the far end's first connection takes microseconds
	return st
}

func stateOf(s *session) flow.Session {
	st, flows := overviewOf(s), s.allFlows()
	for _, f := range flows {
		g := f.Figures()
		st.RetainedBytes += g.Retained
		if g.MemoryLimited {
			st.FlowsMemoryLimited++
		}
		switch {
		case g.Lanes > 0:
			st.FlowsMoving++
			st.LanesBusy += g.Lanes
			if g.Lanes > 1 {
				st.FlowsStriped++
			}
		case g.State == flow.StateParked:
			st.FlowsParked++
		default:
			st.FlowsResuming++
		}
	}
	lanes, warm := s.counts()
	if st.LanesWarm = warm; !s.near {
		st.LanesWarm = max(lanes-st.LanesBusy, 0)
	}
	return st
}

// NumberText is the text of a process's or session's number.
func NumberText(n uint64) string { return fmt.Sprintf("%016x", n) }

// compressMode is Session.Compress.
func (r *relation) compressMode() string {
	switch {
	case r.compress && r.knows(wire.FeatureCompress):
		return flow.CompressAuto
	case r.compress:
		return flow.CompressUnsupported
	}
	return flow.CompressOff
}
