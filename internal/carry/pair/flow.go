package pair

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

// Flow is one flow of a pair, at either end. While it has a lane or something to do, a
// goroutine reads its own socket and sends; the lane's goroutine writes to the socket.
// A parked flow has none.
type Flow struct {
	s  *session
	id uint64

	mu   sync.Mutex
	cond cond        // of mu: anything changed
	sf   stream.Flow // what is sent and received, and the ends

	leg    leg        // its own socket
	lanes  laneSet    // those that it has
	spread laneSpread // how many it is to have, and which
	need   laneNeed   // of a lane
	watch  flowWatch  // what is looked at each tick
	near   nearPart   // what only a near flow has
	far    farPart    // what only a far flow has

	phase   phase
	running bool        // the goroutine exists
	dirty   bool        // an ACK or RESET waits for the control connection
	told    bool        // the other end has said why the flow is cut
	over    atomic.Bool // of phase, for those who cannot take mu
	target  string
	start   stamp
	moved   stamp // the latest byte
	done    func(flow.End)
}

const ackEvery = 256 << 10

func newFlow(s *session, id uint64, legs flow.LegOptions) *Flow {
	now := stampNow()
	f := &Flow{s: s, id: id, start: now, moved: now}
	f.leg = leg{f: f, fd: -1, options: withDefaults(legs)}
	f.lanes.f, f.spread.f, f.need.f, f.near.f, f.far.f = f, f, f, f, f
	f.watch = flowWatch{f: f, ackedAt: now}
	f.sf.Init(&s.node.budget, limitStart)
	return f
}

// wake makes the flow's goroutine look again. The caller holds f.mu.
func (f *Flow) wake() {
	f.cond.broadcast()
	f.watch.setResting(false)
	if !f.running && f.phase != phaseOver {
		f.running = true
		f.s.node.tasks.Go(f.run)
	}
}

// postDue tells the session that the control connection has something to carry.
func (f *Flow) postDue() {
	n, urgent := f.sf.AckWaiting()
	if f.s.knows(wire.FeatureHeld) {
		n += uint64(f.sf.HeldWaiting())
	}
	now := urgent || f.sf.ResetWaiting() || f.sf.EndWaiting()
	if now || n > 0 {
		f.s.post(f, now || n >= ackEvery)
	}
}

// abort resets both peers at once. The caller holds f.mu.
func (f *Flow) abort(c stream.Cause) {
	f.sf.Abort(c)
	for _, l := range f.lanes.blockedLanes() {
		l.close() // nobody is to wait for its room
	}
	f.wake()
}

// takeEnd returns the report of the end, once.
func (f *Flow) takeEnd() func() {
	if f.phase != phaseOver {
		return nil
	}
	s, e, done := f.s, f.end(), f.done
	f.done = nil
	return func() {
		s.forget(f)
		if done != nil {
			done(e)
		}
	}
}

// Reset implements flow.Carried.
func (f *Flow) Reset(reason flow.EndReason, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.phase != phaseOver && !f.sf.Clean() {
		f.abort(cause(reason, err))
	}
}

// targetAddress is that of the target; zero: none was dialed. The other relay gives it as text.
func (f *Flow) targetAddress() netip.AddrPort {
	a, _ := netip.ParseAddrPort(f.target)
	return a
}
