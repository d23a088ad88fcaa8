package pair

import (
	"sync"
	"sync/atomic"

	"longhaul/internal/carry/flow"
	"longhaul/internal/sys/connsource"
)

// Node has the pairs of one process.
type Node struct {
	process
	controls   *turns             // of handshakes of accepted control connections
	handshakes *connsource.Places // of accepted connections
	begun      *connsource.Places // of handshakes: those whose TLS has begun
	serving    atomic.Int64       // handshakes, with those that were given up

	mu        sync.Mutex
	links     []*Link
	accepted  map[NearSession]*session
	uses      map[string]*peerUse // by peer
	strangers map[flow.PairProblem]int64
	refused   *flow.RefusedCertificate // the last one; nil: none
}

// Instance is this process's random number, which prefaces name.
func (n *Node) Instance() uint64 { return n.instance }

// Flows is the number of flows that have not ended.
func (n *Node) Flows() int { return int(n.flowsNow.Load()) }
