package pair

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/tcpinfo"
)

// The directions of a near flow.
const (
	directionUp = iota
	directionDown
)

// auto is what a near flow knows of its lanes.
type auto struct {
	tuners  [2]tuner  // by direction
	limited [2]bool   // it has lacked room on its lanes since it began to move
	rates   laneRates // of the latest attempt
	hushed  bool      // nothing is to be sent for a moment
	alone   stamp     // the latest word that the flow's further lanes are to pause here; zero: none

	movers [2]mover
	moving moving
}

// limitedFor is how long the word of the other relay counts, which repeats it at each tick.
const limitedFor = 3 * tickEvery

// tune returns the number of lanes that a near flow is to have. One flow of a link at a time
// tries another number, since two would take the one's gain for the other's.
func (f *Flow) tune(now time.Time) (want int) {
	if f.auto == nil {
		f.auto = &auto{}
	}
	a, l := f.auto, f.s.link
	looks := f.sights(now)
	l.mu.Lock()
	defer l.mu.Unlock()
	defer f.pauseLanes(now, looks[0].least)
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
			if l.known[i].alone > 0 && !t.placed && looks[i].least == 1 && l.mayTry(f, now) {
				t.place(l.known[i], now)
			}
		case l.mayTry(f, now):
			_, found := t.look(looks[i])
			if t.latest != nil && t.want() < len(f.strands) {
				a.rates = t.latest
			}
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

// slowestLast has the lanes given back first that were slowest when their number was found
// too large: lanes that share a member of a group of links. Those do not go to the pool.
func (f *Flow) slowestLast() {
	if f.auto == nil || f.auto.rates == nil || len(f.strands) < 2 {
		return
	}
	rates := f.auto.rates
	f.auto.rates = nil
	slices.SortStableFunc(f.strands[1:], func(a, b *strand) int { return cmp.Compare(rates.of(b.l), rates.of(a.l)) })
	for _, st := range f.strands[min(max(f.wantLanes, 1), len(f.strands)):] {
		if rates.of(st.l) < moveShare*rates.fastest() {
			st.l.retire()
		}
	}
}

// sights are what tuners and movers look at, by direction.
func (f *Flow) sights(now time.Time) [2]sight {
	least := len(f.s.link.usable()) // one on each path
	return [2]sight{
		directionUp:   {now, least, f.readyStrands(), f.acknowledgedEach, f.lanesFull(), f.s.rtt(), f.s.delays.standing, f.hushNow, f.s.delays.drained},
		directionDown: {now, least, f.readyStrands(), f.receivedEach, f.farLacksRoom(now), f.s.rtt(), f.s.delays.standing, nil, nil},
	}
}

// pauseLanes has a direction use the main lane alone that needs no other, or whose lanes are
// verified.
func (f *Flow) pauseLanes(now time.Time, least int) {
	if len(f.strands) < 2 {
		f.auto.alone = 0
		return
	}
	alone := func(direction int) bool {
		t := &f.auto.tuners[direction]
		return max(t.want(), least) < 2 || t.paused()
	}
	f.pauseHere(alone(directionUp), now)
	f.pauseThere(alone(directionDown))
}

// pauseHere has what is sent from here use the main lane alone for a moment, or not any more.
func (f *Flow) pauseHere(alone bool, now time.Time) {
	switch {
	case alone:
		if f.auto == nil {
			f.auto = &auto{}
		}
		f.auto.alone = stampOf(now)
	case f.auto != nil && f.auto.alone != 0:
		f.auto.alone = 0
		f.feed()
	}
}

// pauseThere asks the far relay to do the same.
func (f *Flow) pauseThere(alone bool) {
	m := wire.Message{Type: wire.MessageLimited, Flow: f.id}
	if alone {
		m.Flags = wire.FlagAlone
	}
	f.s.offer(m)
}

// tries reports whether the number of lanes is being tried or verified: what they carry
// meanwhile says nothing of them.
func (f *Flow) tries() bool {
	return f.auto != nil && slices.ContainsFunc(f.auto.tuners[:], func(t tuner) bool { return t.trying > 0 })
}

// pauses reports whether the flow's further lanes pause.
func (f *Flow) pauses() bool { return f.auto != nil && f.auto.alone.isFresh(time.Now()) }

// isFresh reports whether a word of the other relay still counts.
func (s stamp) isFresh(now time.Time) bool { return !s.IsZero() && s.until(now) < limitedFor }

// acknowledgedEach is what the other end has got of each lane.
func (f *Flow) acknowledgedEach() []laneBytes {
	return f.carried(func(i *tcpinfo.Info) uint64 { return i.BytesAcked })
}

// receivedEach is what has come on each lane.
func (f *Flow) receivedEach() []laneBytes {
	return f.carried(func(i *tcpinfo.Info) uint64 { return i.BytesReceived })
}

func (f *Flow) carried(of func(*tcpinfo.Info) uint64) (each []laneBytes) {
	for _, st := range f.strands {
		if !st.ready {
			continue
		}
		kernelSays(st.l.bulk, func(i *tcpinfo.Info) bool {
			each = append(each, laneBytes{st.l, of(i)})
			return true
		})
	}
	return each
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

// tries reports whether a flow tries another number of lanes.
func (l *Link) tries(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trial != nil && now.Sub(l.trialAt) < time.Second
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
func (f *Flow) lanesFull() bool { return f.lanesBusy() && !f.lane.tuned.since(f.lane.bulk) }

// lanesBusy reports that the flow has bytes to send and that its lanes have no room for them.
func (f *Flow) lanesBusy() bool {
	if f.lane == nil || !f.sf.Out.Pending() && !(f.leg.readable && f.sf.Hungry()) {
		return false
	}
	pauses := f.pauses()
	for i, st := range f.strands {
		if st.ready && !f.hasEnough(st) && !(i > 0 && pauses) {
			return false
		}
	}
	return true
}

// hasEnough reports that a lane has no room, or with the whole window as much as it can send.
func (f *Flow) hasEnough(st *strand) bool {
	return st.busy || f.sf.Out.Starved() && st.pace().queued > 0
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
