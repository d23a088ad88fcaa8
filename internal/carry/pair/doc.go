// Package pair carries flows between two relays that know each other, over connections of their
// own, so that a flow outlives each of them. docs/design/pairs-wire.md has the protocol.
//
// The near relay gives each admitted client to a Link. The far relay gives each connection that
// begins with a preface (package preface) to Serve.
//
// # The model
//
// A process has one Node. A Link is the way of a near tunnel to its far relay. It has one or
// several paths, which are local addresses or interfaces, and it alone dials.
//
// A session is the relation of two processes. Its control connection carries messages: the
// beginnings and ends of flows, acknowledgements, PING. Its lanes are connections that carry bytes,
// each of one flow at a time. A near session keeps some warm, in its pool, so that a flow begins
// without a handshake. A session outlives its connections; a link gets another session when the far
// process takes no new flows.
//
// A Flow has a phase, which says how far its beginning has come, and parts: its leg, which is its
// own socket to the client or to the target; its lanes, each a subflow, which is the lane with what
// the flow knows of it; spread, which decides how many lanes it is to have; need, its time without
// one; watch, what the watcher remembers of it; and what only a near or a far flow has. What each
// end has sent, and has of the other, is a position in a stream (package stream decides on those,
// without sockets). When a lane is lost, both ends name their positions on the next one, and the
// flow goes on. A silent flow gives its lane back and is parked: it has neither a goroutine nor
// buffers.
//
// # Who runs
//
// A goroutine reads each lane and writes to the flow's leg. A flow that is not parked has one more,
// which reads the leg and sends; with several lanes each of them has one that sends. A control
// connection has a reader and a writer. The poller sees events of all legs. The link's goroutine
// dials what is missing, at each tick and when it is poked. The node's looks after sessions and
// flows that do not rest, at each tick, and finds what has taken too long.
//
// Flow.wake has the flow's goroutine look again: it begins one if there is none. Whatever may
// change what a flow can do ends with it.
//
// # Locks
//
// In this order: a flow's, the link's, the node's, the session's, those of its parts (outbox,
// registry, pool), the lane's, the control connection's, the path's. The lock that serializes a
// lane's writes is taken without a flow's, and before the lane's. Nobody waits for a connection
// under any other lock.
//
// # Who knows whom
//
// A lane knows its flow as a holder and its session as a home, and a session knows its link as a
// supplier: interfaces which say what the lower one asks of the upper one. These are the files
// from the bottom up:
//
//	words:     identity reason options stamp cond mode turns
//	sockets:   syscalls linger batch poller conn kernel problem pipes
//	bounds:    budget admission delays outcomes
//	process:   process timing relation
//	lanes:     frames handshake control path lane lanewrite laneread
//	sessions:  outbox registry pool session
//	flows:     counters phase window move flow schedule lanes progress leg arrive need near
//	and:       far spread splice figures messages run tick
//	links:     paths link node ending admit route waiting dialer redial lanedial probe linkrun
//	nodes:     sessions serve snapshot watch life
package pair
