package pair

import (
	"fmt"
	"slices"
	"time"

	"longhaul/internal/tcpinfo"
)

// The directions of a near flow.
const (
	directionUp = iota
	directionDown
)

// auto is what a near flow knows of the lanes that help it.
type auto struct {
	tuners     [2]tuner // by direction
	limited    [2]bool  // it has lacked room on its lanes since it began to move
	farLimited stamp    // the far relay's latest word that it lacks room on them
}

// limitedFor is how long the far relay's word counts.
const limitedFor = 3 * tickEvery

// tune returns the number of lanes that a near flow is to have. One flow of a link at a time
// tries another number, since two would take the one's gain for the other's.
func (f *Flow) tune(now time.Time) (want int) {
	if f.auto == nil {
		f.auto = &auto{}
	}
	a, l := f.auto, f.s.link
	looks := [2]sight{
		directionUp:   {now, f.readyStrands(), f.sf.Out.Acknowledged(), f.lanesFull(), f.s.rtt()},
		directionDown: {now, f.readyStrands(), f.sf.In.Position(), !a.farLimited.IsZero() && a.farLimited.until(now) < limitedFor, f.s.rtt()},
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range looks {
		t := &a.tuners[i]
		a.limited[i] = a.limited[i] || looks[i].limited
		switch {
		case !a.limited[i]:
		case t.trying == 0 && l.known[i].fresh(now):
			t.lanes = l.known[i].lanes
			if f.why == "" {
				f.why = fmt.Sprintf("%d helped %s ago", t.lanes, now.Sub(l.known[i].at).Round(time.Second))
			}
		case l.mayTry(f, now):
			_, found := t.look(looks[i])
			if found != nil {
				l.known[i] = *found
				f.s.node.log.Info("lanes of a flow", "tunnel", f.s.tunnel, "peer", f.s.peer, "lanes", found.lanes, "why", t.why)
			}
			if t.why != "" {
				f.why = t.why
			}
		}
		want = max(want, t.want())
	}
	return max(want, 1)
}

// knowsLanes reports whether several lanes have been found to help.
func (l *Link) knowsLanes(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.known[:], func(k known) bool { return k.lanes > 1 && k.fresh(now) })
}

// mayTry reports whether it is a flow's turn to try. The caller holds l.mu.
func (l *Link) mayTry(f *Flow, now time.Time) bool {
	if l.trial != f && l.trial != nil && now.Sub(l.trialAt) < time.Second {
		return false
	}
	l.trial, l.trialAt = f, now
	return true
}

// readyStrands is the number of lanes that may carry bytes.
func (f *Flow) readyStrands() (n int) {
	for _, st := range f.strands {
		if st.ready {
			n++
		}
	}
	return n
}

// lanesFull reports that the flow has bytes to send and that its lanes have no room for them,
// as the path limits them and not the other end's reading.
func (f *Flow) lanesFull() bool {
	if f.lane == nil || !f.sf.Out.Pending() && !(f.leg.readable && f.sf.Hungry()) {
		return false
	}
	for _, st := range f.strands {
		if st.ready && !st.busy {
			return false
		}
	}
	return !f.lane.tuned.since(f.lane.bulk)
}

// readerWait is how long the kernel has waited for the other end's window on a lane, and has
// had something to send, at the last look.
type readerWait struct{ rwndLimited, busyTime time.Duration }

// since reports whether the lane has mostly waited for the other end's window since the last
// look at it.
func (w *readerWait) since(c *bulkConn) bool {
	before := *w
	kernelSays(c, func(i *tcpinfo.Info) bool {
		w.rwndLimited, w.busyTime = i.RwndLimited, i.BusyTime
		return true
	})
	return w.rwndLimited-before.rwndLimited > (w.busyTime-before.busyTime)/2
}
