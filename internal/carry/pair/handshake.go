package pair

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/eyeballs"
	"longhaul/internal/sys/halfopen"
	"longhaul/internal/sys/tcpinfo"
)

// handshakeTimeout bounds the preface of a connection, and the other end's part of TLS and of HELLO each,
// beside the time for which they wait for a processor.
const handshakeTimeout = 10 * time.Second

// nearHandshake is the near relay's bound: it gives up before the far one does, whose reset would say that
// no relay is there.
const nearHandshake = handshakeTimeout - handshakeTimeout/20

// strained is how late this process is.
func (n *Node) strained() time.Duration { return n.strain.now(time.Now()) }

// connection is one that has been through its handshake.
type connection struct {
	bulk   *bulkConn
	stream io.ReadWriter // TLS, or bulk in clear
	hello  wire.Hello    // of the other end
	peer   string
	path   *wanPath      // of a near end
	both   wire.Features // that both ends want
	leave  func()        // ends the turn of a control connection
}

// problemError is an error of a handshake with the problem that it shows.
type problemError struct {
	problem flow.PairProblem
	err     error
}

func (e *problemError) Error() string { return e.err.Error() }
func (e *problemError) Unwrap() error { return e.err }

func problemOf(err error) flow.PairProblem {
	var p *problemError
	if errors.As(err, &p) {
		return p.problem
	}
	return flow.PairPathDown
}

func problem(p flow.PairProblem, format string, args ...any) error {
	return &problemError{p, fmt.Errorf(format, args...)}
}

// dialer makes connections of one link.
type dialer struct {
	node      *Node
	session   *session
	options   LinkOptions
	path      *wanPath
	addresses []netip.AddrPort // in the order in which they are tried
	preface   preface.Preface
	hello     wire.Hello
	within    time.Duration // for the connect
	// early: the connection is used before the far relay's HELLO is here.
	early bool
	// overdue is called if the handshake takes longer than an answer; nil: nobody asks.
	overdue func()
	// proven is called once the far relay's key has proved that it is there; nil: nobody asks.
	proven func()
	// turn asks, once connected, whether to go on; nil: yes.
	turn func() (leave func(), mine bool)
}

// dial returns nil without an error if it is not the attempt's turn.
func (d dialer) dial(ctx context.Context) (*connection, error) {
	config, err := d.node.identity.ClientTLS(d.options.Peer)
	if err != nil {
		return nil, problem(flow.PairKeyUnknown, "%w", err)
	}
	keys := d.node.identity.PeerKeys(d.options.Peer)
	if len(keys) == 0 { // taken out meanwhile
		return nil, problem(flow.PairKeyUnknown, "no key of peer %q", d.options.Peer)
	}
	tcp, at, err := d.connect(ctx)
	if err != nil {
		return nil, problem(flow.PairPathDown, "%w", err)
	}
	leave, mine := func() {}, true
	if d.turn != nil {
		leave, mine = d.turn()
	}
	if !mine {
		tcp.Close()
		return nil, nil
	}
	c, err := d.greet(ctx, tcp, config, d.preface.Append(nil, keys[0]))
	if err != nil {
		tcp.Close()
		leave()
		if len(d.addresses) > 1 {
			d.path.hosts.Failed(at) // another one may be a relay that answers
		}
		return nil, err
	}
	c.leave = leave
	return c, nil
}

// connect races for a connection to one of the addresses.
func (d dialer) connect(ctx context.Context) (*net.TCPConn, netip.AddrPort, error) {
	racing, cancel := context.WithTimeout(ctx, d.within+time.Duration(len(d.addresses))*eyeballs.AttemptDelay)
	defer cancel()
	conn, at, err := eyeballs.Dial(racing, d.path.hosts, d.addresses, d.attempt, func(c *net.TCPConn) { c.Close() })
	if err != nil {
		return nil, at, err
	}
	if raw, err := conn.SyscallConn(); err == nil && len(d.addresses) > 1 {
		_ = raw.Control(func(fd uintptr) { halfopen.Complete(int(fd)) })
	}
	return conn, at, nil
}

// attempt connects to an address. If there are several, the connection is not acknowledged.
func (d dialer) attempt(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	over := d.path.options()
	nd := net.Dialer{Timeout: d.within, Control: func(_, _ string, c rawConn) error {
		var err error
		failed := c.Control(func(fd uintptr) {
			if err = prepare(int(fd), over, d.options); err == nil && len(d.addresses) > 1 {
				err = halfopen.Hold(int(fd))
			}
		})
		return cmp.Or(failed, err)
	}}
	over.bind(&nd)
	nd.SetMultipathTCP(false)
	conn, err := nd.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, connectError(to, err)
	}
	return conn.(*net.TCPConn), nil
}

// connectError says why a connect failed in the words of the relay's other dials.
func connectError(to netip.AddrPort, err error) error {
	var op *net.OpError
	var call *os.SyscallError
	switch {
	case errors.As(err, &call):
		err = call.Err
	case errors.As(err, &op):
		err = op.Err
	}
	if call != nil && call.Syscall == "connect" && errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("connect to %s: %w, as by a blackhole route of this host", to, err)
	}
	return fmt.Errorf("connect to %s: %w", to, err)
}

// greet sends the preface, goes through the TLS handshake and exchanges HELLO.
func (d dialer) greet(ctx context.Context, tcp *net.TCPConn, config *tls.Config, first []byte) (*connection, error) {
	bulk, err := newBulkConn(tcp)
	if err != nil {
		return nil, err
	}
	if d.options.Established != nil {
		bulk.control(d.options.Established)
	}
	bulk.corked, bulk.flushReads, bulk.tailApart = true, true, true
	if d.preface.Kind == preface.Lane {
		bulk.turns = d.node.turns
	}
	bulk.turns.begin(netip.Addr{})
	defer bulk.turns.give()
	if _, err := bulk.Write(first); err != nil {
		return nil, err
	}
	bulk.endWithin(nearHandshake, d.session.strained) // without the wait for the turn
	stop := context.AfterFunc(ctx, func() { tcp.Close() })
	defer stop()
	if d.overdue != nil {
		defer time.AfterFunc(d.session.answerWithin(pongWithin, 8), d.overdue).Stop()
	}
	conn := tls.Client(bulk, config)
	if err := conn.Handshake(); err != nil {
		return nil, d.overloaded(handshakeProblem(vanished(bulk, err)))
	}
	if d.proven != nil {
		d.proven()
	}
	if _, err := conn.Write(d.hello.Append(nil)); err != nil {
		return nil, handshakeProblem(err)
	}
	c := &connection{bulk: bulk, stream: conn, peer: d.options.Peer, path: d.path, both: d.hello.Features}
	if !d.early {
		bulk.endWithin(nearHandshake, d.session.strained)
		if c.hello, err = readHello(conn, d.hello.Features); err != nil {
			return nil, err
		}
		c.both &= c.hello.Features
	}
	return c.finish(d.preface.Kind == preface.Lane), nil
}

// readHello reads the far relay's answer to a HELLO with these features.
func readHello(r io.Reader, want wire.Features) (wire.Hello, error) {
	hello, err := wire.ReadHello(r)
	if err != nil {
		return hello, handshakeProblem(err)
	}
	if err := refusedBy(hello); err != nil {
		return hello, err
	}
	return hello, agreed(want, hello.Features)
}

// finish ends the handshake's deadline, and TLS of a lane if both ends want that.
func (c *connection) finish(lane bool) *connection {
	c.bulk.flushReads, c.bulk.strained = false, nil
	c.bulk.endBy(time.Time{})
	c.bulk.rtt, c.bulk.repeats = pathOf(c.bulk)
	c.bulk.control(keepAlive)
	if lane && c.both&wire.FeatureClear != 0 {
		c.bulk.goClear()
		c.stream = c.bulk
	}
	return c
}

// sums reports whether frames have sums: in clear nothing else finds an altered head.
func (c *connection) sums() bool {
	const both = wire.FeatureClear | wire.FeatureSums
	return c.both&both == both
}

// The keepalive probes of idle connections: more often than NATs and firewalls forget
// them, and a lane that is dead does not stay in the pool.
const (
	keepIdle     = 15 // s
	keepInterval = 5  // s
	keepCount    = 4
)

func keepAlive(fd int) {
	if idle, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE); err == nil && idle < keepIdle {
		return // the tunnel asks for more
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepIdle)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, keepInterval)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepCount)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
}

func refusedBy(h wire.Hello) error {
	switch {
	case h.Problem != "":
		return problem(toldProblem(h.Problem), "the other relay answers %q", h.Problem)
	case !h.Speaks():
		return problem(flow.PairVersion, "the other relay speaks versions %d to %d, this one %d to %d",
			h.Lowest, h.Highest, wire.LowestVersion, wire.HighestVersion)
	}
	return nil
}

// The alerts by which a peer refuses a certificate (RFC 8446, section 6.2).
var certificateAlerts = map[uint8]bool{42: true, 43: true, 44: true, 45: true, 46: true, 48: true, 49: true, 116: true}

const (
	alertNoProtocol = 120 // RFC 7301, section 3.2
	// alertBusy says that the handshake was given up for another one. Its number is one for
	// private use (RFC 8446, section 11).
	alertBusy = 224
)

// busyAlert is the record of that alert: fatal, before anything is encrypted (RFC 8446, sections
// 5.1 and 6).
var busyAlert = []byte{21, 3, 3, 0, 2, 2, alertBusy}

// handshakeProblem finds the problem that an error after the connect shows.
func handshakeProblem(err error) error {
	alert, alerted := alertOf(err)
	switch {
	case errors.As(err, new(*problemError)):
		return err
	case alerted && certificateAlerts[alert]:
		return problem(flow.PairKeyUnknown, "the other relay does not know this host's key: %w", err)
	case alerted && alert == alertBusy:
		return problem(flow.PairBusy, "the other relay has too many connections in their handshakes")
	case alerted && alert == alertNoProtocol:
		return problem(flow.PairVersion, "the other relay speaks another version: %w", err)
	case errors.Is(err, unix.ECONNRESET):
		return problem(flow.PairUnpaired, "the other host reset the connection in its handshake: %w", err)
	case errors.As(err, new(*net.OpError)), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.As(err, new(tls.RecordHeaderError)), errors.Is(err, wire.ErrMalformed), isSystem(err):
		return problem(flow.PairUnpaired, "the port answers, but no pair protocol: %w", err)
	}
	return problem(flow.PairKeyUnknown, "%w", err) // of Identity's check
}

// vanished finds that the path drops what was sent after the handshake of TCP. What each end sends
// first ends with a small segment. If that arrives, and the large one before it does not, the size is
// the reason: of this end's segments the other one acknowledges the small one alone, and of the other
// one's this end has the small one out of order, and no byte in order.
func vanished(bulk *bulkConn, err error) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	var info tcpinfo.Info
	if !kernelSays(bulk, func(i *tcpinfo.Info) bool { info = *i; return true }) {
		return err
	}
	const drops = "connected, and small segments cross the path, but one of up to %d bytes%s does not, and no ICMP message says why: %w"
	lost := info.Unacked > 0 && info.Retransmits > 0
	switch {
	case lost && info.Sacked > 0:
		return problem(flow.PairPathMTU, drops, info.SndMSS, "", err)
	case lost:
		return problem(flow.PairPathDown, "connected, but what is sent then is dropped on the way, as by a firewall: %w", err)
	case info.RcvOOOPack > 0 && info.BytesReceived == 0:
		return problem(flow.PairPathMTU, drops, info.AdvMSS, " from the far relay", err)
	}
	return err
}

// overloaded finds that the other end is one that is known to speak the protocol, and has no
// processor for its answer: its kernel has acknowledged everything.
func (d dialer) overloaded(err error) error {
	s := d.session
	s.mu.Lock()
	known := s.instance != 0
	s.mu.Unlock()
	late := problemOf(err) == flow.PairUnpaired && errors.Is(err, os.ErrDeadlineExceeded)
	if !late || !known {
		return err
	}
	return problem(flow.PairOverloaded, "the other relay has no answer in its time: %w", err)
}

// pathOf is the round trip of a connection as the kernel knows it, and how many segments it has
// sent again.
func pathOf(bulk *bulkConn) (rtt time.Duration, repeats uint32) {
	kernelSays(bulk, func(i *tcpinfo.Info) bool {
		rtt, repeats = i.RTT, i.TotalRetrans
		return true
	})
	return rtt, repeats
}

// alertOf returns the number of a TLS alert that the other end sent. crypto/tls does not
// export its type, a uint8.
func alertOf(err error) (number uint8, ok bool) {
	var remote *net.OpError
	if !errors.As(err, &remote) || remote.Op != "remote error" {
		return 0, false
	}
	if v := reflect.ValueOf(remote.Err); v.Kind() == reflect.Uint8 {
		return uint8(v.Uint()), true
	}
	return 0, false
}

// broken is an error of a handshake with one that is known to speak the protocol: it was
// the path.
func broken(err error) error {
	if problemOf(err) == flow.PairUnpaired && (isSystem(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) {
		return problem(flow.PairPathDown, "%w", err)
	}
	return err
}

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
	config := n.identity.ServerTLS().Clone()
	offered := offersAnother(config, &bulk.begun)
	conn := tls.Server(bulk, config)
	if err := conn.Handshake(); err != nil {
		_ = bulk.flush() // the alert
		if *offered {
			return nil, problem(flow.PairVersion, "the near relay speaks another version: %w", err)
		}
		return nil, broken(handshakeProblem(err))
	}
	peer, err := n.peerOf(conn)
	if err != nil {
		return nil, err
	}
	bulk.endWithin(handshakeTimeout, n.strained)
	hello, err := wire.ReadHello(conn)
	if err != nil {
		return nil, broken(handshakeProblem(err))
	}
	older := !lane && n.known(peer, hello)
	mine := n.hello(hello.Session, a.Tunnel())
	mine.Features = hello.Features & (wire.FeaturePad | wire.FeatureNoResume | wire.FeatureLanes | wire.FeatureAhead | wire.FeatureCompress | wire.FeatureHeld | wire.FeatureSealed | wire.FeatureSums | wire.FeatureSent | wire.FeatureTrouble)
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
	case !older && n.full(peer, hello):
		refusal = tooMany(peer)
	case n.draining.Load() && !lane && !older:
		refusal = problem(flow.PairDraining, "this process takes no new sessions")
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
	return (&connection{bulk: bulk, stream: conn, hello: hello, peer: peer, both: mine.Features}).finish(lane), nil
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

func (n *Node) peerOf(conn *tls.Conn) (string, error) {
	certificates := conn.ConnectionState().PeerCertificates
	if len(certificates) == 0 {
		return "", problem(flow.PairKeyUnknown, "no certificate")
	}
	key, ok := certificates[0].PublicKey.(ed25519.PublicKey)
	if !ok {
		return "", problem(flow.PairKeyUnknown, "key of type %T", certificates[0].PublicKey)
	}
	peer, known := n.identity.PeerOf(key)
	if !known {
		return "", problem(flow.PairKeyUnknown, "a key of no peer")
	}
	return peer, nil
}

// nearHello is the HELLO of a near end, which also says how long its flows wait for a
// lane, since the far end waits as long, and of which tunnel it is.
func (n *Node) nearHello(s *session, o LinkOptions) wire.Hello {
	h := n.hello(s.id, o.Tunnel)
	h.Resume, h.Features, h.Origin = s.waits(o), s.features()|wire.FeatureLanes|wire.FeatureAhead|wire.FeatureHeld|wire.FeatureSent|wire.FeatureTrouble, o.Origin
	h.Features &^= n.options.Without
	h.Boot = n.options.Boot
	return h
}

func (n *Node) hello(session uint64, tunnel string) wire.Hello {
	return wire.Hello{Lowest: wire.LowestVersion, Highest: wire.HighestVersion, Instance: n.instance,
		Session: session, Tunnel: tunnel, Release: n.options.Release}
}
