package pair

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"unique"
	"unsafe"

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

	mu   sync.Mutex
	cond cond        // of mu: anything changed
	sf   stream.Flow // what is sent and received, and the ends

	leg     leg        // its own socket
	lanes   laneSet    // those that it has
	spread  laneSpread // how many it is to have, and which
	need    laneNeed   // of a lane
	watch   flowWatch  // what is looked at each tick
	opening *opening   // nil: it has a target, or has ended without one
	near    nearPart   // what only a near flow has

	phase   phase
	running bool                          // the goroutine exists
	dirty   bool                          // an ACK or RESET waits for the control connection
	told    bool                          // the other end has said why the flow is cut
	over    atomic.Bool                   // of phase, for those who cannot take mu
	target  unique.Handle[netip.AddrPort] // zero: none is known
	moved   stamp                         // the latest byte
	owner   flow.Owner                    // nil: nobody
}

const ackEvery = 256 << 10

func newFlow(s *session, id uint64, legs *flow.LegOptions) *Flow {
	now := stampNow()
	f := &Flow{s: s, id: id, moved: now, leg: leg{num: -1, options: withDefaults(legs)}, watch: flowWatch{ackedAt: now}}
	f.sf.Init(&s.node.stores, limitStart)
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

// Reset implements flow.Carried.
func (f *Flow) Reset(reason flow.EndReason, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.phase == phaseOver:
	case !f.sf.Clean():
		f.abort(cause(reason, err))
	case reason != flow.EndDrain:
		f.leg.broken = true
		f.wake()
	}
}

// takeOwner returns the owner, who gets the flow's end now and nothing more of it.
func takeOwner(f *Flow) flow.Owner {
	owner := f.owner
	f.owner = nil
	return owner
}

// targetOf is the address of a flow's target; zero: none was dialed.
func targetOf(f *Flow) (a netip.AddrPort) {
	if f.target != (unique.Handle[netip.AddrPort]{}) {
		a = f.target.Value()
	}
	return a
}

// leg is a flow's own socket, the client's or the target's.
type leg struct {
	num  int32 // the descriptor; -1: none
	busy int16 // calls that use the descriptor without the flow's lock
	// What the poller saw since the last attempt.
	readable, writable, failed bool
	muted                      bool // the poller reports no bytes that arrive
	broken                     bool // it has failed, or there will be none
	busyOut                    bool // one of the calls writes
	copyNext                   bool // the next bytes are too few to pass unseen, or none
	openedDue                  bool // far: OPENED is to be sent for it
	awaited                    bool // somebody waits for the end of such a call
	options                    *flow.LegOptions
	cut                        *cut // nil: no reset was met
}

// cut is what a leg has once the flow is cut.
type cut struct {
	since stamp // a reset waits for bytes before it; zero: none
	reset error // that the socket does not show any more: what looks like an end is this; nil: it shows all
}

// cutSince is since when a reset waits for bytes before it; zero: none does.
func (lg *leg) cutSince() stamp {
	if lg.cut == nil {
		return 0
	}
	return lg.cut.since
}

// noteCut notes that a reset waits for bytes before it.
func (lg *leg) noteCut(now stamp) {
	if lg.cut == nil {
		lg.cut = new(cut)
	}
	if lg.cut.since.IsZero() {
		lg.cut.since = now
	}
}

func (lg *leg) fd() int { return int(lg.num) }

func (lg *leg) open() bool { return lg.num >= 0 }

// laneSet are the lanes of a flow.
type laneSet struct {
	all     []*subflow                      // the main one first
	counted sentOver                        // of lanes that it has left
	policy  atomic.Pointer[compress.Policy] // of what it sends; nil: it has sent nothing that may be compressed
}

// laneSpread is what decides how many lanes a flow is to have, and which.
type laneSpread struct {
	want      int32  // near: so many lanes are to carry the flow
	joining   int32  // near: lanes that are on their way to it
	burstFrom uint64 // what had been moved, both ways, when it last began to move
	mix       *mix   // what is known of several lanes; nil: nothing
}

// mix is what a flow that moves knows of its lanes together. A parked flow has none.
type mix struct {
	quickest   *subflow // of lanes that differ much in delay: it gets what is little; nil: they do not
	window     window
	farLimited stamp // near: the far relay's latest word that it lacks room on the lanes
	shortAt    stamp // the latest look that found too little memory for the flow; zero: none did
	movers     [2]mover
	moving     moving
}

// laneNeed is a flow's time without a lane that it needs.
type laneNeed struct {
	since   stamp  // zero: it has one, or needs none
	wokeAt  stamp  // of the latest WAKE; zero: none is waiting for its lane
	outage  uint32 // milliseconds together, before since
	resumes uint16 // no more are counted than it has room for
	lost    bool   // a lane, and none has come in its place
}

// flowWatch is what the watcher remembers of a flow between two looks.
type flowWatch struct {
	gap      *gap  // nil: no bytes are missing
	ackedAt  stamp // of the latest progress of what is unacknowledged
	place    int32 // in registry.watched, from 1 on, under its lock; 0: it is not there
	lates    uint8 // how often the other end has said that bytes lack, since it last acknowledged some; 255: more often
	toldSent bool  // the other end was told how much has gone out
	resting  bool  // parked: it is looked at only now and then
}

// gap is what a flow lacks as a receiver, though bytes beyond it are here or have been sent.
type gap struct {
	at    uint64 // its position
	since stamp  // since when it stands there
}

// nearPart is what only a near flow has: its OPEN, and what it wants of its link.
type nearPart struct {
	openDue    bool // OPEN is to be sent on the control connection
	releasing  bool // RELEASE is offered, and unanswered
	releaseDue bool
	queued     bool // it waits for a lane
	needsOpen  bool // under the link's lock: the lane that it waits for is to bring its OPEN
	wanted     bool // the far relay wants a lane for it
	gaveBack   bool // its latest lane, to a crowd, and has the first one when it needs one again
	given      bool // the client was given back
}

// held reports that the flow's client may go to another hop, since the far relay has no target for it,
// as far as this end knows.
func (nr *nearPart) held() bool {
	return nr.flow().opening != nil && nr.flow().opening.client != nil && !nr.given
}

var errOnePort = errors.New(flow.OnePortWarning)

// misled reports that the far relay would lead the flow to another port than its client has dialed, as far
// as the session knows it: nothing of the flow may go out. The caller holds f.mu.
func (nr *nearPart) misled() bool {
	f, s := nr.flow(), nr.flow().s
	if f.opening == nil || f.opening.Offset == 0 || f.phase.known() {
		return false
	}
	s.mu.Lock() // what stand changes belongs together
	defer s.mu.Unlock()
	return !s.knows(wire.FeatureOffset)
}

// client is the client that was given back; nil: the flow has kept it.
func (nr *nearPart) client() *flow.Client {
	if !nr.given {
		return nil
	}
	return nr.flow().opening.client
}

// opening is what a flow has until it has a target.
type opening struct {
	wire.Open                    // near
	client    *flow.Client       // near: of a held flow, see hold; else nil
	began     stamp              // near
	opened    func()             // near: of the client
	cancel    context.CancelFunc // far: of the dial; nil: it has not begun
	gone      bool               // far: the near relay does not know the flow
}

// The parts of a flow find it by their place in it: with a pointer in each, a parked flow would take 48 bytes more.

func (lg *leg) flow() *Flow        { return flowOf(unsafe.Pointer(lg), unsafe.Offsetof(Flow{}.leg)) }
func (ls *laneSet) flow() *Flow    { return flowOf(unsafe.Pointer(ls), unsafe.Offsetof(Flow{}.lanes)) }
func (sp *laneSpread) flow() *Flow { return flowOf(unsafe.Pointer(sp), unsafe.Offsetof(Flow{}.spread)) }
func (nd *laneNeed) flow() *Flow   { return flowOf(unsafe.Pointer(nd), unsafe.Offsetof(Flow{}.need)) }
func (fw *flowWatch) flow() *Flow  { return flowOf(unsafe.Pointer(fw), unsafe.Offsetof(Flow{}.watch)) }
func (nr *nearPart) flow() *Flow   { return flowOf(unsafe.Pointer(nr), unsafe.Offsetof(Flow{}.near)) }

// flowOf returns the flow that has a part at an offset.
func flowOf(part unsafe.Pointer, offset uintptr) *Flow {
	return (*Flow)(unsafe.Add(part, -int(offset)))
}

// farPart is what only a far flow does.
type farPart struct{ f *Flow }

func (f *Flow) far() farPart { return farPart{f} }

// of finds a lane among the flow's.
func (ls *laneSet) of(l *lane) *subflow {
	for _, st := range ls.all {
		if st.l == l {
			return st
		}
	}
	return nil
}

// has reports whether the flow has a lane. The caller holds f.mu.
func (ls *laneSet) has(l *lane) bool { return ls.of(l) != nil }

// main is the main lane; nil: the flow has no lane.
func (ls *laneSet) main() *lane {
	if len(ls.all) == 0 {
		return nil
	}
	return ls.all[0].l
}

// attaching reports whether the main lane's ATTACH has no answer yet.
func (ls *laneSet) attaching() bool { return len(ls.all) > 0 && ls.all[0].attaching }

// blocked reports whether somebody writes to the main lane or waits for its room.
func (ls *laneSet) blocked() bool { return len(ls.all) > 0 && ls.all[0].busy }

// blockedLanes are those on which somebody waits for room.
func (ls *laneSet) blockedLanes() (all []*lane) {
	for _, st := range ls.all {
		if st.busy {
			all = append(all, st.l)
		}
	}
	return all
}

// greeting reports whether the main lane's first frame has not gone out yet.
func (ls *laneSet) greeting() bool { return ls.main() != nil && ls.all[0].greet != nil }

func (fw *flowWatch) setResting(on bool) {
	f := fw.flow()
	if fw.resting == on {
		return
	}
	if fw.resting = on; on {
		f.cond = cond{} // who waited was woken when the flow lost its lane
	}
	f.s.setResting(f, on)
}

const (
	// maxLanes bounds the lanes of one flow.
	maxLanes = 16
	// spread is the number of bytes from which on a flow's further lanes take some while
	// its main lane has nothing to do.
	spread = 64 << 10
)

// crowdedOut reports that the flow's client waits with what it sends: a crowd waits for lanes, and the
// flow has its first bytes here. The kernel keeps the others, and no goroutine.
func (nd *laneNeed) crowdedOut() bool {
	f := nd.flow()
	return f.lanes.main() == nil && f.sf.Out.Kept() > 0 && !f.leg.failed && f.s.isCrowd()
}

// begin marks the flow as one of which the far relay hears from now on. The caller holds f.mu.
func (nr *nearPart) begin() {
	f := nr.flow()
	if f.phase == phaseFresh {
		f.phase.take(eventAsk)
		f.sf.Seal(f.s.sealed())
	}
}

// subflow is a lane while a flow has it.
type subflow struct {
	l         *lane
	sent      stream.Lane
	greet     []byte // OPEN or ATTACH that goes first
	attaching bool   // near: its ATTACH has no answer yet
	ready     bool   // bytes may follow: the other end knows that the flow has the lane
	gone      bool   // the flow has it no more
	leaving   bool   // another lane has taken its place: nothing more is to be sent on it
	pumped    bool   // a goroutine sends on it
	idle      bool   // that goroutine waits for data
	busy      bool   // a write is in progress, or waits for room
	further   bool   // its memory counts
	cond      cond   // of the flow's mu, for that goroutine
	since     stamp  // of its first frame, or of the answer
	paced     pace   // at the latest look
	unsent    int    // what the kernel takes beyond what it can send; 0: not bounded yet
	sentAt    stamp  // of the latest item that went out
	roomAt    stamp  // since when somebody writes on it or waits for its room; zero: nobody does
	// stuckAt is since when its reader has bytes that come before their turn, and no
	// memory for them, while the flow's position is stuckPos.
	stuckAt  stamp
	stuckPos uint64
	// delivered is what the other end's kernel had got at the last look of the window.
	delivered struct{ packets, mss uint32 }
}
