package pair

import (
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/pair/stream"
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
