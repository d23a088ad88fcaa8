package stream

// Cause is why a flow is cut: a code that both ends know, and a text.
type Cause struct {
	Code byte
	Text string
}

// Flow is one end of a flow: what its own socket sends and what it gets.
type Flow struct {
	Out Sender
	In  Receiver

	cutBy    *Cause // nil: it is not cut
	acked    uint64 // sent in an ACK
	byPeer   bool   // the other end found the cause
	dead     bool   // this end's socket takes part no more
	peerDead bool   // the other end sent RESET, or knows the flow no more
	resetDue bool   // a RESET has to be sent
	ackDue   bool
	hurry    bool // the ACK must not wait

	noResume bool // see NoResume
	ackFirst bool // the first bytes of a lane are to be acknowledged
}

// New makes a flow that keeps at most limit bytes in memory of the budget.
func New(budget Budget, limit int) *Flow {
	f := &Flow{}
	f.Init(&budget, limit)
	return f
}

// Init makes a zero flow one that keeps at most limit bytes in memory of the budget. All flows point to the
// same one, which takes half of an interface's memory in each.
func (f *Flow) Init(budget *Budget, limit int) {
	f.Out.store.from = budget
	f.Out.SetLimit(limit, endless, 1)
}

// Early returns memory for up to n bytes that come before their turn; Spilled follows. It
// returns nil if no memory is left, or, with skip set, if the bytes are here already.
func (f *Flow) Early(offset uint64, n int) (e *Early, skip bool, err error) {
	r := &f.In
	if r.sawEnd && offset+uint64(n) > r.endAt {
		return nil, false, ErrDamaged
	}
	if b, _ := r.early.at(offset); len(b) >= n {
		return nil, true, nil
	}
	return r.early.take(f.Out.store.budget(), offset, n), false, nil
}

// Spilled counts n bytes that were read to the memory of Early.
func (f *Flow) Spilled(e *Early, n int) {
	e.c.n += n
	f.In.noteHeld(n)
	e.c.leave(f.Out.store.budget())
	f.In.early.trim(f.Out.store.budget(), f.In.pos)
}

// Turn returns bytes that came before their turn, which is now; Turned follows.
func (f *Flow) Turn() (b []byte, e *Early) {
	b, c := f.In.early.at(f.In.pos)
	if c == nil {
		return nil, nil
	}
	if b, _ = f.In.Data(f.In.pos, b); len(b) == 0 {
		return nil, nil
	}
	c.users++
	return b, &Early{c}
}

// Turned ends the use of the bytes of Turn, of which Wrote has counted what is written.
func (f *Flow) Turned(e *Early) {
	e.c.leave(f.Out.store.budget())
	f.In.early.trim(f.Out.store.budget(), f.In.pos)
}

// Finish frees what is left when the flow is over.
func (f *Flow) Finish() {
	f.Out.drop()
	f.Out.Trim()
	f.In.early.drop(f.Out.store.budget())
}

// NoResume makes a flow, before anything else happens to it, one that does not survive
// its lane. Each end acknowledges the first bytes that a lane brings, which proves
// the lane, and after that nothing but the end. It keeps what it has sent until then
// only, and makes no checksums.
func (f *Flow) NoResume() { f.noResume, f.Out.noResume, f.In.noSum = true, true, true }

// Seal makes a flow, of which nothing went out, one whose lanes anybody may read and change. Its
// ends come and go beside the lanes (TakeEnd), and positions on lanes acknowledge nothing.
func (f *Flow) Seal(on bool) {
	f.Out.sealed, f.In.sealed = on, on
	f.Out.endDue = on && f.Out.ended
}

// Attach gives the flow a lane; received is the other end's position on it.
func (f *Flow) Attach(received uint64) error {
	f.ackFirst = f.noResume
	if f.noResume && f.In.sealed && f.In.pos > 0 { // the position that goes on the lane frees nothing
		f.ackDue, f.hurry = true, true
	}
	return f.Out.attach(received)
}

// Detach takes the lane away.
func (f *Flow) Detach() { f.Out.detach() }

// Wrote counts bytes that are in this end's socket.
func (f *Flow) Wrote(b []byte) {
	f.In.Wrote(b)
	f.In.early.trim(f.Out.store.budget(), f.In.pos)
	f.delivered()
}

// Passed is Wrote for n bytes that nobody looked at.
func (f *Flow) Passed(n int) {
	f.In.pos += uint64(n)
	f.delivered()
}

func (f *Flow) delivered() {
	f.ackDue = f.ackDue || f.ackFirst || !f.noResume
	f.hurry = f.hurry || f.ackFirst
	f.ackFirst = false
}

// EndPassed reports that this end's socket was shut down.
func (f *Flow) EndPassed() {
	f.In.ended = true
	f.ackDue, f.hurry = true, true
}

// LocalReset takes a failure of this end's socket. What it sent before is still
// delivered, its end included.
func (f *Flow) LocalReset(c Cause) { f.die(c, false) }

// Abort cuts the flow at both ends without delivering anything more.
func (f *Flow) Abort(c Cause) {
	f.Out.drop()
	f.die(c, false)
	f.resetDue = f.resetDue || !f.peerDead // a RESET that promised bytes is void
}

func (f *Flow) die(c Cause, byPeer bool) {
	if f.dead {
		return
	}
	f.dead, f.In.dead, f.resetDue = true, true, true
	f.In.early.drop(f.Out.store.budget())
	f.blame(c, byPeer)
}

// Ack takes the other end's acknowledgement.
func (f *Flow) Ack(received uint64, end bool) error { return f.Out.ack(received, end) }

// Arrived takes the other end's position, as a lane has brought it.
func (f *Flow) Arrived(received uint64) error { return f.Out.arrived(received) }

// PeerReset takes the other end's RESET. Its socket is dead: nothing needs to be sent
// any more, but for the answer once this end's socket is reset.
func (f *Flow) PeerReset(length uint64, end bool, c Cause) {
	f.peerDead = true
	f.Out.drop()
	f.In.reset(length, end)
	f.blame(c, true)
}

// blame notes the first cause.
func (f *Flow) blame(c Cause, byPeer bool) {
	if f.cutBy != nil {
		return
	}
	if f.byPeer = byPeer; c != (Cause{}) {
		f.cutBy = &c
	}
}

func (f *Flow) cause() Cause {
	if f.cutBy == nil {
		return Cause{}
	}
	return *f.cutBy
}

// PeerGone takes the news that the other end does not know the flow. Only one that
// had passed on everything, or was told of a reset, forgets a flow cleanly.
func (f *Flow) PeerGone(c Cause) {
	if f.Out.ended && f.In.ended {
		f.Out.endAcked = true
	}
	f.peerDead = true
	if !f.Clean() {
		f.Out.drop()
		f.die(c, true)
	}
	f.resetDue = false
}

// Clean reports that both directions have ended and both ends know.
func (f *Flow) Clean() bool { return f.Out.endAcked && f.In.ended }

// Dead reports that this end's socket is to be reset, or was.
func (f *Flow) Dead() bool { return f.dead }

// ResetLocal reports whether this end's socket has to be reset now because of what
// came from the other end. Reset then is its state.
func (f *Flow) ResetLocal() bool {
	if f.dead || f.Clean() || !f.In.due() {
		return false
	}
	f.die(f.cause(), f.byPeer)
	return true
}

// Over reports that this end has nothing more to do for the flow: it ended cleanly, or
// both sockets are dead and both ends know.
func (f *Flow) Over() bool { return f.Clean() || f.dead && f.peerDead && !f.resetDue }

// Cutting reports that the other end has sent a RESET and what comes before it is not
// delivered yet.
func (f *Flow) Cutting() bool { return f.In.cut && !f.dead && !f.In.due() }

// CutNow delivers the other end's RESET although bytes before it are missing.
func (f *Flow) CutNow() {
	if f.In.cut {
		f.die(f.cause(), f.byPeer)
	}
}

// Cause is why the flow is cut, and whether the other end found it; zero: it is not.
func (f *Flow) Cause() (c Cause, byPeer bool) { return f.cause(), f.byPeer }

// Hungry reports whether bytes of this end's socket are to be read.
func (f *Flow) Hungry() bool { return !f.dead && !f.peerDead && !f.Out.ended }

// NeedsLane reports whether something must go over a lane, either way, as far as this
// end knows.
func (f *Flow) NeedsLane() bool {
	if f.Over() {
		return false
	}
	if !f.In.dead && f.In.lacksTold() {
		return true
	}
	return f.Out.needsLane() || f.In.cut && !f.In.dead && !f.In.due()
}

// Told takes the news that the other end has sent everything before an offset, and perhaps its end. It
// gets an acknowledgement of what is here, which a flow without resumption gives otherwise only at first.
func (f *Flow) Told(offset uint64, end bool) {
	f.In.told(offset, end)
	f.ackDue, f.hurry = true, true
}

// Quiet reports that both ends have all bytes and nobody waits for anything.
func (f *Flow) Quiet() bool {
	return !f.dead && !f.peerDead && !f.Out.Unacknowledged() && !f.ackDue
}

// Ack is an acknowledgement to send.
type Ack struct {
	Received uint64
	End      bool
}

// Reset is a RESET to send.
type Reset struct {
	Length uint64
	End    bool // an end comes before it
	Cause  Cause
}

// AckWaiting is the number of bytes that an ACK would acknowledge; urgent: it must go
// out at once.
func (f *Flow) AckWaiting() (n uint64, urgent bool) {
	if !f.ackDue {
		return 0, false
	}
	return f.In.pos - f.acked, f.hurry
}

// ResetWaiting reports whether a RESET is due.
func (f *Flow) ResetWaiting() bool { return f.resetDue }

// TakeAck returns the ACK that is due, once.
func (f *Flow) TakeAck() (Ack, bool) {
	if !f.ackDue {
		return Ack{}, false
	}
	f.ackDue, f.hurry, f.acked = false, false, f.In.pos
	return Ack{Received: f.In.pos, End: f.In.ended}, true
}

// End is the end of a stream.
type End struct {
	Length uint64
	CRC    uint32
}

// EndWaiting reports whether an end is due that no lane carries.
func (f *Flow) EndWaiting() bool { return f.Out.endDue && !f.Out.dropped }

// TakeEnd returns the end that is due, once. It goes before a RESET.
func (f *Flow) TakeEnd() (End, bool) {
	if !f.EndWaiting() {
		return End{}, false
	}
	f.Out.endDue = false
	return End{f.Out.length, f.Out.crc}, true
}

// TakeReset returns the RESET that is due, once.
func (f *Flow) TakeReset() (Reset, bool) {
	if !f.resetDue {
		return Reset{}, false
	}
	f.resetDue = false
	if f.Out.dropped {
		return Reset{Cause: f.cause()}, true
	}
	return Reset{Length: f.Out.length, End: f.Out.ended, Cause: f.cause()}, true
}

// Resync makes everything due again that a lost control connection may have lost.
func (f *Flow) Resync() {
	f.ackDue, f.hurry = true, true
	f.resetDue = f.dead
	f.Out.endDue = f.Out.sealed && f.Out.ended && !f.Out.endAcked
	f.In.noteHeld(f.In.Spilled())
}
