package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// Server serves one test at a time.
type Server struct {
	// Started and Ended are told of tests, if they are not nil.
	Started func(client net.Addr, p Parameters)
	Ended   func(client net.Addr, p Parameters, err error)

	Version string // of the program, for clients

	mu      sync.Mutex
	current *serverTest
}

// serverTest is the test under way.
type serverTest struct {
	test
	cookie  cookie
	arrived chan net.Conn // connections with the test's cookie
}

// cookiePatience bounds the wait for a connection to say which test it is for.
const cookiePatience = 5 * time.Second

// Serve accepts tests until the context ends. It closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	defer l.Close()
	var group sync.WaitGroup
	defer group.Wait()
	before := make(chan struct{}) // closed when the connection before is placed
	close(before)
	for {
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
		earlier, placed := before, make(chan struct{})
		before = placed
		group.Go(func() { s.serve(ctx, conn, earlier, sync.OnceFunc(func() { close(placed) })) })
	}
}

// serve finds out what a connection is for. The streams of a test are told
// apart by the order in which they were accepted, so each waits until the one
// before has its place.
func (s *Server) serve(ctx context.Context, conn net.Conn, earlier <-chan struct{}, placed func()) {
	defer placed()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	var c cookie
	_ = conn.SetReadDeadline(time.Now().Add(cookiePatience))
	_, err := io.ReadFull(conn, c[:])
	<-earlier // which has no more patience than this one
	if err != nil || !c.valid() {
		conn.Close()
		return
	}
	_ = conn.SetReadDeadline(time.Time{})

	s.mu.Lock()
	t := s.current
	if t == nil {
		t = &serverTest{cookie: c, arrived: make(chan net.Conn), test: test{control: conn}}
		s.current = t
		s.mu.Unlock()
		placed()
		err := t.run(ctx, s)
		s.mu.Lock()
		s.current = nil
		s.mu.Unlock()
		if s.Ended != nil {
			s.Ended(conn.RemoteAddr(), t.parameters, err)
		}
		return
	}
	s.mu.Unlock()
	if c != t.cookie {
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
		_ = writeState(conn, accessDenied)
		conn.Close()
		return
	}
	select {
	case t.arrived <- conn: // the test's now
	case <-time.After(cookiePatience):
		conn.Close()
	case <-ctx.Done():
		conn.Close()
	}
}

// run is a test from its first step to its last.
func (t *serverTest) run(ctx context.Context, s *Server) error {
	defer t.control.Close()
	defer func() { t.streams.close() }()
	if err := t.begin(ctx, s); err != nil {
		return err
	}
	cpu := startCPU()
	elapsed, err := t.move(ctx)
	if err != nil {
		return err
	}
	own := t.streams.results(elapsed)
	own.CPUTotal, own.CPUUser, own.CPUSystem = cpu.percent()
	if t.parameters.Longhaul != nil {
		own.Longhaul = t.streams.longhaulResults(s.Version, cpu.used())
	}
	if err := t.control.SetDeadline(time.Now().Add(controlPatience)); err != nil {
		return err
	}
	if err := writeState(t.control, exchangeResults); err != nil {
		return err
	}
	var theirs results
	if err := readMessage(t.control, &theirs); err != nil {
		return err
	}
	if err := writeMessage(t.control, own); err != nil {
		return err
	}
	if err := writeState(t.control, displayResults); err != nil {
		return err
	}
	return t.expect(done, controlPatience)
}

// check refuses what a server does not do, or not so much of.
func (p Parameters) check() error {
	switch {
	case p.UDP || p.SCTP || !p.TCP:
		return errors.New("only TCP is measured")
	case p.Parallel < 1 || p.Parallel > maxStreams:
		return fmt.Errorf("%d streams: up to %d are served", p.Parallel, maxStreams)
	case p.Length < 1 || p.Length > maxWriteBytes:
		return fmt.Errorf("writes of %d bytes: up to %d are served", p.Length, maxWriteBytes)
	case p.Window < 0 || p.Window > maxWindow:
		return fmt.Errorf("a window of %d bytes: up to %d are served", p.Window, maxWindow)
	case p.Time < 0 || time.Duration(p.Time)*time.Second > maxDuration || p.Omit < 0 || p.Omit > 60:
		return fmt.Errorf("a test of %d s: up to %v are served", p.Time, maxDuration)
	case p.Longhaul != nil && (p.sampling() < minSampling || p.sampling() > maxSampling):
		return fmt.Errorf("a sample every %v: %v to %v are served", p.sampling(), minSampling, maxSampling)
	case p.Bytes < 0 || p.Blocks < 0:
		return errors.New("a test of less than nothing")
	}
	return nil
}

// sampling is the time between two samples.
func (p Parameters) sampling() time.Duration {
	if p.Longhaul == nil {
		return maxSampling // nobody asks for them
	}
	return time.Duration(p.Longhaul.SampleEvery) * time.Millisecond
}

// begin agrees on the test and waits for its streams.
func (t *serverTest) begin(ctx context.Context, s *Server) error {
	if err := writeState(t.control, paramExchange); err != nil {
		return err
	}
	if err := t.control.SetReadDeadline(time.Now().Add(controlPatience)); err != nil {
		return err
	}
	if err := readMessage(t.control, &t.parameters); err != nil {
		return err
	}
	if err := t.parameters.check(); err != nil {
		// iperf3 would read an error's number; ours says what it is in its log.
		_, _ = t.control.Write([]byte{byte(0xff & int(serverError)), 0, 0, 0, 0, 0, 0, 0, 0})
		return err
	}
	if s.Started != nil {
		s.Started(t.control.RemoteAddr(), t.parameters)
	}
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
	deadline := time.NewTimer(controlPatience)
	defer deadline.Stop()
	for _, sends := range directions {
		for range t.parameters.Parallel {
			select {
			case conn := <-t.arrived:
				st, err := newStream(streamID(len(t.streams)), sends, conn, t.parameters)
				if err != nil {
					conn.Close()
					return err
				}
				st.budget = sent
				t.streams = append(t.streams, st)
				// What cannot be had on this side is the client's to see: the
				// test goes on without.
				_ = st.raw.Control(func(fd uintptr) { _ = setOptions(int(fd), t.parameters) })
			case <-deadline.C:
				return fmt.Errorf("%d of the streams came within %v", len(t.streams), controlPatience)
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	if err := writeState(t.control, testStart); err != nil {
		return err
	}
	return writeState(t.control, testRunning)
}

// move has data go until the client says that it is enough.
func (t *serverTest) move(ctx context.Context) (time.Duration, error) {
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t.ready()
	endWatch := t.watchBoth(running, time.Hour, t.parameters.sampling(), nil)
	// A stream that fails is the client's to notice: it may have ended it.
	ended := t.streams.run(func(error) {})
	patience := maxDuration
	if t.parameters.Time > 0 {
		patience = time.Duration(t.parameters.Time+t.parameters.Omit)*time.Second + controlPatience
	}
	err := t.expect(testEnd, patience)
	endWatch()
	elapsed := time.Since(t.start)
	if err == nil {
		t.streams.drain(t.parameters.Bytes)
	}
	t.streams.stop()
	<-ended
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		err = fmt.Errorf("the client did not end its test within %v", patience)
	case errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET):
		err = errEnded
	}
	return elapsed, err
}
