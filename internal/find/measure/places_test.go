package measure

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"longhaul/internal/sys/connsource"
)

// guest is a connection from an address, and nothing else.
type guest struct {
	net.Conn
	address netip.Addr
}

func (g guest) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(g.address, 50000))
}

func from(address string) *guest { return &guest{address: netip.MustParseAddr(address)} }

// enters has a connection enter, and returns whose place it takes.
func enters(p *places, g *guest) *guest {
	out, _ := p.enter(placeKey{source: connsource.Of(g)}, g).(*guest)
	return out
}

// TestPlacesOfAFlood: one source floods, and loses its own oldest each time.
func TestPlacesOfAFlood(t *testing.T) {
	var p places
	var flood []*guest
	honest := []*guest{from("192.0.2.1"), from("192.0.2.2"), from("192.0.2.2"), from("2001:db8::1")}
	for _, g := range honest {
		if enters(&p, g) != nil {
			t.Fatal("a connection loses its place although there are others")
		}
	}
	for i := range 100 * maxUnplaced {
		// The addresses of one host's network are one source.
		g := from(fmt.Sprintf("2001:db8:1:1::%x", i%60000+1))
		flood = append(flood, g)
		if out := enters(&p, g); out != nil {
			if out != flood[0] {
				t.Fatalf("connection %d of the flood takes the place of %v, want of its own oldest", i, out.address)
			}
			flood = flood[1:]
		}
	}
	if len(flood)+len(honest) != maxUnplaced {
		t.Errorf("the flood has %d places, want all but %d of %d", len(flood), len(honest), maxUnplaced)
	}
	for _, g := range honest {
		if !p.leave(g) || p.leave(g) {
			t.Errorf("%v has no place", g.address)
		}
	}
	for _, g := range flood {
		if !p.leave(g) {
			t.Error("one of the flood has no place")
		}
	}
	if p.shared != 0 || len(p.taken) != 0 {
		t.Errorf("%d places are taken by nobody, of %d sources", p.shared, len(p.taken))
	}
}

// TestPlacesOfManySources: as many as there are, they get the same.
func TestPlacesOfManySources(t *testing.T) {
	for _, sources := range []int{2, 7, maxUnplaced - 1, maxUnplaced} {
		var p places
		honest := from("192.0.2.1")
		enters(&p, honest)
		for i := range 10 * maxUnplaced {
			g := from(fmt.Sprintf("198.18.%d.%d", i%(sources-1)/250, i%(sources-1)%250))
			if out := enters(&p, g); out == honest {
				t.Fatalf("%d sources: one of them takes the place of another that has less", sources)
			}
		}
		least, most := maxUnplaced, 0
		for key, of := range p.taken {
			if key.source != connsource.Of(honest) {
				least, most = min(least, len(of)), max(most, len(of))
			}
		}
		if p.shared != maxUnplaced || most-least > 1 {
			t.Errorf("%d sources: %d places, %d to %d of each", sources, p.shared, least, most)
		}
	}
	// More sources than places: each is there for as long as any other.
	var p places
	var there []*guest
	for i := range 10 * maxUnplaced {
		g := from(fmt.Sprintf("198.18.%d.%d", i/250, i%250))
		there = append(there, g)
		if out := enters(&p, g); out != nil {
			if out != there[0] {
				t.Fatalf("%v loses its place, want the oldest, %v", out.address, there[0].address)
			}
			there = there[1:]
		}
	}
	if len(there) != maxUnplaced || p.shared != maxUnplaced {
		t.Errorf("%d connections have places, want %d", len(there), maxUnplaced)
	}
}

// TestPlacesOfATest: the source of a test that is under way has places beside
// those that are shared, and no more than its streams need.
func TestPlacesOfATest(t *testing.T) {
	var p places
	for range 2 * maxUnplaced {
		enters(&p, from("192.0.2.2"))
	}
	key := placeKey{connsource.Of(from("192.0.2.1")), true}
	first := from("192.0.2.1")
	for i := range 2*maxStreams + 1 {
		g := first
		if i > 0 {
			g = from("192.0.2.1")
		}
		if out := p.enter(key, g); i < 2*maxStreams && out != nil || i == 2*maxStreams && out != net.Conn(first) {
			t.Fatalf("stream %d takes the place of %v", i, out)
		}
	}
	if p.shared != maxUnplaced || len(p.taken[key]) != 2*maxStreams {
		t.Errorf("%d places are shared, and the test's source has %d", p.shared, len(p.taken[key]))
	}
}

// flood holds and opens again connections from an address.
type flood struct {
	t       *testing.T
	from    net.IP
	address string
	held    []net.Conn
}

// again replaces all connections by more than the server has places for. When it
// returns the server has seen them all.
func (f *flood) again() {
	before := f.held
	f.held = nil
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: f.from}}
	for range maxUnplaced + 50 {
		conn, err := dialer.Dial("tcp", f.address)
		must(f.t, err)
		c := newCookie()
		_, _ = conn.Write(c[:]) // it may have lost its place
		f.held = append(f.held, conn)
	}
	last := f.held[len(f.held)-1]
	must(f.t, last.SetReadDeadline(time.Now().Add(patience)))
	_, err := last.Read(make([]byte, 1))
	must(f.t, err)
	for _, conn := range before {
		conn.Close()
	}
}

func (f *flood) close() {
	for _, conn := range f.held {
		conn.Close()
	}
}

// stepConn has something happen before every step of a client.
type stepConn struct {
	net.Conn
	before func()
}

func (c stepConn) Write(b []byte) (int, error) {
	c.before()
	return c.Conn.Write(b)
}

// TestFlood: one source opens more connections than there are places for between
// any two steps of a client from another, whose test goes through. At 1818be3 the
// client's connection gave way to the first of these floods.
func TestFlood(t *testing.T) {
	token := Token{"a", goodSecret}
	for name, tokens := range map[string][]Token{"with tokens": {token}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			s := &Server{Tokens: tokens}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() { served <- s.Serve(ctx, l) }()
			defer func() {
				cancel()
				must(t, <-served)
			}()
			f := &flood{t: t, from: net.IPv4(127, 0, 0, 2), address: l.Addr().String()}
			defer f.close()
			floods := 0
			dial := func(ctx context.Context, network, address string, control Control) (net.Conn, error) {
				dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 3)}, Control: control}
				dialer.SetMultipathTCP(false)
				conn, err := dialer.DialContext(ctx, network, address)
				if err != nil || control != nil {
					return conn, err // a stream
				}
				return stepConn{conn, func() { floods++; f.again() }}, nil
			}
			summary, err := Run(t.Context(), f.address, Options{Bytes: 100_000, Streams: 4, Token: token, Dialer: dial, Patience: patience})
			must(t, err)
			if n := len(summary.Streams); n != 4 || floods < 5 {
				t.Errorf("%d streams, and %d floods", n, floods)
			}
		})
	}
}

// TestStreamsInAFlood: all streams of a test connect before any of them says what
// it is for, and then others flood. At 1818be3 only the last 64 were kept, without
// any flood.
func TestStreamsInAFlood(t *testing.T) {
	token := Token{"a", goodSecret}
	address, _ := serve(t, token)
	client := newAbuser(t, address)
	control := client.dial(cookieBytes)
	defer control.Close()
	readStates(t, control, paramExchange)
	must(t, writeMessage(control, Options{Bytes: 1000, Streams: maxStreams, Direction: Both, Token: token}.withDefaults().parameters()))
	readStates(t, control, showToken)
	var asked challenge
	_, err := io.ReadFull(control, asked[:])
	must(t, err)
	_, err = control.Write(token.answer(asked, client.cookie))
	must(t, err)
	readStates(t, control, createStreams)

	var streams []net.Conn
	for range 2 * maxStreams {
		conn := client.dial(0)
		defer conn.Close()
		streams = append(streams, conn)
	}
	f := &flood{t: t, from: net.IPv4(127, 0, 0, 2), address: address}
	defer f.close()
	f.again()
	for i, conn := range streams {
		if _, err := conn.Write(client.cookie[:]); err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
	}
	readStates(t, control, testStart, testRunning)
}
