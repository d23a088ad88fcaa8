// Package pair carries flows between two relays that know each other, over connections of their
// own, so that a flow outlives each of them (unless resumption is off). docs/design/pairs-wire.md
// has the protocol.
//
// The near relay gives each admitted client to a Link. The far relay gives each connection that
// begins with a preface (package preface) to Serve.
//
// # The model
//
// A process has one Node. A Link is the way of a near tunnel to its far relay. It has one or
// several paths, which are local addresses or interfaces. Only links make connections between the
// relays.
//
// A session is the relation of two processes. Its lanes are connections that carry bytes, each of
// one flow at a time: OPEN or ATTACH, DATA, END, and RELEASE. Its control connection carries what
// needs no lane: OPENED, REFUSED, ACK, RESET, GONE, and WAKE, which brings bytes ahead of a lane
// and asks for one. On lanes in clear nobody can trust a frame: OPEN and END go on the control
// connection too (the session is sealed). A near session keeps some lanes warm, in its pool, so
// that a flow begins without a handshake. A session outlives its connections. A link gets another
// one when the far process takes no new flows, or when its peer, tunnel or mode changes.
//
// A Flow has a phase, see there, and parts: its leg, which is its own socket to the client or to
// the target; its lanes, each a subflow, which is the lane with what the flow knows of it; spread,
// which decides how many lanes it is to have; need, its time without a lane that it needs; watch,
// which finds what has taken too long; and what only a near or a far flow has. What each end has
// sent, and has of the other, is a position in a stream. Package stream decides on those, without
// sockets, and on ends: a flow is clean when both ends have all and know it, dead when its leg is
// to be reset, and over when the other end knows that too.
//
// When a lane is lost, both ends name their positions on the next one, and the flow goes on. The
// near end of a silent flow offers the lane back (RELEASE); once the far end agrees, the flow is
// parked: it has neither a goroutine nor buffers. The near end wakes it by ATTACH, the far one by
// WAKE.
//
// A near flow whose client has other hops is held until OPENED, or a byte of the target, comes: the
// link reads nothing of the client and sends nothing of it. When this session cannot serve a held
// flow, the link gives the client back and sends GONE, so that a target which the far relay dials gets
// no byte. Both happen under the flow's lock, and each ends the hold. So one target at most gets what
// the client says, and resumption counts the bytes there as those of any flow.
//
// # Who runs
//
// Each lane has a goroutine that reads it and writes to the flow's leg; bytes that came before
// their turn, or ahead of a lane, are written by others, and leg.busyOut keeps them apart. A flow
// that has something to do has one that reads the leg and sends; from its second lane on each
// lane has one that sends. A control connection has a reader and a writer. The poller sees events
// of all legs. The link's goroutine looks at each tick, and when it is poked, what is missing, and
// begins a goroutine for each dial. The node's goroutine looks after sessions and flows.
//
// Flow.wake has the flow's goroutine look again; a flow without a goroutine gets one. Flow.step and
// the functions that it calls release the flow's lock while they read, write or send, so their
// callers must check the flow's state again.
//
// # Locks
//
// In this order: a flow's, the link's, the node's, the session's, those of its parts (outbox,
// registry, pool), the lane's, the control connection's, the path's. The one under which a near
// session's control connection begins comes before a flow's. The lock that serializes a lane's
// writes is taken without a flow's, and before the lane's. Nobody waits for a connection under
// any other lock.
//
// # Who knows whom
//
// A lane knows its flow as a holder and its session as a home, and a session knows its link as a
// supplier: interfaces which say what the lower one asks of the upper one. These are the files
// from the bottom up:
//
//	words:     identity reason options stamp cond mode turns
//	sockets:   syscalls linger batch poller conn kernel problem pipes
//	bounds:    budget admission delays outcomes book
//	process:   process hosts timing relation
//	lanes:     frames handshake control path lane lanewrite laneread
//	sessions:  outbox registry pool own refusals traces validity session
//	flows:     counters phase window move flow schedule lanes progress leg arrive need near
//	and:       far spread splice figures trace back messages run tick
//	links:     paths link node ending admit route waiting dialer redial lanedial probe linkrun
//	nodes:     sessions serve snapshot watch life
package pair
