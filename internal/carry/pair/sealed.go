package pair

import "errors"

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
