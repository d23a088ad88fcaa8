package pair

import (
	"log/slog"
	"runtime"
	"slices"
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
}

// New starts a node.
func New(o Options) (*Node, error) {
	p, err := newPoller()
	if err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.ParkAfter == 0 {
		o.ParkAfter = DefaultParkAfter
	}
	if o.StripeAfter == 0 {
		o.StripeAfter = DefaultStripeAfter
	}
	if o.LateNoResume == 0 {
		o.LateNoResume = DefaultLateNoResume
	}
	if o.ReplacedAfter == 0 {
		o.ReplacedAfter = DefaultReplacedAfter
	}
	if o.MaxBegun == 0 {
		o.MaxBegun = maxBegun * max(runtime.GOMAXPROCS(0)/2, 1)
	}
	n := &Node{controls: newTurns(runtime.GOMAXPROCS(0)),
		handshakes: connsource.NewPlaces(maxHandshakes), begun: connsource.NewPlaces(o.MaxBegun),
		accepted: map[NearSession]*session{}, uses: map[string]*peerUse{}, strangers: map[flow.PairProblem]int64{}}
	n.init(o, p)
	n.tasks.Go(n.watch)
	return n, nil
}

// Instance is this process's random number, which prefaces name.
func (n *Node) Instance() uint64 { return n.instance }

// Flows is the number of flows that have not ended.
func (n *Node) Flows() int { return int(n.flowsNow.Load()) }

// Link adds the way of a near tunnel to its far relay and starts to connect.
func (n *Node) Link(o LinkOptions) *Link {
	l := newLink(&n.process, o, func(l *Link) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.links = slices.DeleteFunc(n.links, func(x *Link) bool { return x == l })
	})
	n.mu.Lock()
	n.links = append(n.links, l)
	n.mu.Unlock()
	n.tasks.Go(l.run)
	return l
}
