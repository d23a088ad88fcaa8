package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"longhaul/internal/sys/connsource"
	"longhaul/internal/words/sorted"
	"longhaul/internal/words/units"
)

// Server serves one test at a time, or with tokens one at a time for each.
type Server struct {
	// Started and Ended are called for each test, if they are not nil; Ended also for
	// tests that were refused before they started. A test that ended because Serve did
	// has [ErrInterrupted].
	Started func(client net.Addr, p Parameters)
	Ended   func(client net.Addr, p Parameters, moved Moved, err error)

	Version string // of the program, for clients

	// Tokens are what a client must show one of, if there are any.
	Tokens []Token

	Limits Limits // of what clients may ask for

	mu     sync.Mutex
	tests  map[cookie]*serverTest // that have been agreed on
	places places                 // of connections that are not known yet to belong to a test
}

// Moved is what the server's side of a test has moved, by its own count.
type Moved struct {
	SentBytes, ReceivedBytes int64
	Elapsed                  time.Duration // without the omitted start
}

// serverTest is a test that was asked for.
type serverTest struct {
	test
	moved   Moved
	cookie  cookie
	source  netip.Addr
	token   string
	arrived chan arrival // connections with the test's cookie
}

// arrival is a connection, with its place in the order in which they came.
type arrival struct {
	conn net.Conn
	n    int
}

// cookiePatience bounds the wait for a connection to say which test it is for. On
// a path that is full what says it may be lost three times, which takes 7 s
// (RFC 6298, 2.4 and 5.5).
const cookiePatience = 12 * time.Second

// Serve accepts tests until the context ends. It closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	defer l.Close()
	var group sync.WaitGroup
	defer group.Wait()
	for n := 0; ; n++ {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil: // of the connection, or out of descriptors: it passes
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		s.admit(conn, false)
		group.Go(func() {
			stop := context.AfterFunc(ctx, func() { s.dismiss(conn) })
			defer stop()
			s.serve(ctx, arrival{conn, n})
		})
	}
}

// dismiss closes a connection when the server ends. The client of a test gets the
// reason first.
func (s *Server) dismiss(conn net.Conn) {
	defer conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tests {
		if t.control == conn {
			_ = conn.SetWriteDeadline(time.Now().Add(time.Second)) // there is room for a byte: it does not wait
			_ = writeState(conn, serverTerminate)
		}
	}
}

// admit counts a connection that has not been placed. One that has shown a token
// does not compete with others' again.
func (s *Server) admit(conn net.Conn, hasToken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := placeKey{connsource.Of(conn), hasToken}
	for _, t := range s.tests {
		key.testing = key.testing || t.source == key.source
	}
	if out := s.places.enter(key, conn); out != nil {
		out.Close()
	}
}

// place takes a connection out of the count, and reports whether it was in it.
func (s *Server) place(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.places.leave(conn)
}

// serve finds out what a connection is for.
func (s *Server) serve(ctx context.Context, a arrival) {
	var c cookie
	_ = a.conn.SetReadDeadline(time.Now().Add(cookiePatience))
	_, err := io.ReadFull(a.conn, c[:])
	_ = a.conn.SetReadDeadline(time.Time{})

	if err != nil || !c.valid() {
		a.conn.Close()
	} else if !s.join(a, c) {
		s.serveTest(ctx, a.conn, c)
		return
	}
	s.place(a.conn)
}

// join hands a connection to the test that it belongs to, and reports whether that
// is settled: else it asks for a test.
func (s *Server) join(a arrival, c cookie) (settled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch t := s.tests[c]; {
	case t != nil:
		select {
		case t.arrived <- a: // the test's now
		default: // it has more than enough
			a.conn.Close()
		}
	case len(s.Tokens) == 0 && len(s.tests) > 0:
		deny(a.conn)
	default:
		return false
	}
	return true
}

// deny says that there is another test.
func deny(conn net.Conn) {
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second)) // there is room for a byte: it does not wait
	_ = writeState(conn, accessDenied)
	conn.Close()
}

// serveTest serves the test that a connection asks for.
func (s *Server) serveTest(ctx context.Context, conn net.Conn, c cookie) {
	t := &serverTest{cookie: c, source: connsource.Of(conn), arrived: make(chan arrival, 2*maxStreams), test: test{control: conn}}
	err := t.agree(s)
	if err == nil {
		err = s.start(t)
	}
	if err != nil && !s.place(conn) {
		err = errEvicted
	}
	if err == nil {
		if s.Started != nil {
			s.Started(conn.RemoteAddr(), t.parameters)
		}
		if err = t.run(ctx, s); err != nil && ctx.Err() != nil {
			err = ErrInterrupted
		}
		s.end(t)
		s.place(conn)
	}
	conn.Close()
	if s.Ended != nil && !errors.Is(err, ErrBusy) && err != errEvicted { // what floods is not to fill a log
		s.Ended(conn.RemoteAddr(), t.parameters, t.moved, err)
	}
}

// errEvicted: the connection gave way to another before its test began.
var errEvicted = errors.New("it gave way to another connection")

// start has a test be one of those under way. From then on no connection of
// others can have it give way.
func (s *Server) start(t *serverTest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.tests {
		if other.cookie == t.cookie || other.token == t.token {
			deny(t.control)
			return ErrBusy
		}
	}
	if s.tests == nil {
		s.tests = map[cookie]*serverTest{}
	}
	s.tests[t.cookie] = t
	s.places.leave(t.control)
	return nil
}

// end makes room for the next test, once.
func (s *Server) end(t *serverTest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tests[t.cookie] != t {
		return
	}
	delete(s.tests, t.cookie)
	close(t.arrived) // join sends with the lock held, to tests of the map
	for late := range t.arrived {
		late.conn.Close()
	}
}

// run is a test from its streams to its last step.
func (t *serverTest) run(ctx context.Context, s *Server) error {
	defer func() { t.streams.close() }()
	if err := t.begin(ctx, s); err != nil {
		return err
	}
	cpu := startCPU()
	elapsed, err := t.move(ctx, s)
	own := t.streams.results(elapsed)
	t.moved = t.streams.counted(own, elapsed)
	if err != nil {
		return err
	}
	own.CPUTotal, own.CPUUser, own.CPUSystem = cpu.percent()
	if t.parameters.Longhaul != nil {
		own.Longhaul = t.streams.longhaulResults(s.Version, cpu.used())
	} else {
		// iperf3's client may wait for a whole block of a stream, or its end, before it
		// looks at the control connection again.
		t.streams.endSending()
	}
	if err := t.control.SetDeadline(time.Now().Add(controlPatience)); err != nil {
		return err
	}
	if err := writeState(t.control, exchangeResults); err != nil {
		return err
	}
	var theirs struct{} // what the client counted is the client's to show
	if err := readMessage(t.control, maxRequest, &theirs); err != nil {
		return err
	}
	if err := writeMessage(t.control, own); err != nil {
		return err
	}
	// The client's next test may come as soon as it hears that this is over.
	t.streams.close()
	s.end(t)
	s.admit(t.control, t.token != "")
	if err := writeState(t.control, displayResults); err != nil {
		return err
	}
	_, err = t.expect(controlPatience, done)
	return err
}

// sampling is the time between two samples.
func (p Parameters) sampling() time.Duration {
	if p.Longhaul == nil {
		return maxSampling // nobody asks for them
	}
	return time.Duration(p.Longhaul.SampleEvery) * time.Millisecond
}

// agree finds out what the client wants, and whether it may have it.
func (t *serverTest) agree(s *Server) error {
	if err := t.control.SetDeadline(time.Now().Add(controlPatience)); err != nil {
		return err
	}
	if err := writeState(t.control, paramExchange); err != nil {
		return err
	}
	if err := readMessage(t.control, maxParameters, &t.parameters); err != nil {
		return err
	}
	err := s.check(t.parameters)
	if err == nil && len(s.Tokens) > 0 {
		if t.token, err = s.askForToken(t.control, t.cookie, t.parameters); errors.Is(err, errNoToken) || errors.Is(err, errWrongToken) {
			err = &refusal{err, iperfUnauthorized}
		}
	}
	var refused *refusal
	if errors.As(err, &refused) {
		t.refuse(refused)
	}
	if err != nil {
		return err
	}
	return t.control.SetDeadline(time.Time{})
}

// begin waits for the test's streams.
func (t *serverTest) begin(ctx context.Context, s *Server) error {
	if err := writeState(t.control, createStreams); err != nil {
		return err
	}
	directions := []bool{t.parameters.Reverse}
	if t.parameters.Bidirectional {
		directions = []bool{false, true}
	}
	var sent *budget
	if t.parameters.Bytes > 0 {
		sent = &budget{}
		sent.left.Store(t.parameters.Bytes)
	}
	options := t.parameters
	if !s.allowsCongestion(options.Congestion) {
		options.Congestion = "" // only the client sends
	}
	conns, err := t.await(ctx, len(directions)*t.parameters.Parallel)
	for i, a := range conns {
		var st *stream
		if err == nil {
			st, err = newStream(streamID(i), directions[i/t.parameters.Parallel], a.conn, t.parameters)
		}
		if err != nil {
			a.conn.Close()
			continue
		}
		st.budget = sent
		t.streams = append(t.streams, st)
		// What cannot be had on this side is the client's to see: the test goes
		// on without.
		_ = st.raw.Control(func(fd uintptr) {
			if len(s.Tokens) == 0 {
				avoid(int(fd), brutal)
			}
			_ = setOptions(int(fd), options)
		})
	}
	if err != nil {
		return err
	}
	if err := writeState(t.control, testStart); err != nil {
		return err
	}
	return writeState(t.control, testRunning)
}

// streamsPatience bounds the wait for all of a test's streams together.
const streamsPatience = 2 * time.Minute

// await waits for the connections of the test's streams. They are told apart by
// the order in which they came, and may say what they are for in another.
func (t *serverTest) await(ctx context.Context, n int) (conns []arrival, err error) {
	gone, endListening := t.listen()
	defer endListening()
	// Made one after the other, each takes a round trip.
	ctx, cancel := context.WithTimeoutCause(ctx, streamsPatience, fmt.Errorf("%d streams did not come within %v", n, streamsPatience))
	defer cancel()
	deadline := time.NewTimer(controlPatience)
	defer deadline.Stop()
	for len(conns) < n {
		select {
		case a := <-t.arrived:
			conns = append(conns, a)
			deadline.Reset(controlPatience)
		case err := <-gone:
			return conns, err
		case <-deadline.C:
			return conns, fmt.Errorf("%d of %d streams came, and no other for %v", len(conns), n, controlPatience)
		case <-ctx.Done():
			return conns, context.Cause(ctx)
		}
	}
	sorted.By(conns, func(a, b arrival) int { return a.n - b.n })
	return conns, nil
}

// move has data go until the client says that it is enough.
func (t *serverTest) move(ctx context.Context, s *Server) (time.Duration, error) {
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t.ready()
	endWatch := t.watchBoth(running, time.Hour, t.parameters.sampling(), nil)
	// A stream that fails is the client's to notice: it may have ended it.
	ended := t.streams.run(func(error) {})
	err := t.awaitEnd(s)
	endWatch()
	elapsed := time.Since(t.start)
	if err == nil {
		err = t.drain()
	}
	t.streams.stop()
	<-ended
	return elapsed, err
}

// drain waits for what a test of an amount has on the way, unless the client ends the
// test.
func (t *serverTest) drain() error {
	if t.parameters.Bytes == 0 {
		return nil
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	gone, endListening := t.listen()
	go func() {
		if err, ended := <-gone; ended {
			cancel(err)
		}
	}()
	t.streams.drain(ctx, t.parameters.Bytes)
	endListening()
	return context.Cause(ctx)
}

// stallPatience bounds the time in which nothing moves in a test that has no
// other end than an amount.
const stallPatience = 60 * time.Second

// awaitEnd waits for the client to say that it is enough.
func (t *serverTest) awaitEnd(s *Server) error {
	timed, patience := t.parameters.Time > 0, stallPatience
	if timed {
		patience = time.Duration(t.parameters.Time+t.parameters.Omit)*time.Second + controlPatience
	}
	most := s.limits(t.parameters).Duration
	for before := int64(-1); ; {
		wait := patience
		if !timed {
			wait = min(patience, time.Until(t.begun.Add(most)))
		}
		_, err := t.expect(wait, testEnd)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && !timed && time.Since(t.begun) >= most:
			return t.interrupt(&refusal{fmt.Errorf("it is not over after %s: %s", units.FormatDuration(most), s.allows(units.FormatDuration(most), "--max-time")), iperfTooLong})
		case errors.Is(err, os.ErrDeadlineExceeded):
			moved := t.streams.moved()
			if !timed && moved > before {
				before = moved
				continue
			}
			return fmt.Errorf("the client did not end its test within %v", patience)
		case errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET):
			return errEnded
		}
		return err
	}
}

// refuse tells the client why it is not served.
func (t *serverTest) refuse(why *refusal) {
	// iperf3 reads its error's number and the system's, and says what it knows
	// of them; a longhaul reads on.
	_, _ = t.control.Write([]byte{byte(0xff & int(serverError)), 0, 0, 0, why.number, 0, 0, 0, 0})
	if t.parameters.Longhaul != nil {
		_, _ = io.WriteString(t.control, why.Error())
	}
}

// interrupt tells the client why its test is over, before the end of its streams
// does.
func (t *serverTest) interrupt(why *refusal) error {
	_ = t.control.SetDeadline(time.Now().Add(time.Second))
	t.refuse(why)
	if control, ok := t.control.(*net.TCPConn); ok {
		_ = control.CloseWrite()
	}
	_, _ = io.Copy(io.Discard, t.control)
	return why
}
