package pair

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/eyeballs"
	"longhaul/internal/sys/halfopen"
)

// dialer makes connections of one link.
type dialer struct {
	node      *process
	session   *session
	options   LinkOptions
	peer      string // whose key is to answer: a host's, or that of any host of a site
	path      *wanPath
	addresses []netip.AddrPort // in the order in which they are tried
	known     *eyeballs.Host   // what is known of them; nil: nothing
	preface   preface.Preface
	hello     wire.Hello
	// names is HELLO to the host that has answered, in place of hello; nil: that.
	names  func(host) wire.Hello
	within time.Duration // for the connect
	// early: the connection is used before the far relay's HELLO is here.
	early bool
	// overdue is called if the handshake takes longer than an answer; nil: nobody asks.
	overdue func()
	// proven is called once the far relay's key has proved that it is there; nil: nobody asks.
	proven func()
	// met gets what an attempt to connect to an address has met; nil: nobody asks.
	met func(netip.AddrPort, error)
	// turn asks, once connected, whether to go on; nil: yes.
	turn func() (leave func(), mine bool)
	// greets asks, once the far relay is proven, whether to send HELLO; nil: yes.
	greets func(*bulkConn) bool
}

// errNotGreeted is the error of an attempt that sends no HELLO, since another one has.
var errNotGreeted = errors.New("another attempt has greeted")

// dial returns nil without an error if it is not the attempt's turn, or another one has greeted.
func (d dialer) dial(ctx context.Context) (*connection, error) {
	config, err := d.node.identity.ClientTLS(d.peer)
	if err != nil {
		return nil, problem(flow.PairKeyUnknown, "%w", err)
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
	c, err := d.greetAny(ctx, tcp, at, config)
	if err != nil {
		leave()
		if err == errNotGreeted {
			return nil, nil
		}
		if len(d.addresses) > 1 {
			d.known.Failed(at) // another one may be a relay that answers
		}
		return nil, err
	}
	d.node.book.note(d.options.Tunnel, at, c.who)
	c.leave = leave
	return c, nil
}

// prefaceRounds bounds how often each host of a site is asked for. Several may share the address, so that
// each connection leads to one of them: with n hosts all rounds miss once in e to the power of their number.
const prefaceRounds = 5

// greetAny goes through the handshake with a host of those that are meant. A preface names one, which is
// not known if a site is meant. Another one resets the connection as any stranger's, so each is asked for
// in turn: first the one that was last at the address. After the first round chance has it, so as not to
// keep step with a box that leads connections to hosts in turn.
func (d dialer) greetAny(ctx context.Context, tcp *net.TCPConn, at netip.AddrPort, config *tls.Config) (*connection, error) {
	hosts := d.node.hostsFor(d.peer, d.options.Tunnel, at)
	if len(hosts) == 0 { // taken out meanwhile
		tcp.Close()
		return nil, problem(flow.PairKeyUnknown, "no key of peer %q", d.peer)
	}
	for i := 1; ; i++ {
		name := hosts[min(i, len(hosts))-1]
		if i > len(hosts) {
			name = hosts[rand.N(len(hosts))]
		}
		var c *connection
		err := problem(flow.PairKeyUnknown, "no key of peer %q", name)
		if key, known := d.node.identity.PrefaceKey(name); known {
			c, err = d.greet(ctx, tcp, config, d.preface.AppendFor(nil, key))
		}
		if err == nil {
			return c, nil
		}
		tcp.Close()
		if len(hosts) == 1 || i == prefaceRounds*len(hosts) || problemOf(err) != flow.PairUnpaired || errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil {
			return nil, d.orElse(ctx, at, name, err)
		}
		var again error
		if tcp, again = d.attempt(ctx, at); again != nil {
			return nil, problem(flow.PairPathDown, "%w", again)
		}
		if raw, failed := tcp.SyscallConn(); failed == nil && len(d.addresses) > 1 {
			_ = raw.Control(func(fd uintptr) { halfopen.Complete(int(fd)) })
		}
	}
}

// orElse is why a host has refused a preface for a control connection: it may be another one of the same site,
// where the tunnel names one. That is worth a look, but not at each attempt.
func (d dialer) orElse(ctx context.Context, at netip.AddrPort, name string, refused error) error {
	s := d.session
	if d.preface.Kind != preface.Control || name != s.peer || problemOf(refused) != flow.PairUnpaired || errors.Is(refused, os.ErrDeadlineExceeded) {
		return refused
	}
	now := time.Now()
	s.mu.Lock()
	due := now.Sub(s.sought) > refusedEvery/2 // ticks are not exact
	if due {
		s.sought = now
	}
	s.mu.Unlock()
	site := flow.SiteOf(name)
	config, err := d.node.identity.ClientTLS(site)
	if !due || site == "" || err != nil {
		return refused
	}
	for _, other := range d.node.identity.Hosts(site) {
		if other != name && d.answers(ctx, at, other, config) {
			return problem(flow.PairKeyUnknown, "%s at %s: %s", flow.AnotherHost, at, other)
		}
	}
	return refused
}

// answers reports whether a host proves its key at an address. Nothing is asked of it.
func (d dialer) answers(ctx context.Context, at netip.AddrPort, name string, config *tls.Config) bool {
	key, known := d.node.identity.PrefaceKey(name)
	if !known {
		return false
	}
	tcp, err := d.attempt(ctx, at)
	if err != nil {
		return false
	}
	defer tcp.Close()
	if raw, failed := tcp.SyscallConn(); failed == nil && len(d.addresses) > 1 {
		_ = raw.Control(func(fd uintptr) { halfopen.Complete(int(fd)) })
	}
	within, cancel := context.WithTimeout(ctx, nearHandshake)
	defer cancel()
	if _, err := tcp.Write(preface.Preface{Kind: preface.Control}.AppendFor(nil, key)); err != nil {
		return false
	}
	return tls.Client(tcp, config).HandshakeContext(within) == nil
}

// connect races for a connection to one of the addresses.
func (d dialer) connect(ctx context.Context) (*net.TCPConn, netip.AddrPort, error) {
	racing, cancel := context.WithTimeout(ctx, d.within+time.Duration(len(d.addresses))*eyeballs.AttemptDelay)
	defer cancel()
	conn, at, err := eyeballs.Dial(racing, d.known, d.addresses, d.attempt, func(c *net.TCPConn) { c.Close() })
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
	nd := net.Dialer{Timeout: d.within, Control: func(_, _ string, c syscall.RawConn) error {
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
	if d.met != nil {
		d.met(to, err)
	}
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
		_ = bulk.flush() // the alert
		return nil, d.overloaded(certified(config.RootCAs != nil, handshakeProblem(vanished(bulk, err))))
	}
	if d.proven != nil {
		d.proven()
	}
	who, err := d.node.hostOf(d.node.identity.Proved(conn.ConnectionState()))
	if err != nil {
		return nil, err
	}
	who.certified = config.RootCAs != nil
	if d.names != nil {
		d.hello = d.names(who)
	}
	if d.greets != nil && !d.greets(bulk) {
		return nil, errNotGreeted
	}
	if _, err := conn.Write(d.hello.Append(nil)); err != nil {
		return nil, handshakeProblem(err)
	}
	c := &connection{bulk: bulk, stream: conn, who: who, path: d.path, both: d.hello.Features}
	if !d.early {
		bulk.endWithin(nearHandshake, d.session.strained)
		if c.hello, err = readHello(conn, d.hello.Features); err != nil {
			return nil, certified(who.certified, err)
		}
		c.both &= c.hello.Features
	}
	return c.finish(d.preface.Kind == preface.Lane), nil
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
	return problem(flow.PairOverloaded, "%w", err)
}

// nearHello is the HELLO of a near end, which also says how long its flows wait for a
// lane, since the far end waits as long, and of which tunnel it is.
func (r *relation) nearHello(o LinkOptions) wire.Hello {
	h := r.node.hello(r.id, o.Tunnel)
	h.Resume, h.Origin = r.waits(o), o.Origin
	h.Features = r.features() | wire.FeatureLanes | wire.FeatureAhead | wire.FeatureHeld | wire.FeatureSent | wire.FeatureTrouble |
		wire.FeatureAddress | wire.FeatureOffset | wire.FeatureTrace
	h.Features &^= r.node.options.Without
	h.Boot = r.node.options.Boot
	return h
}
