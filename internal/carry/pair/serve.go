package pair

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/trust"
	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/connsource"
	"longhaul/internal/sys/descriptor"
)

// Bounds of what accepted connections take.
const (
	// maxHandshakes bounds those whose TLS has not begun. A connection that was given up stays
	// for a moment; so many of these at most.
	maxHandshakes = 2048
	maxGivenUp    = maxHandshakes / 8
	// maxBegun bounds those whose TLS has begun, for each CPU that computes those of lanes: such a one
	// takes 30 kB. With honest ends there are as many as begin in a round trip of 0.7 s.
	maxBegun = 1024

	emptyFor = time.Minute // that a session without flows waits for its control connection

)

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
			n.stranger(err, a, from.source)
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

func (n *Node) stranger(err error, a Acceptor, source netip.Addr) {
	p := problemOf(err)
	if p == flow.PairPathDown {
		n.log.Debug("pair connection broke in its handshake", "tunnel", a.Tunnel(), "error", err)
		return
	}
	n.mu.Lock()
	n.strangers[p]++
	if p == flow.PairCertificate {
		n.refused = &flow.RefusedCertificate{At: time.Now(), Source: source, Tunnel: a.Tunnel(), Error: err.Error()}
	}
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
	p, verdict := n.identity.Recognize(b[:])
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
		return problem(flow.PairEncrypt, "a lane of peer %s has another mode than its session", c.who.name)
	}
	l := newLane(&s.relation, s, c, a)
	if !s.join(l, false) {
		c.bulk.Close()
		return nil
	}
	if c.hello.Features&wire.FeaturePad != 0 {
		n.tasks.Go(func() { l.pad(padSize) }) // it may wait, and the handshake is over
	}
	return nil
}

// answers are the features that a far end has if the near one wants them. FeatureClear is the tunnel's.
const answers = wire.FeaturePad | wire.FeatureNoResume | wire.FeatureLanes | wire.FeatureAhead | wire.FeatureCompress | wire.FeatureHeld |
	wire.FeatureSealed | wire.FeatureSums | wire.FeatureSent | wire.FeatureTrouble | wire.FeatureAddress | wire.FeatureOffset |
	wire.FeatureTrace

// accept goes through the handshake of an accepted connection behind its preface.
func (n *Node) accept(bulk *bulkConn, from arrival, a Acceptor, p preface.Preface) (*connection, error) {
	lane := p.Kind == preface.Lane
	bulk.corked, bulk.flushReads, bulk.tailApart, bulk.turns = true, true, true, n.controls
	if lane {
		bulk.turns = n.turns
	}
	bulk.turns.begin(from.source)
	defer bulk.turns.give()
	n.handshakes.Leave(from.place) // to those that have done nothing yet
	defer n.begun.Leave(n.begun.Take(from.source, from.giveUp))
	bulk.endWithin(handshakeTimeout, n.strained) // without the wait for the turn
	config := n.identity.ServerTLS(bulk.preface[:]).Clone()
	offered := offersAnother(config, &bulk.begun)
	conn := tls.Server(bulk, config)
	if err := conn.Handshake(); err != nil {
		_ = bulk.flush() // the alert
		if *offered {
			return nil, problem(flow.PairVersion, "the near relay speaks another version: %w", err)
		}
		return nil, certified(config.ClientCAs != nil, broken(handshakeProblem(err)))
	}
	who, err := n.hostOf(n.identity.Admitted(bulk.preface[:], conn.ConnectionState()))
	if errors.Is(err, trust.ErrCertificate) {
		bulk.endWithin(handshakeTimeout, n.strained)
		return nil, refuseCertificate(bulk, conn, err)
	}
	if err != nil {
		return nil, err
	}
	who.certified = config.ClientCAs != nil
	peer := who.name
	bulk.endWithin(handshakeTimeout, n.strained)
	hello, err := wire.ReadHello(conn)
	if err != nil {
		return nil, broken(handshakeProblem(err))
	}
	older := !lane && n.known(who, hello)
	mine := n.hello(hello.Session, a.Tunnel())
	mine.Features = hello.Features & answers &^ n.options.Without
	if a.Clear() || older { // the tunnel may have had the session's mode before
		mine.Features |= hello.Features & wire.FeatureClear
	}
	if !lane {
		if mine.Follows, mine.Owed, err = n.follows(p.Instance, keyOf(peer, hello)); err != nil {
			return nil, err
		}
	}
	var refusal error
	switch {
	case !hello.Speaks():
		refusal = problem(flow.PairVersion, "peer %s speaks versions %d to %d", peer, hello.Lowest, hello.Highest)
	case !a.Admits(peer):
		refusal = problem(flow.PairDenied, "tunnel %s does not admit peer %s", a.Tunnel(), peer)
	case a.Removed() && !older:
		refusal = problem(flow.PairDenied, "tunnel %s was removed", a.Tunnel())
	case modeOf(hello.Features).clear != a.Clear() && !older:
		refusal = encryptRefusal(peer, !a.Clear(), a.Clear(), a.Tunnel())
	case !older && n.full(who, hello):
		refusal = tooMany(peer)
	case n.draining.Load() && !lane && !older:
		refusal = problem(flow.PairDraining, "this process takes no new sessions")
	}
	if !lane && mine.Features&wire.FeatureAddress != 0 {
		mine.Address = addressToTell(bulk, a.Advertise())
	}
	if refusal != nil {
		mine.Follows, mine.Owed = 0, "" // there may be no room for both
		mine.Problem = string(problemOf(refusal))
	}
	if _, err := conn.Write(mine.Append(nil)); err != nil {
		return nil, err
	}
	if err := bulk.flush(); err != nil {
		return nil, err
	}
	if refusal != nil {
		return nil, refusal
	}
	return (&connection{bulk: bulk, stream: conn, hello: hello, who: who, both: mine.Features}).finish(lane), nil
}

// refuseCertificate says in HELLO why the certificate of the near end is refused, and nothing of this host.
// The near end's own HELLO is read before, since a close with unread bytes is a reset, which overtakes.
func refuseCertificate(bulk *bulkConn, conn *tls.Conn, err error) error {
	if _, unread := wire.ReadHello(conn); unread == nil {
		h := wire.Hello{Lowest: wire.LowestVersion, Highest: wire.HighestVersion, Problem: certificateProblem(err)}
		_, _ = conn.Write(h.Append(nil))
		_ = bulk.flush()
	}
	return problem(flow.PairCertificate, "%w", err)
}

// offersAnother watches whether a client offers protocols, and this one is not among
// them: crypto/tls has no type for that error. It sets begun before TLS answers.
func offersAnother(config *tls.Config, begun *atomic.Bool) *bool {
	offered := new(bool)
	ask := config.GetConfigForClient
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		begun.Store(true)
		*offered = len(hello.SupportedProtos) > 0 && !slices.Contains(hello.SupportedProtos, preface.ALPN)
		if ask == nil {
			return nil, nil
		}
		return ask(hello)
	}
	return offered
}
