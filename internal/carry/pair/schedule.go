package pair

import (
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/pair/stream"
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
	// maxBehind bounds what other lanes bring while a record is under way on a slow one:
	// the receiver keeps that.
	maxBehind = maxSpill / 2
	// silentLane is how long a lane without an acknowledgement counts as the faster one,
	// beside two round trips.
	silentLane = 200 * time.Millisecond
)

// limitedFor is how long the far relay's word that it lacks room counts. It repeats it at each tick.
const limitedFor = 3 * tickEvery

// mix is what a flow that moves knows of its lanes together. A parked flow has none.
type mix struct {
	quickest   *strand // which gets what is little; nil: the main one
	uneven     bool    // the lanes differ much in delay
	window     window
	farLimited stamp // near: the far relay's latest word that it lacks room on the lanes
	movers     [2]mover
	moving     moving
}

func (f *Flow) mixed() *mix {
	if f.mix == nil {
		f.mix = &mix{}
	}
	return f.mix
}

func (f *Flow) uneven() bool { return f.mix != nil && f.mix.uneven }

// farLacksRoom reports that the far relay has said of late that it lacks room on the lanes.
func (f *Flow) farLacksRoom(now time.Time) bool {
	return f.mix != nil && !f.mix.farLimited.IsZero() && f.mix.farLimited.until(now) < limitedFor
}

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
// they bring it and what waits before it sooner, or the receiver would have to keep too much.
func (p pace) leaves(others []pace, backlog int64) bool {
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
	return behind > maxBehind
}

// pace looks at the strand's lane, unless that has been done just now.
func (st *strand) pace() pace {
	if now := stampNow(); st.paced.at == 0 || time.Duration(now-st.paced.at) > paceFor {
		kernelSays(st.l.bulk, func(i *tcpinfo.Info) bool { st.paced = paceOf(i); return true })
		st.paced.at = now
	}
	return st.paced
}

// measureLanes finds whether the flow's lanes differ, and which one is quickest.
func (f *Flow) measureLanes() {
	if len(f.strands) < 2 {
		if f.mix != nil {
			f.mix.quickest, f.mix.uneven = nil, false
		}
		return
	}
	var quickest *strand
	var slowest time.Duration
	for _, st := range f.strands {
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
	m := f.mixed()
	m.uneven = slowest > 2*quickest.paced.rtt && slowest-quickest.paced.rtt > betterBy
	if !m.uneven {
		quickest = f.strands[0]
	}
	if was := m.quickest; was == nil || was.gone || !m.uneven || 2*quickest.paced.rtt < was.paced.rtt {
		m.quickest = quickest
	}
	f.feed() // a lane may have left a record to others that have become slower
}

// boundUnsent has the kernel take no more for a lane than what that sends in two records' time:
// as soon as it has sent half of it, another record has room.
func (st *strand) boundUnsent() {
	bound := 2*st.paced.record() + recordOverhead
	if st.unsent == bound {
		return
	}
	st.unsent = bound
	st.l.bulk.control(func(fd int) { _ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, bound) })
}

// slowestLane is the longest round trip of the flow's lanes, or the session's.
func (f *Flow) slowestLane() time.Duration {
	rtt := f.s.rtt()
	for _, st := range f.strands {
		rtt = max(rtt, st.paced.rtt)
	}
	return rtt
}

// firstStrand is the strand for what is little.
func (f *Flow) firstStrand() *strand {
	if f.mix == nil {
		return f.strands[0]
	}
	if q := f.mix.quickest; q != nil && !q.gone && q.ready && !q.leaving {
		return q
	}
	return f.strands[0]
}

// leavesRecord reports whether a strand leaves the next record to a faster one.
func (f *Flow) leavesRecord(st *strand) bool {
	if !f.uneven() {
		return false
	}
	others := make([]pace, 0, maxLanes)
	for _, o := range f.strands {
		if o != st && o.ready && !o.leaving {
			others = append(others, o.pace())
		}
	}
	backlog := f.sf.Out.Unsent()
	if f.leg.open() && f.leg.readable {
		backlog += int64(socket.Unread(f.leg.fd))
	}
	return st.pace().leaves(others, backlog)
}
