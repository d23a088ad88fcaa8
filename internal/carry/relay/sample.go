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
	clockEvery   = 16 // flows of which the kernel is not queried, some 0.1 µs each: the clock would take as long

	skimmedSlots = 4096 // places for flows that a loop skims in one turn: some 50 µs
)

// sampling is the state that one Sample hands to the next.
type sampling struct {
	mu      sync.Mutex // one at a time
	samples []report.Sample
	waiting []int64 // flows of each loop that wait for a visit
}

// Sample visits the flows to which something has happened since their last visit, up to a bound: the busiest
// first, and the others in turn (see visitList). New flows are all visited. A flow that is not visited has
// not changed, or waits: lag is for how many Samples the one that has waited longest has waited, after this one.
//
// An event loop samples one portion of its flows at a time and moves bytes in
// between. visit runs outside the loop, and Sample reuses the portion once visit
// returns.
func (r *Relay) Sample(visit func(portion []report.Sample)) (lag int, err error) {
	c := &r.sampling
	c.mu.Lock()
	defer c.mu.Unlock()
	loops := r.loops.Load()
	if loops == nil {
		return 0, ErrClosed
	}
	if c.samples == nil {
		c.samples = make([]report.Sample, portionFlows)
	}
	ran := make(chan struct{}, 1)
	flows := int64(0)
	c.waiting = c.waiting[:0]
	for _, w := range *loops {
		next, n := 0, int64(0)
		skim := func() {
			if next = w.skim(next); next < 0 {
				n = w.visits.waiting
			}
			ran <- struct{}{}
		}
		for next >= 0 {
			if !w.post(skim) {
				return 0, ErrClosed
			}
			<-ran
		}
		c.waiting = append(c.waiting, n)
		flows += n
	}
	for left, i := maxVisited, 0; i < len(*loops); i++ {
		w := (*loops)[i]
		p := places{left: share(left, len(*loops)-1-i, c.waiting[i], flows)}
		flows -= c.waiting[i]
		left -= p.left
		got, begun, more := 0, false, true
		portion := func() { // one for all portions: thousands of flows make no garbage
			if !begun {
				begun = true
				w.beginVisits(&p)
			}
			if got, more = w.sample(c.samples, &p); !more {
				lag = max(lag, w.lag())
			}
			ran <- struct{}{}
		}
		for more {
			if !w.post(portion) {
				return lag, ErrClosed
			}
			<-ran
			if got > 0 {
				visit(c.samples[:got])
				got = 0
			}
		}
		left += p.left // for the loops behind
	}
	return lag, nil
}

// Running visits the IDs of all flows, in portions that it reuses; it may miss flows that begin meanwhile. OnFlows
// has the records of all others.
func (r *Relay) Running(visit func(portion []report.ID)) error {
	loops := r.loops.Load()
	if loops == nil {
		return ErrClosed
	}
	var ids []report.ID
	for _, w := range *loops {
		for next := 0; next >= 0; {
			ids = ids[:0]
			if !w.do(func() {
				w.report() // who has ended in this turn is not named, and has a record
				until := min(next+skimmedSlots, len(w.slots))
				for ; next < until; next++ {
					if f := w.slots[next].flow; f != nil {
						ids = append(ids, report.ID(f.id))
					}
				}
				if next == len(w.slots) {
					next = -1
				}
			}) {
				return ErrClosed
			}
			visit(ids)
		}
	}
	return nil
}

// skim looks at the flows that carriers move, beginning at a slot, which counts what they have moved. It returns
// the slot to continue with; negative after the last.
func (w *worker) skim(from int) (next int) {
	if w.pairedFlows == 0 {
		return -1
	}
	began, looks := w.clock(), 0
	for next = from; next < len(w.slots); {
		f := w.slots[next].flow
		next++
		if f != nil && f.carried() {
			w.lookAtPaired(f)
			looks++
		}
		if next-from == skimmedSlots || looks == clockEvery && w.clock()-began >= portionTime {
			return next
		}
		looks %= clockEvery
	}
	return -1
}

// sample fills in samples of the flows that are to be visited. It returns their number, and whether there are more.
func (w *worker) sample(into []report.Sample, p *places) (n int, more bool) {
	now, wall, look := w.clock(), time.Now().Round(0), false // look: at the clock
	for n < len(into) && (!look || w.clock()-now < portionTime) {
		f, query := w.nextVisit(p)
		if f == nil {
			return n, false
		}
		s, since := &into[n], w.slots[f.slot].since
		w.lookAtPaired(f)
		w.sampleFlow(f, s, query, now, wall)
		w.visited(f, s, since)
		n++
		look = !s.Skipped && !s.Unchanged || n%clockEvery == 0
	}
	return n, true
}

// visited has a flow wait for its next visit, unless it is at rest.
func (w *worker) visited(f *flow, s *report.Sample, since uint32) {
	s.Waited, s.Moved = int(w.visits.pass-since), int(f.visit.moved)
	f.visit = visit{movedIn: f.visit.movedIn}
	w.unlist(f) // a look at a carried flow may have listed it
	if !s.Unchanged {
		w.enlist(f, inTurn, w.visits.pass)
	}
}

// sampleFlow fills in a sample, as of the latest look at a carried flow; query says whether the kernel is queried.
func (w *worker) sampleFlow(f *flow, s *report.Sample, query bool, now time.Duration, wall time.Time) {
	s.Lanes = nil
	s.ID, s.Name, s.Peer = report.ID(f.id), f.name, f.peer()
	s.Tunnel = f.route.tunnel.Name
	s.State = f.state()
	s.Client, s.Listen, s.Target = f.origin(), w.listenAddr(f), f.target()
	s.Hop = f.hopName()
	s.Start, s.Connect = wall.Add(f.start-now), f.connect()
	s.BytesUp, s.BytesDown = max(0, f.dirs[up].bytes), max(0, f.dirs[down].bytes)
	moving := f.connected() || f.phase == phasePaired
	s.Unchanged = moving && f.rests
	s.Skipped = !s.Unchanged && !query
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
		f.legs[client].named, f.legs[target].named = s.ClientLeg.Known, s.TargetLeg.Known
	}
	f.rests = moving && f.dirs[up].held == 0 && f.dirs[down].held == 0 && f.settledLeg(client, &s.ClientLeg) && f.settledLeg(target, &s.TargetLeg)
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
	if !l.named {
		s.CongestionControl, _ = tcpinfo.LikelyCongestionControl(fd, likely)
	}
	if m, ok := socketMemory(fd); ok {
		s.SendBuffer, s.SendQueued = int64(m[skSendBound]), int64(m[skSendQueued])
	}
}
