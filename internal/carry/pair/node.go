package pair

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/connsource"
	"longhaul/internal/sys/descriptor"
	"longhaul/internal/sys/loglimit"
)

type rawConn = syscall.RawConn

func isSystem(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno)
}

// Bounds of what accepted connections take.
const (
	// maxHandshakes bounds those whose TLS has not begun. A connection that was given up stays
	// for a moment; so many of these at most.
	maxHandshakes = 2048
	maxGivenUp    = maxHandshakes / 8
	// maxBegun bounds those whose TLS has begun, for each CPU that computes those of lanes: such a one
	// takes 30 kB. With honest ends there are as many as begin in a round trip of 0.7 s.
	maxBegun = 1024

	maxSessions   = 512         // of one peer
	maxIdleLanes  = 1024        // of one peer: lanes that carry no flow
	maxPeerResume = time.Hour   // for which a peer may have its flows wait for a lane
	emptyFor      = time.Minute // that a session without flows waits for its control connection

	// maxDeadline bounds the time in which a peer wants a target: what a configuration may have.
	maxDeadline = time.Hour
	// maxOldSessions bounds the sessions of a link beside the current one. While there are so
	// many, a far process that takes no new flows gets a further one each minute.
	maxOldSessions = 16
)

// peerUse is what the connections of one peer take.
type peerUse struct {
	idle atomic.Int64 // lanes that carry no flow
	// left are outcomes of sessions that are closed, in their order; under the node's lock.
	left []left
	// dropped is until when the peer may wait for one of those that were dropped of left; zero: there is none.
	dropped time.Time
}

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
	n := &Node{options: o, identity: o.Identity, log: o.Log, limited: loglimit.New(o.Log), instance: randomID(), poller: p,
		// Lanes leave half of the processors to everything else.
		turns: newTurns(runtime.GOMAXPROCS(0) / 2), controls: newTurns(runtime.GOMAXPROCS(0)),
		handshakes: connsource.NewPlaces(maxHandshakes), begun: connsource.NewPlaces(o.MaxBegun),
		accepted: map[NearSession]*session{}, uses: map[string]*peerUse{}, strangers: map[flow.PairProblem]int64{}}
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

// Serve takes an accepted connection that begins with a preface. first are bytes
// that were read of it already. It returns at once.
func (n *Node) Serve(fd int, first []byte, a Acceptor) {
	n.mu.Lock() // Close waits for a task that was added before
	busy := n.serving.Add(1) > maxHandshakes+maxGivenUp || n.closing.Load()
	if !busy {
		n.tasks.Add(1)
	}
	n.mu.Unlock()
	if busy {
		n.serving.Add(-1)
		sayBusy(fd)
		unix.Close(fd)
		return
	}
	ctx, giveUp := context.WithCancelCause(n.ctx)
	from := arrival{source: sourceOf(fd), giveUp: func() { giveUp(errBusy) }}
	from.place = n.handshakes.Take(from.source, from.giveUp)
	go func() {
		defer n.tasks.Done()
		defer n.serving.Add(-1)
		defer giveUp(nil)
		defer n.handshakes.Leave(from.place)
		err := n.serve(ctx, fd, first, from, a)
		if cause := context.Cause(ctx); err != nil && cause == errBusy {
			err = cause
		}
		if err != nil {
			n.stranger(err, a)
		}
	}()
}

// arrival is what the bounds of handshakes need to know of a connection.
type arrival struct {
	source netip.Addr
	giveUp func() // ends its handshake for another one
	place  *connsource.Place
}

// errBusy is the error of a handshake that was given up for another one.
var errBusy = problem(flow.PairBusy, "%d connections are in their handshakes", maxHandshakes)

// sourceOf is the source of an accepted connection.
func sourceOf(fd int) netip.Addr {
	switch a, _ := unix.Getpeername(fd); a := a.(type) {
	case *unix.SockaddrInet4:
		return connsource.OfAddr(netip.AddrFrom4(a.Addr))
	case *unix.SockaddrInet6:
		return connsource.OfAddr(netip.AddrFrom16(a.Addr))
	}
	return netip.Addr{}
}

// tellBusy says why a connection is given up whose handshake has not begun.
func (c *bulkConn) tellBusy() {
	if c.begun.Load() {
		return
	}
	c.control(sayBusy)
}

func sayBusy(fd int) {
	var unread [4 << 10]byte // left unread, it would make the close a reset, which overtakes
	_, _ = recv(fd, unread[:])
	_, _ = send(fd, busyAlert)
}

func (n *Node) stranger(err error, a Acceptor) {
	p := problemOf(err)
	if p == flow.PairPathDown {
		n.log.Debug("pair connection broke in its handshake", "tunnel", a.Tunnel(), "error", err)
		return
	}
	n.mu.Lock()
	n.strangers[p]++
	n.mu.Unlock()
	n.limited.Log(slog.LevelInfo, "pair connection refused", []string{"tunnel", "problem"}, slog.String("tunnel", a.Tunnel()), slog.String("problem", string(p)), slog.Any("error", err))
}

func (n *Node) serve(ctx context.Context, fd int, first []byte, from arrival, a Acceptor) error {
	tcp, err := connOf(fd)
	if err != nil {
		return err
	}
	_ = tcp.SetDeadline(time.Now().Add(handshakeTimeout + n.strained()))
	bulk, err := newBulkConn(tcp)
	if err != nil {
		tcp.Close()
		return err
	}
	defer context.AfterFunc(ctx, func() {
		if context.Cause(ctx) == errBusy {
			bulk.tellBusy()
		}
		tcp.Close()
	})()
	bulk.unread(first)
	p, err := n.readPreface(bulk)
	if err == nil && n.passElsewhere(p, bulk) {
		tcp.Close()
		return nil
	}
	if err == nil && p.Kind == preface.Lane && p.Instance != n.instance {
		// Frames may follow before this end's HELLO, for a process that is gone: an OPEN
		// among them may have been carried out.
		err = problem(flow.PairPathDown, "a lane for another process")
	}
	if err == nil {
		if err = bulk.await(); err != nil {
			err = broken(handshakeProblem(err))
		}
	}
	var c *connection
	if err == nil {
		c, err = n.accept(bulk, from, a, p)
	}
	if err != nil {
		tcp.Close()
		return err
	}
	return n.enter(c, p.Kind, a)
}

func (n *Node) readPreface(bulk *bulkConn) (preface.Preface, error) {
	bulk.clear, bulk.exact = true, true // the rest waits with the kernel until it is its turn
	defer func() { bulk.clear, bulk.exact = false, false }()
	var b [preface.Size]byte
	if _, err := io.ReadFull(bulk, b[:]); err != nil {
		return preface.Preface{}, problem(flow.PairUnpaired, "preface: %w", err)
	}
	p, verdict := preface.Recognize(b[:], n.identity.PublicKeys()...)
	if verdict != preface.Yes || p.Kind == preface.Join {
		return p, problem(flow.PairUnpaired, "no preface for a session of this host")
	}
	bulk.preface = b
	return p, nil
}

// passElsewhere gives the socket to the process that its preface names.
func (n *Node) passElsewhere(p preface.Preface, bulk *bulkConn) (taken bool) {
	if p.Instance == 0 || p.Instance == n.instance || n.options.Elsewhere == nil {
		return false
	}
	copied, err := descriptor.Duplicate(bulk.tcp)
	if err != nil {
		return false
	}
	first := append(slices.Clone(bulk.preface[:]), bulk.in[bulk.r:bulk.w]...)
	if n.options.Elsewhere(p.Instance, copied, first) {
		return true
	}
	unix.Close(copied)
	return false
}

// enter makes an accepted connection part of its session.
func (n *Node) enter(c *connection, kind preface.Kind, a Acceptor) error {
	s, err := n.sessionOf(c, a)
	if err != nil {
		c.bulk.Close()
		return err
	}
	if kind == preface.Control {
		s.begin(c)
		return nil
	}
	defer n.trimIdle(s)
	if modeOf(c.both) != s.mode {
		c.bulk.Close()
		return problem(flow.PairEncrypt, "a lane of peer %s has another mode than its session", c.peer)
	}
	l := newLane(s, c, a)
	if !s.join(l, false) {
		c.bulk.Close()
		return nil
	}
	if c.hello.Features&wire.FeaturePad != 0 {
		n.tasks.Go(func() { l.pad(padSize) }) // it may wait, and the handshake is over
	}
	return nil
}

func keyOf(peer string, h wire.Hello) NearSession {
	return NearSession{peer, h.Instance, h.Session}
}

// known reports whether a HELLO names a session of this process.
func (n *Node) known(peer string, h wire.Hello) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.accepted[keyOf(peer, h)] != nil
}

// roomFor reports whether a peer may have one more session, perhaps in place of one without flows
// that has lost its control connection: victim, which the caller closes. The caller holds n.mu.
func (n *Node) roomFor(peer string) (victim *session, ok bool) {
	var all []*session
	for key, s := range n.accepted {
		if key.Peer == peer {
			all = append(all, s)
		}
	}
	if len(all) < maxSessions {
		return nil, true
	}
	var oldest time.Time
	for _, s := range all {
		if since, idle := s.abandoned(); idle && (victim == nil || since.Before(oldest)) {
			victim, oldest = s, since
		}
	}
	return victim, victim != nil
}

// abandoned reports that the session has neither flows nor a control connection, and since when.
func (s *session) abandoned() (since time.Time, yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since, s.ctl == nil && len(s.flows) == 0
}

// tooMany is why a peer gets no further session.
func tooMany(peer string) error {
	return problem(flow.PairBusy, "peer %s has %d sessions, as many as one may have", peer, maxSessions)
}

// full reports that a HELLO asks for a session that the peer may not have.
func (n *Node) full(peer string, h wire.Hello) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.accepted[keyOf(peer, h)] != nil {
		return false
	}
	_, ok := n.roomFor(peer)
	return !ok
}

// trimIdle closes the peer's lanes that have carried no flow for longest, if it has too many.
func (n *Node) trimIdle(s *session) {
	over := int(s.use.idle.Load()) - maxIdleLanes
	if over <= 0 {
		return
	}
	type idle struct {
		l     *lane
		since stamp
	}
	var all []idle
	for _, other := range n.sessions() {
		if other.use != s.use {
			continue
		}
		other.mu.Lock()
		for l := range other.lanes {
			if since, yes := l.idle(); yes {
				all = append(all, idle{l, since})
			}
		}
		other.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b idle) int { return cmp.Compare(a.since, b.since) })
	for _, one := range all[:min(over+maxIdleLanes/16, len(all))] { // some more: the next look is not at once
		one.l.close()
	}
}

// sessionOf finds or makes the session of an accepted connection.
func (n *Node) sessionOf(c *connection, a Acceptor) (*session, error) {
	var victim *session
	defer func() {
		if victim != nil {
			victim.close()
		}
	}()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closing.Load() {
		return nil, net.ErrClosed
	}
	key := keyOf(c.peer, c.hello)
	s := n.accepted[key]
	if s == nil {
		var ok bool
		if victim, ok = n.roomFor(c.peer); !ok {
			return nil, tooMany(c.peer)
		}
		if n.uses[c.peer] == nil {
			n.uses[c.peer] = &peerUse{}
		}
		s = newSession(n, c.peer, c.hello.Session, false)
		s.use = n.uses[c.peer]
		s.tunnel, s.mode = a.Tunnel(), modeOf(c.hello.Features)
		s.origin, s.boot = origin{c.peer, a.Tunnel(), c.hello.Origin}, c.hello.Boot
		s.sealed.Store(s.sealedWith(c.hello)) // its first lane may come before begin
		if o := s.use.takeLeft(key); o != nil {
			s.outcomes = o
			for id, code := range o.codes() { // a repeated OPEN dials nothing here either
				s.buried.add(id, code)
			}
		}
		n.accepted[key] = s
	}
	s.mu.Lock()
	s.acceptor = a
	if c.hello.Resume > 0 {
		s.resume = min(c.hello.Resume, maxPeerResume)
	}
	s.instance, s.release = c.hello.Instance, c.hello.Release
	s.mu.Unlock()
	return s, nil
}

// sessions lists the sessions of both kinds.
func (n *Node) sessions() (all []*session) {
	n.mu.Lock()
	links := slices.Clone(n.links)
	for _, s := range n.accepted {
		all = append(all, s)
	}
	n.mu.Unlock()
	for _, l := range links {
		all = append(all, l.sessions()...)
	}
	return all
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
		s.sayLast()
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
			s.mu.Lock() // admit has seen closing, or has added its flow
			count += s.undecided.Load()
			s.mu.Unlock()
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
				s.sendPing(ctl)
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
