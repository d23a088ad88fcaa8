package pair

import (
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/connsource"
)

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
	if o.RetainedLimit == nil {
		o.RetainedLimit = func() int64 { return DefaultRetained }
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
	if o.RefusedFor == 0 {
		o.RefusedFor = DefaultRefusedFor
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

// Drain tells all peers that this process takes no new flows. Links of this process
// take none either; flows that exist go on, with new lanes if they need them.
func (n *Node) Drain() {
	n.draining.Store(true)
	for _, s := range n.sessions() {
		s.message(wire.Message{Type: wire.MessageDrain})
	}
}

// Close resets all flows and closes all connections.
func (n *Node) Close() {
	n.mu.Lock()
	n.closing.Store(true)
	n.mu.Unlock()
	n.decide()
	for _, s := range n.sessions() {
		s.resetAll(flow.EndDrain, errors.New("the relay ends"))
	}
	n.flushResets()
	for _, s := range n.sessions() {
		if !s.near && !s.outcomes.incomplete(time.Now(), s.owesFor()) { // it says nothing if one was dropped
			s.sayLast()
		}
	}
	n.settle()
	n.cancel()
	for _, s := range n.sessions() {
		s.close()
	}
	n.tasks.Wait()
	n.pipes.close()
	n.poller.close()
	n.limited.Close()
}

// decide waits a moment for OPENs that are neither admitted nor refused: nothing was dialed for them, and
// once they are refused they go on at the next process. No further ones come.
func (n *Node) decide() {
	undecided := func() (count int64) {
		for _, s := range n.sessions() {
			s.flowCount() // after that admit has seen closing, or has added its flow
			count += s.undecided.Load()
		}
		return count
	}
	for deadline := time.Now().Add(time.Second); undecided() > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
}

// settle waits until the other ends have taken the last messages: a PONG proves it.
func (n *Node) settle() {
	silent, began, asked := n.sessions(), time.Now(), map[*session]bool{}
	for len(silent) > 0 {
		silent = slices.DeleteFunc(silent, func(s *session) bool {
			ctl := s.control()
			switch {
			case ctl == nil || ctl.isClosed() || time.Since(began) > s.patience(time.Second, 4):
				return true
			case asked[s]:
				return ctl.answered()
			case !s.lastIsDue(): // the PING goes behind it
				asked[s] = true
				ctl.sendPing()
			}
			return false
		})
		time.Sleep(time.Millisecond)
	}
}

// flushResets waits a moment for RESET messages to leave.
func (n *Node) flushResets() {
	for deadline := time.Now().Add(time.Second); n.Flows() > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	for _, s := range n.sessions() {
		s.dropAll()
	}
	for deadline := time.Now().Add(time.Second); n.Flows() > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
}
