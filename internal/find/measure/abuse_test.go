package measure

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"longhaul/test/nettest"
)

// abuser speaks to a server in whatever way a test has it.
type abuser struct {
	t       *testing.T
	address string
	cookie  cookie
	plain   bool // speaks as iperf3, without longhaul's own parameters
}

func newAbuser(t *testing.T, address string) *abuser {
	return &abuser{t: t, address: address, cookie: newCookie()}
}

// dial connects and says so many bytes of the cookie.
func (a *abuser) dial(cookieBytes int) net.Conn {
	a.t.Helper()
	conn, err := net.Dial("tcp", a.address)
	must(a.t, err)
	must(a.t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = conn.Write(a.cookie[:cookieBytes])
	must(a.t, err)
	return conn
}

// reach takes a test up to a step, and returns its connections, the control
// connection first.
func (a *abuser) reach(step string, o Options) (conns []net.Conn) {
	a.t.Helper()
	var control net.Conn
	// A test that was just left may have to be noticed first.
	nettest.Eventually(a.t, patience, func() bool {
		control = a.dial(cookieBytes)
		if step == "cookie" {
			return true
		}
		got, err := readState(control)
		must(a.t, err)
		if got == accessDenied {
			control.Close()
		}
		return got == paramExchange
	}, func() string { return "the server goes on with a test whose client is gone" })
	conns = []net.Conn{control}
	if step == "cookie" {
		return conns
	}
	if step == "parameters asked" {
		return conns
	}
	p := o.withDefaults().parameters()
	if a.plain {
		p.Longhaul = nil
	}
	b, err := json.Marshal(p)
	must(a.t, err)
	b = append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
	if step == "half the parameters" {
		_, err := control.Write(b[:len(b)/2])
		must(a.t, err)
		return conns
	}
	_, err = control.Write(b)
	must(a.t, err)
	readStates(a.t, control, createStreams)
	if step == "streams asked" {
		return conns
	}
	conns = append(conns, a.dial(cookieBytes))
	if step == "one stream of two" {
		return conns
	}
	conns = append(conns, a.dial(cookieBytes))
	readStates(a.t, control, testStart, testRunning)
	if o.Direction != Receive {
		_, err = conns[1].Write(make([]byte, 10_000))
		must(a.t, err)
	}
	if step != "running" {
		a.finish(step, control)
	}
	return conns
}

// finish takes a test that runs up to a later step, or to the client's last.
func (a *abuser) finish(step string, control net.Conn) {
	a.t.Helper()
	must(a.t, writeState(control, testEnd))
	readStates(a.t, control, exchangeResults)
	if step == "results asked" {
		return
	}
	must(a.t, writeMessage(control, results{}))
	if step == "results told" {
		return
	}
	var theirs results
	must(a.t, readMessage(control, maxResults, &theirs))
	readStates(a.t, control, displayResults)
}

var steps = []string{
	"cookie", "parameters asked", "half the parameters", "streams asked", "one stream of two",
	"running", "results asked", "results told", "results read",
}

// serves fails the test unless a good test goes through, as soon as one that was
// just left has been noticed.
func serves(t *testing.T, address string, token Token) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := ErrBusy
	for errors.Is(err, ErrBusy) && ctx.Err() == nil {
		_, err = Run(ctx, address, Options{Bytes: 100_000, Streams: 3, Direction: Both, Token: token})
	}
	if err != nil {
		t.Fatalf("a good test: %v", err)
	}
}

// TestVanishingClients: at every step, with an end and with a reset.
func TestVanishingClients(t *testing.T) {
	t.Parallel()
	address, _ := serve(t)
	for _, step := range steps {
		for _, reset := range []bool{false, true} {
			for _, direction := range []Direction{Send, Receive} {
				conns := newAbuser(t, address).reach(step, Options{Streams: 2, Direction: direction, PacingBps: testRate})
				for _, conn := range conns {
					if reset {
						must(t, conn.(*net.TCPConn).SetLinger(0))
					}
					must(t, conn.Close())
				}
			}
		}
		serves(t, address, Token{})
	}
}

// TestHalfOpenConnections: more connections than are kept, each silent at some
// point before it has a test, hold up nobody and are let go.
func TestHalfOpenConnections(t *testing.T) {
	t.Parallel()
	address, _ := serve(t)
	var idle []net.Conn
	for i := range 3 * maxUnplaced {
		a := newAbuser(t, address)
		switch i % 3 {
		case 0:
			idle = append(idle, a.dial(0))
		case 1:
			idle = append(idle, a.dial(cookieBytes/2))
		case 2:
			idle = append(idle, a.reach("half the parameters", Options{Duration: time.Second})...)
		}
		if i%maxUnplaced == 0 {
			serves(t, address, Token{})
		}
	}
	serves(t, address, Token{})
	// Those that gave way have been closed, and the others are.
	closed := 0
	for _, conn := range idle[:2*maxUnplaced] {
		must(t, conn.SetReadDeadline(time.Now().Add(patience)))
		_, err := io.Copy(io.Discard, conn)
		if !isTimeout(err) {
			closed++
		}
	}
	if closed < 2*maxUnplaced {
		t.Errorf("%d of %d connections that gave way were closed", closed, 2*maxUnplaced)
	}
	for _, conn := range idle {
		conn.Close()
	}
}

// TestSilentClientsWithTokens: a token is in use only once it has been shown.
func TestSilentClientsWithTokens(t *testing.T) {
	t.Parallel()
	token := Token{"a", goodSecret}
	address, _ := serve(t, token)
	var idle []net.Conn
	for range maxUnplaced / 2 {
		control := newAbuser(t, address).dial(cookieBytes)
		readStates(t, control, paramExchange)
		must(t, writeMessage(control, Options{Duration: time.Second, Token: token}.withDefaults().parameters()))
		readStates(t, control, showToken) // and there it stays
		idle = append(idle, control)
	}
	serves(t, address, token)
	for _, conn := range idle {
		conn.Close()
	}
}

// TestTooManyStreams: of connections beyond those of a test, with its cookie, some
// are kept and closed with it, and more are closed at once.
func TestTooManyStreams(t *testing.T) {
	t.Parallel()
	s, address, _ := startServer(t)
	a := newAbuser(t, address)
	conns := a.reach("running", Options{Streams: 2, Duration: time.Minute})
	expectClosed := func(conns []net.Conn, when string) {
		t.Helper()
		for _, conn := range conns {
			if _, err := io.Copy(io.Discard, conn); err != nil && isTimeout(err) {
				t.Fatalf("a connection too many is open %s", when)
			}
			conn.Close()
		}
	}
	var kept, more []net.Conn
	s.mu.Lock()
	arrived := s.tests[a.cookie].arrived
	s.mu.Unlock()
	for len(kept) < cap(arrived) {
		for range min(maxUnplaced/2, cap(arrived)-len(kept)) { // few enough that none gives way to another
			kept = append(kept, a.dial(cookieBytes))
		}
		nettest.Eventually(t, patience, func() bool { return len(arrived) == len(kept) },
			func() string {
				return fmt.Sprintf("%d of %d connections with a test's cookie come to it", len(arrived), len(kept))
			})
	}
	for range maxStreams {
		more = append(more, a.dial(cookieBytes))
	}
	expectClosed(more, "during the test")
	for _, conn := range conns {
		conn.Close()
	}
	expectClosed(kept, "after the test")
	serves(t, address, Token{})
}

func isTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// TestGarbage: random bytes, alone and in the place of every message, and
// messages that say they are huge.
func TestGarbage(t *testing.T) {
	t.Parallel()
	address, _ := serve(t)
	random := rand.New(rand.NewPCG(1, 2))
	garbage := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return b
	}
	send := func(conn net.Conn, b []byte) {
		_, _ = conn.Write(b) // the server may have had enough of it
		_ = conn.(*net.TCPConn).CloseWrite()
		if _, err := io.Copy(io.Discard, conn); err != nil && isTimeout(err) {
			t.Error("the server keeps a connection that says nothing of use")
		}
		conn.Close()
	}
	for range 50 {
		send(newAbuser(t, address).dial(0), garbage(random.IntN(3000)))
	}
	for _, message := range [][]byte{
		garbage(500),
		{0xff, 0xff, 0xff, 0xff, '{'},
		append([]byte{0, 4, 0, 1}, bytes.Repeat([]byte{'['}, maxRequest+1)...),
		append([]byte{0, 4, 0, 0}, bytes.Repeat([]byte{'['}, maxRequest)...),
		append([]byte{0, 4, 0, 0}, bytes.Repeat([]byte(`{"longhaul":`), maxRequest/12)...),
	} {
		for _, step := range []string{"parameters asked", "running", "results asked"} {
			conns := newAbuser(t, address).reach(step, Options{Streams: 2, Duration: time.Second})
			send(conns[0], message)
			for _, conn := range conns[1:] {
				conn.Close()
			}
		}
		serves(t, address, Token{})
	}
}

// TestSlowSenders: bytes that come one by one do not keep a connection beyond its
// time.
func TestSlowSenders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := nettest.ListenPipe()
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- (&Server{}).Serve(ctx, l) }()
		begun := time.Now()
		for range 10 {
			conn, err := l.Dial()
			must(t, err)
			go func() {
				defer conn.Close()
				for range cookieBytes - 1 {
					if _, err := conn.Write([]byte{'a'}); err != nil {
						break
					}
					time.Sleep(600 * time.Millisecond) // the bubble's: all of them would take 22 s
				}
				if passed := time.Since(begun); passed < cookiePatience || passed > cookiePatience+time.Second {
					t.Errorf("a slow connection was closed after %v, want %v", passed, cookiePatience)
				}
			}()
		}
		time.Sleep(2 * cookiePatience)
		cancel()
		must(t, <-served)
	})
}

// TestSlowSendersHoldUpNobody: while bytes of some come one by one, others are served.
func TestSlowSendersHoldUpNobody(t *testing.T) {
	t.Parallel()
	address, _ := serve(t)
	var slow []net.Conn
	for range 10 {
		conn := newAbuser(t, address).dial(1)
		defer conn.Close()
		slow = append(slow, conn)
	}
	for range 5 {
		serves(t, address, Token{})
		for _, conn := range slow {
			_, _ = conn.Write([]byte{'a'}) // the server may have closed it by now
		}
	}
}

// TestConnectionsAtOnce: many clients at once, of which one at a time is served
// and the others learn that it is.
func TestConnectionsAtOnce(t *testing.T) {
	t.Parallel()
	address, _ := serve(t)
	var group sync.WaitGroup
	var mu sync.Mutex
	served, others := 0, []error{}
	for range 30 {
		group.Go(func() {
			_, err := Run(t.Context(), address, Options{Bytes: 100_000, Streams: 4})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				served++
			} else if !errors.Is(err, ErrBusy) {
				others = append(others, err)
			}
		})
	}
	group.Wait()
	if served == 0 || len(others) > 0 {
		t.Errorf("%d were served; errors other than that the server is busy: %v", served, others)
	}
	serves(t, address, Token{})
}

// TestStreamsEndFirst: iperf3's client may wait for the end of its streams after it has
// ended the test, and before it looks at the control connection again. It hung when the
// server kept them open until it had the client's results.
func TestStreamsEndFirst(t *testing.T) {
	address, _ := serve(t)
	a := newAbuser(t, address)
	a.plain = true
	conns := a.reach("running", Options{Direction: Receive, Streams: 2})
	control, streams := conns[0], conns[1:]
	must(t, writeState(control, testEnd))
	for _, s := range streams {
		_, err := io.Copy(io.Discard, s) // its deadline is the test's patience
		must(t, err)
	}
	readStates(t, control, exchangeResults)
	must(t, writeMessage(control, results{}))
	must(t, readMessage(control, maxResults, &results{}))
	readStates(t, control, displayResults)
	must(t, writeState(control, done))
}
