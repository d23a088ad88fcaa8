package pair

import (
	"errors"

	"longhaul/internal/carry/flow"
)

// Whoever is on the path of lanes in clear may read and change what they carry. So where both
// ends know how, a session in clear is sealed: OPEN and END go on the control connection, which
// has TLS. A lane begins with an ATTACH that names its flow, and carries bytes. What it brings may
// come before the OPEN, and behind the END.

var (
	errUnsealed = errors.New("a beginning or an end on a lane in clear, where none may be")
	errNoOpen   = errors.New("no OPEN came for the flow that the lane names")
)

// openWithin bounds the time for which a lane waits for the OPEN of its flow.
const openWithin = handshakeTimeout

// begin marks the flow as one of which the far relay hears from now on. The caller holds f.mu.
func (f *Flow) begin() {
	if !f.sent {
		f.sent = true
		f.sf.Seal(f.s.sealed.Load())
	}
}

// takeSealedEnd takes an end that came on the control connection. Bytes before it may be under way. The
// caller holds f.mu and wakes the flow.
func (f *Flow) takeSealedEnd(length uint64, crc uint32) {
	f.known = true
	err := errUnsealed
	if f.s.sealed.Load() {
		err = f.sf.In.End(length, crc)
	}
	if err != nil {
		f.abort(cause(flow.EndDamaged, errEnd))
		return
	}
	f.passEnd()
}

// endsUntold reports that a beginning or an end of a sealed flow waits for the control connection.
func (f *Flow) endsUntold() bool {
	return f.s.sealed.Load() && (f.near && !f.known || f.sf.Out.Ended() && !f.sf.Out.Done())
}
