package pair

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/descriptor"
	"longhaul/internal/flow"
	"longhaul/internal/pair/preface"
	"longhaul/internal/pair/wire"
)

type rawConn = syscall.RawConn

func isSystem(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno)
}

// maxHandshakes bounds accepted connections that have not ended their handshake.
const maxHandshakes = 2048

// Node has the pairs of one process.
type Node struct {
	options  Options
	identity Identity
	log      *slog.Logger
	instance uint64
	poller   *poller
	budget   budget
	pipes    pipes
	linger   linger
	turns    *turns
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	tasks    sync.WaitGroup

	flowsNow   atomic.Int64
	handshakes atomic.Int64
	dials      atomic.Int64 // attempts of near ends for connections
	draining   atomic.Bool
	closing    atomic.Bool

	mu        sync.Mutex
	links     []*Link
	accepted  map[sessionKey]*session
	strangers map[Problem]int64
}

// sessionKey names a session at the far relay.
type sessionKey struct {
	peer              string
	instance, session uint64
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
	if o.ReplacedAfter == 0 {
		o.ReplacedAfter = DefaultReplacedAfter
	}
	n := &Node{options: o, identity: o.Identity, log: o.Log, instance: randomID(), poller: p, turns: newTurns(),
		accepted: map[sessionKey]*session{}, strangers: map[Problem]int64{}}
	n.boundStores()
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.tasks.Go(n.watch)
	return n, nil
}

// boundStores gives all stores together a quarter of the memory limit.
func (n *Node) boundStores() {
	if n.options.MemoryLimit != nil {
		n.budget.limit.Store(n.options.MemoryLimit() / 4)
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
	if n.handshakes.Add(1) > maxHandshakes || n.closing.Load() {
		n.handshakes.Add(-1)
		setReset(fd, true)
		unix.Close(fd)
		return
	}
	n.tasks.Go(func() {
		defer n.handshakes.Add(-1)
		if err := n.serve(fd, first, a); err != nil {
			n.stranger(err, a)
		}
	})
}

func (n *Node) stranger(err error, a Acceptor) {
	p := problemOf(err)
	if p == ProblemPathDown {
		n.log.Debug("pair connection broke in its handshake", "tunnel", a.Tunnel(), "error", err)
		return
	}
	n.mu.Lock()
	n.strangers[p]++
	n.mu.Unlock()
	n.log.Info("pair connection refused", "tunnel", a.Tunnel(), "problem", string(p), "error", err)
}

func (n *Node) serve(fd int, first []byte, a Acceptor) error {
	tcp, err := connOf(fd)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(n.ctx, func() { tcp.Close() })
	defer stop()
	_ = tcp.SetDeadline(time.Now().Add(handshakeTimeout))
	bulk, err := newBulkConn(tcp)
	if err != nil {
		tcp.Close()
		return err
	}
	bulk.unread(first)
	p, err := n.readPreface(bulk)
	if err == nil && n.passElsewhere(p, bulk) {
		tcp.Close()
		return nil
	}
	if err == nil && p.Kind == preface.Lane && p.Instance != n.instance {
		// Frames may follow before this end's HELLO, for a process that is gone: an OPEN
		// among them may have been carried out.
		err = problem(ProblemPathDown, "a lane for another process")
	}
	var c *connection
	if err == nil {
		c, err = n.accept(bulk, a, p.Kind == preface.Lane)
	}
	if err != nil {
		tcp.Close()
		return err
	}
	return n.enter(c, p.Kind, a)
}

func (n *Node) readPreface(bulk *bulkConn) (preface.Preface, error) {
	bulk.clear = true
	defer func() { bulk.clear = false }()
	var b [preface.Size]byte
	if _, err := io.ReadFull(bulk, b[:]); err != nil {
		return preface.Preface{}, problem(ProblemUnpaired, "preface: %w", err)
	}
	p, verdict := preface.Recognize(b[:], n.identity.PublicKeys()...)
	if verdict != preface.Yes || p.Kind == preface.Join {
		return p, problem(ProblemUnpaired, "no preface for a session of this host")
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
	if modeOf(c.both) != s.mode {
		c.bulk.Close()
		return problem(ProblemEncrypt, "a lane of peer %s has another mode than its session", c.peer)
	}
	l := newLane(s, c, a)
	if !s.join(l, false) {
		c.bulk.Close()
		return nil
	}
	if c.hello.Features&wire.FeaturePad != 0 {
		l.pad(padSize)
	}
	return nil
}

func keyOf(peer string, h wire.Hello) sessionKey {
	return sessionKey{peer: peer, instance: h.Instance, session: h.Session}
}

// known reports whether a HELLO names a session of this process.
func (n *Node) known(peer string, h wire.Hello) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.accepted[keyOf(peer, h)] != nil
}

// sessionOf finds or makes the session of an accepted connection.
func (n *Node) sessionOf(c *connection, a Acceptor) (*session, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closing.Load() {
		return nil, net.ErrClosed
	}
	key := keyOf(c.peer, c.hello)
	s := n.accepted[key]
	if s == nil {
		s = newSession(n, c.peer, c.hello.Session, false)
		s.tunnel, s.origin, s.mode = a.Tunnel(), c.hello.Origin, modeOf(c.hello.Features)
		n.accepted[key] = s
	}
	s.mu.Lock()
	s.acceptor = a
	if c.hello.Resume > 0 {
		s.resume = c.hello.Resume
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
	n.closing.Store(true)
	for _, s := range n.sessions() {
		s.resetAll(flow.EndDrain, errors.New("the relay ends"))
	}
	n.flushResets()
	n.settle()
	n.cancel()
	for _, s := range n.sessions() {
		s.close()
	}
	n.tasks.Wait()
	n.pipes.close()
	n.poller.close()
}

// settle waits until the other ends have taken the last messages: a PONG proves it.
func (n *Node) settle() {
	var pinged []*control
	for _, s := range n.sessions() {
		if ctl := s.control(); ctl != nil {
			s.sendPing(ctl)
			pinged = append(pinged, ctl)
		}
	}
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); {
		pinged = slices.DeleteFunc(pinged, (*control).answered)
		if len(pinged) == 0 {
			return
		}
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

// replaced reports whether another process of the session's origin has been connected
// for long. A process that lives is so too, after an upgrade as well.
func (n *Node) replaced(s *session, now time.Time, long time.Duration) bool {
	if s.origin == "" {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for key, other := range n.accepted {
		if other != s && key.peer == s.peer && other.tunnel == s.tunnel && other.origin == s.origin && other.upSince(now) > long {
			return true
		}
	}
	return false
}
