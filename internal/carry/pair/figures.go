package pair

import (
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/units"
)

var _ flow.Carried = (*Flow)(nil)

func (f *Flow) end() flow.End {
	e := flow.End{Reason: flow.EndClean, Back: f.near.client(), Peer: f.s.peerSeen(), Target: targetOf(f), Resumes: int(f.need.resumes),
		Outage: f.need.outageNow()}
	e.Lanes, e.CongestionControl = f.lanes.counted.load(), f.s.laneCongestionControl()
	out, in := int64(f.sf.Out.Acknowledged()), int64(f.sf.In.Position())
	e.BytesUp, e.BytesDown = in, out
	if f.s.near {
		e.BytesUp, e.BytesDown = out, in
	}
	if c, _ := f.sf.Cause(); !f.sf.Clean() {
		e.Reason, e.Err = reasonOf(c)
		e.ByPeer = f.told
	}
	return e
}

// Owner implements flow.Carried.
func (f *Flow) Owner() flow.Owner {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.owner
}

// Figures implements flow.Carried.
func (f *Flow) Figures() flow.Figures {
	f.mu.Lock()
	defer f.mu.Unlock()
	up, down := int64(f.sf.In.Position()), int64(f.sf.Out.Acknowledged())
	if f.s.near {
		up, down = down, up
	}
	g := flow.Figures{State: f.state(), BytesUp: up, BytesDown: down, Retained: f.sf.Out.Kept(), Peer: f.s.peerSeen(), Target: targetOf(f), Idle: f.moved.since(),
		Ended: f.sf.Out.Ended() || f.sf.In.Ended(), Clean: f.sf.Clean(),
		Lanes: len(f.lanes.all), Resumes: int(f.need.resumes), RTT: units.Seconds(f.s.rtt()), MemoryLimited: f.spread.memoryLimited()}
	g.Outage = f.need.outageNow()
	return g
}

// outageNow is the time without a lane that the flow needed. It leaves out parts of a millisecond: a lane that comes
// at once is no outage.
func (nd *laneNeed) outageNow() units.Seconds {
	ms := time.Duration(nd.outage)
	if !nd.since.IsZero() {
		ms += time.Duration(nd.since.since().Milliseconds())
	}
	return units.Seconds(ms * time.Millisecond)
}

func (f *Flow) state() string {
	switch {
	case f.sf.Dead() || f.sf.Clean():
		return flow.StateDelivering
	case f.phase != phaseOpen:
		return flow.StateDialing
	case !f.need.since.IsZero():
		return flow.StateResuming
	case f.lanes.main() == nil:
		return flow.StateParked
	}
	return flow.StateOpen
}

// Inspect implements flow.Carried.
func (f *Flow) Inspect(look func(leg, lane int, add flow.Counters)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sent, looked := f.lanes.counted.load(), false
	for i, st := range f.lanes.all {
		if i > 0 {
			sent = sent.Plus(st.l.unsettled())
		}
	}
	if l := f.lanes.main(); l != nil {
		l.mu.Lock()
		add := sent.Minus(l.settled)
		l.mu.Unlock()
		l.bulk.control(func(fd int) { looked = true; look(f.leg.fd(), fd, add) })
	}
	if !looked {
		look(f.leg.fd(), -1, sent)
	}
}

// EachLane implements flow.Carried.
func (f *Flow) EachLane() (all []flow.Lane) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.lanes.all) < 2 {
		return nil
	}
	for _, st := range f.lanes.all {
		one := flow.Lane{Local: flow.Address{AddrPort: localAddress(st.l.bulk)}, Leaving: st.leaving}
		kernelSays(st.l.bulk, func(i *tcpinfo.Info) bool {
			one.BytesSent, one.BytesReceived, one.RTT = int64(i.BytesAcked), int64(i.BytesReceived), units.Seconds(i.RTT)
			return true
		})
		all = append(all, one)
	}
	return all
}

func (f *Flow) credit(c flow.Counters) { f.lanes.counted.add(c) }
