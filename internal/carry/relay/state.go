package relay

// side is a leg of a flow. A direction is named by the leg that its bytes come
// from: up carries the client's bytes, down the target's.
type side uint8

const (
	client side = 0
	target side = 1

	up   = client
	down = target
)

func (s side) other() side { return s ^ 1 }

// input is the state of the stream that a leg's peer sends, as far as the relay
// has read it.
type input uint8

const (
	inputOpen  input = iota // more bytes may come
	inputEnded              // the end was read: all bytes are known
	inputReset              // the stream was cut: bytes may be missing
)

// event is an observation of an event loop about a leg.
type event uint8

const (
	eventEnd     event = iota // the leg's end of stream was read
	eventReset                // reading the leg failed: nothing more can be read
	eventBroken               // the leg is no longer writable; bytes it sent may still be readable
	eventDrained              // all bytes read from the leg were written to the other leg's socket
	eventAcked                // the leg's peer has acknowledged everything written to it
	eventAbort                // the flow must stop now; the leg does not matter
	eventLeave                // the same, but the kernel delivers complete streams
)

// action is a set of things for an event loop to do.
type action uint16

// The actions on the client leg; those on the target leg are one bit higher.
const (
	actionShutdown   action = 1 << (2 * iota) // send the end of stream to this leg
	actionDiscard                             // stop reading this leg and drop the bytes read from it
	actionAwaitAck                            // watch until the leg's peer has acknowledged everything
	actionCloseClean                          // close the leg; the kernel delivers the rest and the end
	actionCloseReset                          // close the leg with a reset

	actionDeadline action = 1 << 15 // start the deadline for delivering the bytes before a reset
)

func (a action) on(s side) action            { return a << s }
func (a action) has(b action) bool           { return a&b != 0 }
func (a action) hasOn(b action, s side) bool { return a&b.on(s) != 0 }

// ending decides how a flow ends. It does no I/O: events go in, actions come
// out. Its invariant: a peer sees a clean end only if the other peer ended its
// stream cleanly and every earlier byte has been handed over.
// docs/design/endings.md draws it.
//
// The zero value is an established flow.
type ending struct {
	in        [2]input
	broken    [2]bool // the leg cannot be written
	drained   [2]bool // all bytes read from the leg are handed over, and its input is not open
	shut      [2]bool // the end was sent to this leg
	discarded [2]bool // the leg's bytes are no longer wanted
	awaiting  [2]bool // waiting for its peer's acknowledgement
	acked     [2]bool // its peer has acknowledged everything
	deadline  bool    // the deadline is running
	aborted   bool
	left      bool // by eventLeave
	closed    bool
}

// step handles an event of a leg and returns the actions to take.
func (e *ending) step(ev event, s side) action {
	if e.closed {
		return 0
	}
	switch ev {
	case eventEnd:
		if e.in[s] == inputOpen {
			e.in[s] = inputEnded
		}
	case eventReset:
		if e.in[s] == inputOpen {
			e.in[s] = inputReset
		}
		e.broken[s] = true
	case eventBroken:
		e.broken[s] = true
	case eventDrained:
		if e.in[s] != inputOpen {
			e.drained[s] = true
		}
	case eventAcked:
		if e.awaiting[s] {
			e.acked[s] = true
		}
	case eventAbort:
		e.aborted = true
	case eventLeave:
		e.aborted, e.left = true, true
	}
	return e.settle()
}

func (e *ending) settle() action {
	if e.aborted {
		return e.close()
	}
	var a action
	for s := client; s <= target; s++ {
		o := s.other()
		if e.in[s] == inputEnded && e.drained[s] && !e.shut[o] && !e.broken[o] {
			e.shut[o] = true
			a |= actionShutdown.on(o)
		}
	}
	for s := client; s <= target; s++ {
		o := s.other()
		if !e.broken[s] || e.broken[o] {
			continue
		}
		if !e.discarded[o] {
			// Nothing more reaches the broken leg.
			e.discarded[o] = true
			a |= actionDiscard.on(o)
		}
		// A peer that has the whole stream and its end takes the time it needs.
		if was := e.deadline; e.finished(o) {
			e.deadline = false
		} else if !was {
			e.deadline = true
			a |= actionDeadline
		}
	}
	for s := client; s <= target; s++ {
		// Once its peer is to get nothing more, a leg stays until everything is
		// acknowledged. A reset would overtake the queued bytes, and the flow
		// is not over before its last byte has arrived.
		o := s.other()
		if !e.broken[s] && !e.awaiting[s] && (e.delivering() || e.broken[o] && e.drained[o]) {
			e.awaiting[s] = true
			a |= actionAwaitAck.on(s)
		}
	}
	if e.over(client) && e.over(target) {
		return a | e.close()
	}
	return a
}

// delivering reports whether both ends were sent, so that only their
// acknowledgement is missing.
func (e *ending) delivering() bool { return e.shut[client] && e.shut[target] }

// over reports whether nothing more can come from a leg.
func (e *ending) over(s side) bool { return e.broken[s] || e.acked[s] }

// finished reports whether a leg's peer has ended its stream and received the
// other's end: later events do not concern it.
func (e *ending) finished(s side) bool {
	return e.in[s] == inputEnded && e.shut[s]
}

func (e *ending) close() action {
	e.closed = true
	var a action
	for s := client; s <= target; s++ {
		if e.finished(s) && (e.over(s) || e.left) {
			a |= actionCloseClean.on(s)
		} else {
			a |= actionCloseReset.on(s)
		}
	}
	return a
}

// awaits reports whether the acknowledgement of a leg's peer is missing.
func (e *ending) awaits(s side) bool { return e.awaiting[s] && !e.over(s) }

func (e *ending) waits() bool { return e.awaits(client) || e.awaits(target) }

// halfDone reports whether the flow waits for one side only. Either one
// direction has ended and the other has not, or only acknowledgements are
// missing.
func (e *ending) halfDone() bool {
	return (e.in[client] == inputEnded) != (e.in[target] == inputEnded) || e.waits()
}
