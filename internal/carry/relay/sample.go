package relay

import (
	"sync"
	"time"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/sys/tcpinfo"
)

// An event loop samples one portion of its flows per turn and does nothing else
// meanwhile. A portion ends at portionFlows flows or after portionTime.
const (
	portionFlows = 128
	portionTime  = 50 * time.Microsecond
	clockEvery   = 16 // flows of which the kernel is not queried, without a carrier some 0.1 µs each: the clock would take as long
)

// maxQueried is the approximate number of flows for which one Sample queries
// the kernel. A query takes about 7 µs per flow, and processing the answer as
// long again.
const maxQueried = 500

// sampling is the state that one Sample hands to the next.
type sampling struct {
	mu      sync.Mutex // one at a time
	samples []report.Sample
	pass    uint64
	busy    int // flows that were not quiet
}

// turn selects one of several equal parts of the flows.
type turn struct{ this, of uint64 }

// Sample visits every flow once; it may miss flows that begin or end meanwhile.
// An event loop samples one portion of its flows at a time and moves bytes in
// between. visit runs outside the loop, and Sample reuses the portion once visit
// returns. Which flows the kernel is queried about depends on the previous Sample
// of any caller.
func (r *Relay) Sample(visit func(portion []report.Sample)) error {
	c := &r.sampling
	c.mu.Lock()
	defer c.mu.Unlock()
	loops := r.loops.Load()
	if loops == nil {
		return ErrClosed
	}
	if c.samples == nil {
		c.samples = make([]report.Sample, portionFlows)
	}
	c.pass++
	turns := uint64(c.busy/maxQueried + 1)
	c.busy = 0
	ran := make(chan struct{}, 1)
	for _, w := range *loops {
		n, next := 0, 0
		portion := func() { // one for all portions: thousands of idle flows make no garbage
			n, next = w.sample(next, c.samples, turn{c.pass % turns, turns})
			ran <- struct{}{}
		}
		for next >= 0 {
			if !w.post(portion) {
				return ErrClosed
			}
			<-ran
			for i := range c.samples[:n] {
				if !c.samples[i].Unchanged {
					c.busy++
				}
			}
			visit(c.samples[:n])
		}
	}
	return nil
}

// sample fills in samples of the flows, beginning at slot from. It returns
// their number and the slot to continue with; negative after the last.
func (w *worker) sample(from int, into []report.Sample, t turn) (n, next int) {
	now, wall, look := w.clock(), time.Now().Round(0), false // look: at the clock
	for at := from; at < len(w.slots); at++ {
		f := w.slots[at].flow
		if f == nil {
			continue
		}
		if n == len(into) || look && w.clock()-now >= portionTime {
			return n, at
		}
		s := &into[n]
		w.sampleFlow(f, s, t, now, wall)
		n++
		look = !s.Skipped && !s.Unchanged || n%clockEvery == 0
	}
	return n, -1
}

func (w *worker) sampleFlow(f *flow, s *report.Sample, t turn, now time.Duration, wall time.Time) {
	w.lookAtPaired(f)
	s.Lanes = nil
	s.ID, s.Name, s.Peer = report.ID(f.id), f.name, f.peer()
	s.Tunnel = f.route.tunnel.Name
	s.State = f.state()
	s.Client, s.Listen, s.Target = f.origin(), w.listenAddr(f), f.target()
	s.Hop = f.hopName()
	s.Start, s.Connect = wall.Add(f.start-now), f.connect()
	s.BytesUp, s.BytesDown = max(0, f.dirs[up].bytes), max(0, f.dirs[down].bytes)
	moving := f.connected() || f.phase == phasePaired
	s.Unchanged = moving && f.settled != 0 && f.active <= f.settled
	s.Skipped = !s.Unchanged && f.id%t.of != t.this
	if s.Unchanged || s.Skipped {
		s.ClientLeg.Known, s.TargetLeg.Known = false, false
		return
	}
	w.setUpLegs(f)
	if f.carried() {
		f.inspect(func(fds [2]int, add [2]report.Counters) {
			f.sampleLegs(fds, s)
			f.sampleLane(s, add)
		})
		f.sampleEachLane(s)
	} else { // without garbage for each flow
		f.sampleLegs([2]int{int(f.legs[client].fd), int(f.legs[target].fd)}, s)
	}
	f.settled = 0
	if moving && f.dirs[up].held == 0 && f.dirs[down].held == 0 && f.settledLeg(client, &s.ClientLeg) && f.settledLeg(target, &s.TargetLeg) {
		f.settled = w.now - 1 // bytes that move later in this turn carry this turn's time
	}
}

// sampleLegs fills in what the kernel knows of both legs.
func (f *flow) sampleLegs(fds [2]int, s *report.Sample) {
	f.legs[client].sample(fds[client], &s.ClientLeg)
	if f.connected() || f.phase == phasePaired {
		f.legs[target].sample(fds[target], &s.TargetLeg)
	} else {
		s.TargetLeg = report.LegSample{SendBuffer: -1, SendQueued: -1} // missing while the target leg connects
	}
}

// settledLeg reports whether nothing is under way on a leg. A paired flow that is parked has
// none at the lane's side.
func (f *flow) settledLeg(s side, l *report.LegSample) bool {
	parked := f.isLane(s) && !l.Known && f.paired.seen.retained == 0
	return parked || settled(l)
}

// settled reports whether the leg's peer has acknowledged everything.
func settled(l *report.LegSample) bool {
	return l.Known && l.Info.Unacked == 0 && l.Info.NotsentBytes == 0
}

// sample fills in what the kernel knows of a leg; a negative fd means that the
// leg has no socket.
func (l *leg) sample(fd int, s *report.LegSample) {
	likely := s.CongestionControl // the value of another flow
	s.Side, s.CongestionControl, s.Known, s.SendBuffer, s.SendQueued, s.MemoryLimited = "", "", false, -1, -1, false
	if l.setup != nil {
		s.Side = l.setup.side
	}
	if fd < 0 {
		return
	}
	var err error
	if s.Info, err = tcpinfo.Get(fd); err != nil {
		return
	}
	s.Known = true
	s.CongestionControl, _ = tcpinfo.LikelyCongestionControl(fd, likely)
	if m, ok := socketMemory(fd); ok {
		s.SendBuffer, s.SendQueued = int64(m[skSendBound]), int64(m[skSendQueued])
	}
}
