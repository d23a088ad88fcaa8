package pair

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"

	"longhaul/internal/sys/connsource"
	"longhaul/internal/sys/loglimit"
)

// Node has the pairs of one process.
type Node struct {
	options  Options
	identity Identity
	log      *slog.Logger
	limited  *loglimit.Limiter // for lines that another end can cause
	instance uint64
	poller   *poller
	budget   budget
	pipes    pipes
	linger   linger
	strain   strain          // of this process
	turns    *turns          // of handshakes of lanes
	controls *turns          // of those of accepted control connections
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	tasks    sync.WaitGroup

	flowsNow   atomic.Int64
	handshakes *connsource.Places
	begun      *connsource.Places // of handshakes: those whose TLS has begun
	serving    atomic.Int64       // handshakes, with those that were given up
	dials      atomic.Int64       // attempts of near ends for connections
	draining   atomic.Bool
	closing    atomic.Bool

	mu        sync.Mutex
	links     []*Link
	accepted  map[NearSession]*session
	uses      map[string]*peerUse // by peer
	strangers map[Problem]int64
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
	n := &Node{options: o, identity: o.Identity, log: o.Log, limited: loglimit.New(o.Log), instance: randomID(), poller: p,
		// Lanes leave half of the processors to everything else.
		turns: newTurns(runtime.GOMAXPROCS(0) / 2), controls: newTurns(runtime.GOMAXPROCS(0)),
		handshakes: connsource.NewPlaces(maxHandshakes), begun: connsource.NewPlaces(o.MaxBegun),
		accepted: map[NearSession]*session{}, uses: map[string]*peerUse{}, strangers: map[Problem]int64{}}
	n.boundStores()
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.tasks.Go(n.watch)
	return n, nil
}

func (n *Node) boundStores() {
	if n.options.RetainedLimit != nil {
		n.budget.limit.Store(n.options.RetainedLimit())
	}
}

// randomID is a random number that is not 0.
func randomID() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:]) | 1
}

// Instance is this process's random number, which prefaces name.
func (n *Node) Instance() uint64 { return n.instance }

// Flows is the number of flows that have not ended.
func (n *Node) Flows() int { return int(n.flowsNow.Load()) }
