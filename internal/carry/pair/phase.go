package pair

// phase is how far a flow has come. What its bytes and ends have come to is in stream.Flow.
//
//	near: fresh ─ ask ─> asked ─ heard ─> known ─ opened ─> open ─> over
//	        └──<── unsent ──┴───────<───────┘   any ─ gone ─> orphaned ─> over
//	      a held flow is given back from any of the first three: ─> over
//	far:  dialing ─ opened ─> open ─> over
//	        └───── refused ─> refused ─> over
type phase uint8

const (
	phaseFresh    phase = iota // near: nothing of it has gone out
	phaseAsked                 // near: its OPEN has gone out, and nothing shows that the far relay knows it
	phaseKnown                 // near: the far relay knows it
	phaseDialing               // far: its target is being dialed
	phaseRefused               // far: it has no target
	phaseOpen                  // its target is connected
	phaseOrphaned              // near: the far process that may have known it is gone, and no other is to hear of it
	phaseOver                  // nothing is left to do
	phases
)

// phaseEvent is what takes a flow to another phase.
type phaseEvent uint8

const (
	eventAsk     phaseEvent = iota // near: its OPEN goes out
	eventHeard                     // the other relay knows the flow
	eventOpened                    // the target is connected
	eventRefused                   // far: it is not, and will not be
	eventUnsent                    // near: the flow goes to a far process that has never heard of it
	eventGone                      // near: the far process is gone
	eventOver                      // both ends have all that they get
	phaseEvents
)

// take changes the phase by an event. One that says nothing new in a phase leaves it as it is.
func (p *phase) take(e phaseEvent) {
	switch e {
	case eventAsk:
		if *p == phaseFresh {
			*p = phaseAsked
		}
	case eventHeard:
		if *p < phaseKnown {
			*p = phaseKnown
		}
	case eventOpened:
		if *p <= phaseDialing {
			*p = phaseOpen
		}
	case eventRefused:
		if *p == phaseDialing {
			*p = phaseRefused
		}
	case eventUnsent:
		if *p <= phaseKnown {
			*p = phaseFresh
		}
	case eventGone:
		if *p != phaseOver {
			*p = phaseOrphaned
		}
	case eventOver:
		*p = phaseOver
	}
}

// known reports whether the other relay knows the flow, or has known it.
func (p phase) known() bool { return p >= phaseKnown }

// unheard reports that nothing of a near flow may reach the far process that there is now.
func (p phase) unheard() bool { return p == phaseFresh || p == phaseOrphaned }
