package integrity

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

const patience = 60 * time.Second

var realWaits = wait

// In these tests everything arrives in the end, even on a busy machine. Tests
// of missing events use synctest and the real waits.
func TestMain(m *testing.M) {
	wait = waits{
		connect: time.Hour, reply: time.Hour, answer: time.Hour, hello: time.Hour, proof: time.Hour, refuse: time.Hour,
		sent: time.Hour, stalled: time.Hour, exchange: time.Hour, settled: time.Millisecond,
	}
	nettest.Main(m)
}

// stand is a place for relays, targets and middleboxes on the loopback device.
type stand struct {
	t       *testing.T
	mu      sync.Mutex
	closers []io.Closer
	closed  bool
	stops   []func()
}

func newStand(t *testing.T) *stand {
	t.Helper()
	nettest.CheckLeaks(t)
	s := &stand{t: t}
	t.Cleanup(func() {
		s.mu.Lock()
		s.closed = true
		for _, c := range s.closers {
			c.Close()
		}
		s.mu.Unlock()
		for _, stop := range s.stops {
			stop()
		}
	})
	return s
}

// keep closes something at the end of the test.
func (s *stand) keep(c io.Closer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		c.Close()
	}
	s.closers = append(s.closers, c)
}

// listen serves connections until the test ends.
func (s *stand) listen(serve func(*net.TCPConn)) netip.AddrPort {
	s.t.Helper()
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(s.t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	s.stops = append(s.stops, tcpserver.Serve(l, func(c net.Conn) { serve(c.(*net.TCPConn)) }))
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func (s *stand) target() netip.AddrPort {
	return s.listen(func(c *net.TCPConn) { tcpserver.Discard(c) })
}

// nobody is an address without a listener.
func (s *stand) nobody() netip.AddrPort {
	return netip.MustParseAddrPort(nettest.FreeAddress(s.t, "127.0.0.1"))
}

// relay answers checks and forwards ordinary flows, as a relay does.
func (s *stand) relay(server Server, to netip.AddrPort) netip.AddrPort {
	s.t.Helper()
	return s.relayOf(server, to, time.Now)
}

// relayLosingTarget is a relay whose target accepts and then leaves. The relay
// waits until it has left.
func (s *stand) relayLosingTarget(server Server, leave func(*net.TCPConn)) (relay, target netip.AddrPort) {
	s.t.Helper()
	connected := make(chan struct{})
	connect := sync.OnceFunc(func() { close(connected) })
	target = s.listen(func(c *net.TCPConn) {
		select {
		case <-connected:
			leave(c)
		case <-s.t.Context().Done():
		}
	})
	return s.relayOf(server, target, func() time.Time {
		connect()
		return time.Now().Add(time.Hour)
	}), target
}

// relayOf is a relay whose target has accepted at the time that connected
// returns.
func (s *stand) relayOf(server Server, to netip.AddrPort, connected func() (since time.Time)) netip.AddrPort {
	s.t.Helper()
	server.Dial = dialTCP
	return s.listen(func(client *net.TCPConn) {
		f := Flow{
			Client: client, Forward: to.String(), Dialed: to,
			Local: client.LocalAddr().(*net.TCPAddr).AddrPort(), Peer: client.RemoteAddr().(*net.TCPAddr).AddrPort(),
		}
		f.Source = f.Peer.Addr()
		target, err := dialTCP(s.t.Context(), to)
		if err != nil {
			f.Reason = ReasonOf(err)
		} else {
			s.keep(target)
			defer target.Close()
			f.Target, f.Since = target, connected()
		}
		if !server.Serve(s.t.Context(), f) {
			return
		}
		_ = client.SetDeadline(time.Time{})
		_ = target.SetDeadline(time.Time{})
		s.copyBoth(client, target.(*net.TCPConn), nil)
	})
}

func dialTCP(ctx context.Context, to netip.AddrPort) (Conn, error) {
	var d net.Dialer
	d.SetMultipathTCP(false)
	conn, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// meddle may change the bytes of a direction; offset is that of the first byte.
type meddle func(direction string, offset int64, b []byte) []byte

func (s *stand) copyBoth(client, target *net.TCPConn, m meddle) {
	var both sync.WaitGroup
	one := func(from, to *net.TCPConn, direction string) {
		defer to.CloseWrite()
		b := make([]byte, 32<<10)
		for offset := int64(0); ; {
			n, err := from.Read(b)
			out := b[:n]
			if m != nil && n > 0 {
				out = m(direction, offset, out)
			}
			offset += int64(n)
			if _, err := to.Write(out); err != nil {
				return
			}
			if err != nil {
				return
			}
		}
	}
	both.Go(func() { one(client, target, upwards) })
	one(target, client, downwards)
	both.Wait()
}

// middle is a proxy that does not know checks.
func (s *stand) middle(to netip.AddrPort, m meddle) netip.AddrPort {
	return s.listen(func(client *net.TCPConn) {
		target, err := dialTCP(s.t.Context(), to)
		if err != nil {
			return
		}
		s.keep(target)
		defer target.Close()
		s.copyBoth(client, target.(*net.TCPConn), m)
	})
}

// flip alters one byte of a direction.
func flip(direction string, at int64) meddle {
	return func(d string, offset int64, b []byte) []byte {
		if i := at - offset; d == direction && i >= 0 && i < int64(len(b)) {
			b[i] ^= 0x20
		}
		return b
	}
}

var testKey = NewKey()

func server(name string, next Next) Server {
	return Server{
		Identity: Identity{Version: "test", Host: name, Tunnel: "t", Instance: name}, Keys: Keys{First: testKey}, Next: next,
		Guard: newGuard(NewMemory()),
	}
}

func newGuard(m *Memory) *Guard { return NewGuard(m, func(string, netip.AddrPort) {}) }

// walk checks a chain that begins at an address.
func (s *stand) walk(to netip.AddrPort, next Next, bytes int64) Chain {
	s.t.Helper()
	return s.walkWith(testKey, to, next, bytes)
}

func (s *stand) walkWith(key Key, to netip.AddrPort, next Next, bytes int64) Chain {
	s.t.Helper()
	return s.walkFrom(NewMemory(), key, to, next, bytes)
}

func (s *stand) walkFrom(m *Memory, key Key, to netip.AddrPort, next Next, bytes int64) Chain {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	return Walk{
		Self: Identity{Host: "here", Instance: "here"}, Forward: to.String(), Next: next, Key: key, Bytes: bytes, Memory: m,
		Dial: func(ctx context.Context) (Conn, netip.AddrPort, error) {
			conn, err := dialTCP(ctx, to)
			return conn, to, err
		},
	}.Run(ctx)
}

func kinds(c Chain) (all []Kind) {
	for _, h := range c.Hops {
		all = append(all, h.Kind)
	}
	return all
}
