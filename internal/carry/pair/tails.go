package pair

import (
	"slices"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/tcpinfo"
)

// A flow that has sent everything waits for its slowest lane. If one falls silent, what it
// carries goes out once more on another lane, long before the first one counts as dead. A flow
// with one lane gets a second one for that.

const (
	// tailFloor is the shortest silence of a lane that says something: the kernel of the other
	// end may acknowledge 40 ms late.
	tailFloor = 50 * time.Millisecond
	// tailShare bounds what a session's flows send twice, to one of so many bytes,
	tailShare = 50
	// tailStart besides so many bytes, which its first flows have.
	tailStart = 1 << 20
	// hedgeFor is how long a flow keeps a second lane that it got because its only one was
	// silent.
	hedgeFor = 2 * time.Second
)

// tails are what a session's flows have sent from here.
type tails struct {
	sent    atomic.Int64 // bytes on lanes
	doubled atomic.Int64 // bytes of these that went out on a second lane
}

// left is how many bytes may go out twice now.
func (t *tails) left() int64 { return tailStart + t.sent.Load()/tailShare - t.doubled.Load() }

// noteSent notes that an item went out on a lane. The caller holds f.mu.
func (f *Flow) noteSent(st *strand, item stream.Item) {
	f.moved = stampNow()
	st.sentAt = f.moved
	f.s.tails.sent.Add(int64(len(item.Bytes)))
}

// noteAck notes that the other end has more than before: a lane that carried that may have
// something to send now. The caller holds f.mu.
func (f *Flow) noteAck() {
	f.ackedBase, f.ackedAt = f.sf.Out.Acknowledged(), stampNow()
	for _, st := range f.strands { // room may come with the next segment
		if st.roomAt != 0 {
			st.roomAt = f.ackedAt
		}
	}
	f.feed()
}

// doubleTail sends what a silent lane carries on another one as well, if everything was sent.
// Between two ticks a timer looks once more. The caller holds f.mu.
func (f *Flow) doubleTail(now time.Time, tick bool) {
	if f.finished || f.lane == nil || !f.sf.Out.Unacknowledged() || !f.hedges() {
		return
	}
	if alone := len(f.strands) == 1; !alone && f.sf.Out.Pending() || alone && f.joining > 0 {
		return
	}
	held := f.heldLane()
	if held == nil {
		return
	}
	switch left, silent := held.silence(min(f.ackedAt.until(now), held.sentAt.until(now))); {
	case !silent:
	case left > 0:
		if tick && left < tickEvery {
			time.AfterFunc(left, func() {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.doubleTail(time.Now(), false)
			})
		}
	case len(f.strands) == 1:
		f.hedge(now)
	default:
		f.doubleOn(held)
	}
}

// hedges reports whether the flow may get a second lane.
func (f *Flow) hedges() bool {
	if len(f.strands) > 1 {
		return true
	}
	if !f.near {
		return f.s.manyLanes() // the near relay decides
	}
	return f.s.link.options().Lanes > 1 && f.s.manyLanes()
}

// heldLane is the lane that holds up the other end; nil: none does.
func (f *Flow) heldLane() *strand {
	lanes := make([]*stream.Lane, len(f.strands))
	for i, st := range f.strands {
		lanes[i] = &st.sent
	}
	if i := f.sf.Out.Held(lanes); i >= 0 {
		return f.strands[i]
	}
	return nil
}

// tailAfter is how long a lane waits for an acknowledgement until it counts as silent: two round
// trips, as RFC 8985 waits before it probes.
func tailAfter(i *tcpinfo.Info) time.Duration { return max(tailFloor, 2*i.RTT+ackDelay) }

// silence is how much longer a lane may take for an acknowledgement, of which there was none for
// so long, until it counts as silent. It reports false if the kernel waits for
// none: then it is not the lane that takes time.
func (st *strand) silence(already time.Duration) (left time.Duration, waits bool) {
	waits = kernelSays(st.l.bulk, func(i *tcpinfo.Info) bool {
		left = tailAfter(i) - min(already, i.LastAckRecv)
		return i.Unacked > 0
	})
	return left, waits
}

// doubleOn sends what a lane carries on the quickest other one that is not silent too.
func (f *Flow) doubleOn(held *strand) {
	var best *strand
	var least time.Duration
	for _, st := range f.strands {
		if st == held || !st.ready || st.leaving || st.busy {
			continue
		}
		kernelSays(st.l.bulk, func(i *tcpinfo.Info) bool {
			silent := i.Unacked > 0 && i.LastAckRecv > tailAfter(i)
			if !silent && (best == nil || i.RTT < least) {
				best, least = st, i.RTT
			}
			return true
		})
	}
	if best == nil {
		return
	}
	if n, done := f.sf.Out.Double(&held.sent, &best.sent, f.s.tails.left()); done {
		f.s.tails.doubled.Add(n)
		f.feed()
	}
}

// hedge gets the flow, whose only lane is silent, a second one. A far relay asks for it.
func (f *Flow) hedge(now time.Time) {
	if !f.near {
		f.s.offer(wire.Message{Type: wire.MessageLimited, Flow: f.id, Flags: wire.FlagHedge})
		return
	}
	f.strands[0].hedgedAt = stampOf(now)
	if f.hedged(now) && f.joining == 0 && f.joinable() {
		f.s.link.wantMore(f, f.s.link.hedgePath(f.lane.path))
	}
}

// hedgePath is the best path that is not that of the silent lane; if there is no other, that.
func (l *Link) hedgePath(silent *wanPath) *wanPath {
	for _, p := range l.preferred() {
		if p != silent {
			return p
		}
	}
	return l.bestPath()
}

// hedged reports whether the flow is to have a second lane for a while, and counts it.
func (f *Flow) hedged(now time.Time) bool {
	if !slices.ContainsFunc(f.strands, func(st *strand) bool {
		return !st.hedgedAt.IsZero() && st.hedgedAt.until(now) < hedgeFor
	}) {
		return false
	}
	f.wantLanes = max(f.wantLanes, 2)
	return true
}
