package pair

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/compress"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

// Flow is one flow of a pair, at either end. While it has a lane or something to do, a
// goroutine reads its own socket and sends; the lane's goroutine writes to the socket.
// A parked flow has none.
type Flow struct {
	s  *session
	id uint64

	mu    sync.Mutex
	phase phase
	cond  cond // of mu: anything changed
	sf    stream.Flow
	leg   leg

	strands   []*strand // the lanes, the main one first
	wantLanes int       // near: so many lanes are to carry the flow
	burstFrom uint64    // what had been moved, both ways, when it last began to move
	mix       *mix      // what is known of several lanes; nil: nothing
	gapAt     uint64    // the position as a receiver
	gapSince  stamp     // since when it stands there, though bytes beyond it are here

	openedDue  bool  // far: OPENED is to be sent
	openDue    bool  // near: OPEN is to be sent on the control connection
	toldSent   bool  // the other end was told how much has gone out
	lates      uint8 // how often the other end has said that bytes lack, since it last acknowledged some; 255: more often
	running    bool  // the goroutine exists
	told       bool  // the other end has said why the flow is cut
	releasing  bool  // near: RELEASE is offered, and unanswered
	releaseDue bool
	queued     bool        // waits for a lane (near)
	needsOpen  bool        // near, under the link's lock: the lane that it waits for is to bring its OPEN
	wanted     bool        // near: the far relay wants a lane for it
	gaveBack   bool        // near: its latest lane, to a crowd, and has the first one when it needs one again
	lost       bool        // a lane, and none has come in its place
	copyNext   bool        // the next bytes of the flow's own socket are too few to pass unseen, or none
	dirty      bool        // an ACK or RESET waits for the control connection
	resting    bool        // parked: watch looks at it only now and then
	over       atomic.Bool // of phase, for those who cannot take mu
	resumes    int32
	joining    int32 // near: lanes that are on their way to it

	opening *wire.Open // near: the OPEN; nil once OPENED has come
	target  string
	legs    *flow.LegOptions
	done    func(flow.End)

	start     stamp
	moved     stamp // the latest byte
	ackedAt   stamp // of the latest progress of what is unacknowledged
	ackedBase uint64
	needSince stamp // without a lane that it needs; zero: not so
	wokeAt    stamp // of the latest WAKE; zero: none is waiting for its lane
	cutSince  stamp // a reset waits for bytes before it
	outage    time.Duration
	lanes     sentOver
	policy    atomic.Pointer[compress.Policy] // of what it sends; nil: it has sent nothing that may be compressed
}

const ackEvery = 256 << 10

func newFlow(s *session, id uint64, legs flow.LegOptions) *Flow {
	now := stampNow()
	f := &Flow{s: s, id: id, start: now, moved: now, ackedAt: now, leg: leg{fd: -1}}
	f.legs = withDefaults(legs)
	f.sf.Init(&s.node.budget, limitStart)
	return f
}

// wake makes the flow's goroutine look again. The caller holds f.mu.
func (f *Flow) wake() {
	f.cond.broadcast()
	f.setResting(false)
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
	for _, l := range f.blockedLanes() {
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
