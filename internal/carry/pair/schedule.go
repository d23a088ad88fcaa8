package pair

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/socket"
	"longhaul/internal/sys/tcpinfo"
)

// Lanes of one path are alike, and whichever has room takes the next record. Lanes of several
// paths may differ: a record on a slow lane would hold up all that the others bring behind it.
// So a slow lane leaves a record to a faster one that brings it sooner (earliest completion,
// Lim et al., "ECF: An MPTCP Path Scheduler to Manage Heterogeneous Paths", 2017).

const (
	// paceFor is how long a look at a lane is good for.
	paceFor = 5 * time.Millisecond
	// recordTime is what a record of several lanes lasts on its lane.
	recordTime = 8 * time.Millisecond
	leastBytes = 16 << 10 // of a record
	// silentLane is how long a lane without an acknowledgement counts as the faster one,
	// beside two round trips.
	silentLane = 200 * time.Millisecond
)

// pace is what a lane can do.
type pace struct {
	at     stamp
	rtt    time.Duration // 0: not known
	rate   float64       // bytes a second
	queued float64       // bytes that the kernel has not sent yet
	silent bool          // nothing has been acknowledged for long

	delivered struct{ packets, mss uint32 } // since the lane was made
}

// paceOf is what the kernel makes of a connection.
func paceOf(i *tcpinfo.Info) pace {
	p := pace{rtt: i.RTT, queued: float64(i.NotsentBytes)}
	if i.RTT <= 0 {
		return pace{}
	}
	p.rate = float64(i.SndCwnd) * float64(i.SndMSS) / i.RTT.Seconds()
	if i.Has(tcpinfo.FieldPacingRateBps) && i.PacingRateBps > 0 && i.PacingRateBps != tcpinfo.Unlimited {
		p.rate = min(p.rate, float64(i.PacingRateBps)/8)
	}
	p.delivered.packets, p.delivered.mss = i.Delivered, i.SndMSS
	p.silent = i.Unacked > 0 && i.LastAckRecv > 2*i.RTT+silentLane
	return p
}

// takes is how long n bytes more take to the other end.
func (p pace) takes(n float64) time.Duration {
	return p.rtt/2 + time.Duration((p.queued+n)/p.rate*float64(time.Second))
}

// record is how many bytes are to follow on the lane at once.
func (p pace) record() int {
	if p.rate == 0 {
		return stream.ChunkMax
	}
	return min(max(int(p.rate*recordTime.Seconds()), leastBytes), stream.ChunkMax)
}

// leaves reports whether a lane leaves its next record to others, of which some are faster:
// they bring it and what waits before it sooner, or more than most bytes meanwhile, which the receiver
// would have to keep.
func (p pace) leaves(others []pace, backlog, most int64) bool {
	if p.rate == 0 {
		return false
	}
	own, behind := p.takes(float64(p.record())), 0.0
	for _, o := range others {
		if o.rate == 0 || o.silent || o.rtt >= p.rtt {
			continue
		}
		if o.takes(float64(backlog)) < own {
			return true
		}
		behind += o.rate * (own - o.rtt/2).Seconds()
	}
	return behind > float64(most)
}

// quickest is the subflow for what is little.
func (sp *laneSpread) quickest() *subflow {
	if sp.uneven() {
		if q := sp.mix.quickest; !q.gone && q.ready && !q.leaving {
			return q
		}
	}
	return sp.flow().lanes.all[0]
}

// leavesRecord reports whether a subflow leaves the next record to a faster one.
func (sp *laneSpread) leavesRecord(st *subflow) bool {
	f := sp.flow()
	if !sp.uneven() {
		return false
	}
	others := make([]pace, 0, maxLanes)
	for _, o := range f.lanes.all {
		if o != st && o.ready && !o.leaving {
			others = append(others, o.pace())
		}
	}
	backlog := f.sf.Out.Unsent()
	if f.leg.open() && f.leg.readable {
		backlog += int64(socket.Unread(f.leg.fd()))
	}
	return st.pace().leaves(others, backlog, f.sf.Out.Reach()/2)
}

func (sp *laneSpread) mixed() *mix {
	if sp.mix == nil {
		sp.mix = &mix{}
	}
	return sp.mix
}

// uneven reports whether the lanes differ much in delay.
func (sp *laneSpread) uneven() bool { return sp.mix != nil && sp.mix.quickest != nil }

// measure finds whether the flow's lanes differ, and which one is quickest.
func (sp *laneSpread) measure() {
	f := sp.flow()
	if len(f.lanes.all) < 2 {
		if sp.mix != nil {
			sp.mix.quickest = nil
		}
		return
	}
	var quickest *subflow
	var slowest time.Duration
	for _, st := range f.lanes.all {
		p := st.pace()
		if !st.ready || st.leaving || p.rtt == 0 {
			continue
		}
		slowest = max(slowest, p.rtt)
		if quickest == nil || p.rtt < quickest.paced.rtt {
			quickest = st
		}
	}
	if quickest == nil {
		return
	}
	// Lanes of one path differ by what they queue, which is no reason to change.
	m := sp.mixed()
	if slowest <= 2*quickest.paced.rtt || slowest-quickest.paced.rtt <= betterBy {
		m.quickest = nil
	} else if was := m.quickest; was == nil || was.gone || 2*quickest.paced.rtt < was.paced.rtt {
		m.quickest = quickest
	}
	f.lanes.feed() // a lane may have left a record to others that have become slower
}

// slowestLane is the longest round trip of the flow's lanes, or the session's.
func (sp *laneSpread) slowestLane() time.Duration {
	f := sp.flow()
	rtt := f.s.rtt()
	for _, st := range f.lanes.all {
		rtt = max(rtt, st.paced.rtt)
	}
	return rtt
}

// setWindow bounds what the flow keeps.
func (sp *laneSpread) setWindow() {
	f := sp.flow()
	if f.lanes.main() == nil || f.s.noResume {
		return
	}
	if f.s.knows(wire.FeatureCompress) {
		// The kernels count what was compressed, and only a lane whose socket is full says that
		// it is worth that.
		if f.sf.Out.Starved() {
			limit := 2 * f.sf.Out.Limit()
			f.sf.Out.SetLimit(limit, limit, len(f.lanes.all))
		}
		return
	}
	var open, arrived float64
	var rtt time.Duration
	for _, st := range f.lanes.all {
		p := st.pace()
		if p.rate == 0 {
			continue
		}
		open += p.rate*p.rtt.Seconds() + float64(2*p.record())
		arrived += st.arrived()
		rtt = max(rtt, p.rtt)
	}
	if rtt == 0 {
		return
	}
	now, w := stampNow(), &sp.mixed().window
	w.note(now, arrived, rtt, f.sf.Out.Starved())
	kept := w.size(now, windowRounds, open, rtt)
	reach := kept
	if len(f.lanes.all) > 1 {
		reach = w.size(now, reachRounds, 2*open, rtt)
		if !f.s.knows(wire.FeatureHeld) {
			kept = reach
		}
	}
	f.sf.Out.SetLimit(kept, reach, len(f.lanes.all))
}

// WaitsForPath reports whether the flow's bytes may wait for the path, and for nobody at either
// end who does not read.
func (f *Flow) WaitsForPath() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !f.need.since.IsZero(), f.phase != phaseOpen:
		return true
	case f.leg.open():
		if i, err := tcpinfo.Get(f.leg.fd()); err == nil && waitsForReader(&i) {
			return false
		}
	}
	if !f.sf.Out.Unacknowledged() || f.watch.ackedAt.since() < f.s.patience(readerSilence, 8) {
		return true
	}
	return slices.ContainsFunc(f.lanes.all, func(st *subflow) bool {
		return kernelSays(st.l.bulk, func(i *tcpinfo.Info) bool { return i.Unacked > 0 && !waitsForReader(i) })
	})
}

// readerSilence is the time without an acknowledgement after which it may be the reader at the
// other end for which bytes wait.
const readerSilence = 5 * time.Second

// waitsForReader reports whether the window of a socket's peer has no room for what is to be sent.
func waitsForReader(i *tcpinfo.Info) bool {
	return i.NotsentBytes > 0 && uint64(i.Unacked+1)*uint64(i.SndMSS) > uint64(i.SndWnd)
}

// mayTake reports whether a subflow gets what is to be sent next. A small message waits for
// the first lane, unless that is busy, and a slow lane leaves a record to a faster one.
func (ls *laneSet) mayTake(st *subflow) bool {
	f := ls.flow()
	if !st.ready || f.near.releasing || !f.sf.Out.Pending() {
		return false
	}
	if st != ls.all[0] && st.leaving {
		return false
	}
	main := f.spread.quickest()
	if st != main && f.spread.leavesRecord(st) {
		return false
	}
	return st == main || main.busy || !main.ready || f.sf.Out.Unsent() > spread
}

// feed wakes a goroutine that may send. The caller holds f.mu.
func (ls *laneSet) feed() {
	for _, st := range ls.all {
		if st.idle && ls.mayTake(st) {
			st.idle = false
			st.cond.broadcast()
			return
		}
	}
}

// pace looks at the lane, unless that has been done just now.
func (st *subflow) pace() pace {
	if now := stampNow(); st.paced.at == 0 || time.Duration(now-st.paced.at) > paceFor {
		kernelSays(st.l.bulk, func(i *tcpinfo.Info) bool { st.paced = paceOf(i); return true })
		st.paced.at = now
	}
	return st.paced
}

// boundUnsent has the kernel take no more for a lane than what that sends in two records' time:
// as soon as it has sent half of it, another record has room.
func (st *subflow) boundUnsent() {
	bound := 2*st.paced.record() + recordOverhead
	if st.unsent == bound {
		return
	}
	st.unsent = bound
	st.l.bulk.control(func(fd int) { _ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, bound) })
}

// arrived is how many bytes the other end's kernel has got on the lane since the last look.
func (st *subflow) arrived() float64 {
	was := st.delivered
	if st.delivered = st.paced.delivered; was.packets == 0 {
		return 0
	}
	return float64(st.delivered.packets-was.packets) * float64(st.delivered.mss)
}
