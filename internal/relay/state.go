package relay

// side is a leg of a flow. A direction is named by the leg its bytes come
// from: up is what the client sends, down what the target sends.
type side uint8

const (
	client side = 0
	target side = 1

	up   = client
	down = target
)

func (s side) other() side { return s ^ 1 }

// input is what the peer of a leg has done to the stream it sends, as far as
// that stream has been read.
type input uint8

const (
	inputOpen  input = iota // more may come
	inputEnded              // its end was read: these were all its bytes
	inputReset              // it was cut: bytes may be missing
)

// event is what an event loop found out about a leg.
type event uint8

const (
	eventEnd     event = iota // the leg's end of stream was read
	eventReset                // reading the leg failed: nothing more can be read
	eventBroken               // the leg cannot be written any more; bytes it sent may still be readable
	eventDrained              // all bytes read from the leg were handed to the other leg's socket
	eventAcked                // the leg's peer has acknowledged all that was written to it
	eventAbort                // the flow has to stop now; the leg does not matter
	eventLeave                // the same, but what is whole is left to the kernel to deliver
)

// action is a set of things an event loop has to do.
type action uint16

// The actions on the client leg; those on the target leg are one bit higher.
const (
	actionShutdown   action = 1 << (2 * iota) // pass the end of stream on to this leg
	actionDiscard                             // stop reading this leg and forget what was read from it
	actionAwaitAck                            // watch until the leg's peer has acknowledged everything
	actionCloseClean                          // close the leg; what its peer lacks the kernel delivers, then its end
	actionCloseReset                          // close the leg with a reset

	actionDeadline action = 1 << 15 // start the deadline for delivering what came before a reset
)

func (a action) on(s side) action            { return a << s }
func (a action) has(b action) bool           { return a&b != 0 }
func (a action) hasOn(b action, s side) bool { return a&b.on(s) != 0 }

// ending decides how a flow ends. It is pure: events go in, actions come out,
// and it holds to one invariant: a peer sees a clean end only if the other
// peer ended its stream cleanly and every byte before has been handed over.
// docs/design/endings.md draws it.
//
// The zero value is an established flow.
type ending struct {
	in        [2]input
	broken    [2]bool // the leg cannot be written
	drained   [2]bool // all that was read from the leg has been handed over; its input is not open
	shut      [2]bool // the end was passed on to this leg
	discarded [2]bool // what the leg sends is no longer wanted
	awaiting  [2]bool // its peer's acknowledgement is being waited for
	acked     [2]bool // its peer has acknowledged everything
	deadline  bool    // the deadline runs
	aborted   bool
	left      bool // by eventLeave
	closed    bool
}

// step takes an event of a leg and returns what has to be done for it.
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
			// Nothing reaches the broken leg any more.
			e.discarded[o] = true
			a |= actionDiscard.on(o)
		}
		// Who has the whole stream and its end takes the time it needs.
		if was := e.deadline; e.finished(o) {
			e.deadline = false
		} else if !was {
			e.deadline = true
			a |= actionDeadline
		}
	}
	for s := client; s <= target; s++ {
		// Once its peer is to get no more, a leg stays until all of it is
		// acknowledged: a reset would overtake what is in the queue, and the
		// flow is not over before its last byte has arrived.
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

// delivering says whether both ends were passed on, so that nothing is left to
// do but to wait until they and all before them have arrived.
func (e *ending) delivering() bool { return e.shut[client] && e.shut[target] }

// over says whether nothing more can come of a leg.
func (e *ending) over(s side) bool { return e.broken[s] || e.acked[s] }

// finished says whether a leg's peer has ended its stream and was given the
// other's end: nothing that happens now concerns it.
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

// awaits says whether the acknowledgement of a leg's peer is still to come.
func (e *ending) awaits(s side) bool { return e.awaiting[s] && !e.over(s) }

func (e *ending) waits() bool { return e.awaits(client) || e.awaits(target) }

// halfDone says whether the flow waits for one side alone: one direction has
// ended and the other has not, or all that is left is to be acknowledged.
func (e *ending) halfDone() bool {
	return (e.in[client] == inputEnded) != (e.in[target] == inputEnded) || e.waits()
}
