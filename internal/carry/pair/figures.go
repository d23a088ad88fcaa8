package pair

import (
	"net/netip"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/sys/tcpinfo"
)

func (f *Flow) end() End {
	e := End{Reason: flow.EndClean, Start: f.start.time(), Elapsed: f.start.since(), Target: f.target,
		Resumes: int(f.resumes), Outage: f.outage.Truncate(time.Millisecond)} // a lane at once is no outage
	e.Lanes, e.CongestionControl = f.lanes.load(), f.s.laneCongestionControl()
	out, in := int64(f.sf.Out.Acknowledged()), int64(f.sf.In.Position())
	e.BytesUp, e.BytesDown = in, out
	if f.s.near {
		e.BytesUp, e.BytesDown = out, in
	}
	if c, byPeer := f.sf.Cause(); !f.sf.Clean() {
		e.Reason, e.Err = reasonOf(c)
		e.Far, e.ByPeer = byPeer == f.s.near, f.told
	}
	return e
}

// Figures are the flow at this moment.
func (f *Flow) Figures() Figures {
	f.mu.Lock()
	defer f.mu.Unlock()
	up, down := int64(f.sf.In.Position()), int64(f.sf.Out.Acknowledged())
	if f.s.near {
		up, down = down, up
	}
	g := Figures{State: f.state(), BytesUp: up, BytesDown: down, Retained: f.sf.Out.Kept(), Target: f.target,
		Lanes: len(f.strands), Resumes: int(f.resumes), Outage: f.outage, RTT: f.s.rtt()}
	if !f.needSince.IsZero() {
		g.Outage += f.needSince.since()
	}
	return g
}

func (f *Flow) state() FlowState {
	switch {
	case f.sf.Dead() || f.sf.Clean():
		return FlowEnding
	case f.phase != phaseOpen:
		return FlowOpening
	case !f.needSince.IsZero():
		return FlowResumes
	case f.lane() == nil:
		return FlowParked
	}
	return FlowOpen
}

// Inspect calls look with the flow's own socket and the socket of its lane, each -1
// if it has none. The descriptors are valid during the call only. The lane's counters, with
// add, are those of the flow.
func (f *Flow) Inspect(look func(leg, lane int, add Counters)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sent, looked := f.lanes.load(), false
	for i, st := range f.strands {
		if i > 0 {
			sent = sent.plus(st.l.unsettled(), 1)
		}
	}
	if l := f.lane(); l != nil {
		l.mu.Lock()
		add := sent.plus(l.settled, -1)
		l.mu.Unlock()
		l.bulk.control(func(fd int) { looked = true; look(f.leg.fd, fd, add) })
	}
	if !looked {
		look(f.leg.fd, -1, sent)
	}
}

// Idle is the time since a byte moved.
func (f *Flow) Idle() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.moved.since()
}

// EachLane returns the lanes of a flow that has several.
func (f *Flow) EachLane() (all []LaneFigures) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.strands) < 2 {
		return nil
	}
	for _, st := range f.strands {
		one := LaneFigures{Local: localAddress(st.l.bulk), Leaving: st.leaving}
		kernelSays(st.l.bulk, func(i *tcpinfo.Info) bool {
			one.Sent, one.Received, one.RTT = int64(i.BytesAcked), int64(i.BytesReceived), i.RTT
			return true
		})
		all = append(all, one)
	}
	return all
}

// LaneFigures are a lane of a flow at one moment. Its counters are those of its connection,
// for all flows that had it.
type LaneFigures struct {
	Local    netip.AddrPort
	Sent     int64 // bytes that the other host has acknowledged
	Received int64
	RTT      time.Duration
	Leaving  bool // another takes its place
}
