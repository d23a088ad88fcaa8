package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Summary is the client's outcome of a test.
type Summary struct {
	Options   Options
	Start     time.Time
	Elapsed   time.Duration // without the omitted start
	Local     net.Addr
	Remote    net.Addr
	Streams   []StreamSummary
	SentBps   float64 // sent from here, by the server's count, or else by this side's; 0 if nothing was to be sent
	RecvBps   float64 // by this side's count
	LocalCPU  CPUShare
	RemoteCPU CPUShare // by the server; -1 if unknown

	RemoteCongestionControl string // empty if unknown

	// The processes' user and system time over the test. The server's is -1 unless
	// it is a longhaul.
	LocalCPUTime, RemoteCPUTime time.Duration
}

// CPUShare is a process's CPU use over the test, in percent of one CPU.
type CPUShare struct{ Total, User, System float64 }

// StreamSummary is a stream over the test without the omitted start.
type StreamSummary struct {
	ID            int
	Sends         bool // from here
	Local, Remote net.Addr
	SentBytes     int64  // by the sender; -1 if unknown
	ReceivedBytes int64  // by the receiver; -1 if unknown
	Retransmits   int64  // of the sender, -1 if unknown
	Sample        Sample // of this end, after the test

	// The samples of the sending end's system, and its congestion control. Only a
	// longhaul server sends them for its streams; otherwise Samples is empty.
	Samples           []Timed
	CongestionControl string
	CongestionEvents  int64 // that were seen of it, in what counts; see congestionEvent
	// Receiver is the receiving end at the end of the test; nil if unknown.
	Receiver *Timed
}

// ErrInterrupted: the test ended early because [Options.Interrupt] was closed.
var ErrInterrupted = errors.New("interrupted")

// interruptPatience bounds the wait for the server's counts after an interruption.
const interruptPatience = 3 * time.Second

// Run measures to a server, an address with a port. It returns after the test. With an
// error, the summary has what was counted before it: no streams if nothing was.
func Run(ctx context.Context, server string, o Options) (Summary, error) {
	if err := o.Check(); err != nil {
		return Summary{}, err
	}
	o = o.withDefaults()
	c := &client{options: o, test: test{parameters: o.parameters()}, server: server, cookie: newCookie()}
	summary, err := c.run(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return summary, err
}

type client struct {
	test
	options Options
	server  string
	cookie  cookie
	moving  atomic.Bool // the test can end in order
}

// watchInterrupt cancels the test when it is interrupted: at once before data moves, and
// otherwise if the server does not send its counts in time.
func (c *client) watchInterrupt(cancel context.CancelCauseFunc) (end func()) {
	if c.options.Interrupt == nil {
		return func() {}
	}
	ended := make(chan struct{})
	go func() {
		select {
		case <-c.options.Interrupt:
		case <-ended:
			return
		}
		if c.moving.Load() {
			select {
			case <-time.After(interruptPatience):
			case <-ended:
				return
			}
		}
		cancel(ErrInterrupted)
	}()
	return func() { close(ended) }
}

func (c *client) dial(ctx context.Context, options bool) (net.Conn, error) {
	var control Control
	if options {
		control = func(_, _ string, raw syscall.RawConn) (err error) {
			if controlErr := raw.Control(func(fd uintptr) { err = setOptions(int(fd), c.parameters) }); controlErr != nil {
				return controlErr
			}
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Patience)
	defer cancel()
	dial := c.options.Dialer
	if dial == nil {
		dial = dialDirectly
	}
	conn, err := dial(ctx, "tcp", c.server, control)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.ETIMEDOUT) {
		return nil, fmt.Errorf("%w within %v", errUnanswered, c.options.Patience)
	}
	if err != nil {
		return nil, err
	}
	// The route may set its own congestion control at connect.
	if raw, ok := conn.(syscall.Conn); ok && options && c.parameters.Congestion != "" {
		if socket, rawErr := raw.SyscallConn(); rawErr == nil {
			controlErr := socket.Control(func(fd uintptr) { err = setCongestion(int(fd), c.parameters.Congestion) })
			err = errors.Join(controlErr, err)
		}
		if err != nil {
			conn.Close()
			return nil, err
		}
	}
	if _, err := conn.Write(c.cookie[:]); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

func dialDirectly(ctx context.Context, network, address string, control Control) (net.Conn, error) {
	dialer := net.Dialer{Control: control}
	dialer.SetMultipathTCP(false)
	return dialer.DialContext(ctx, network, address)
}

func (c *client) run(ctx context.Context) (summary Summary, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer c.watchInterrupt(cancel)()
	defer func() {
		if err != nil && context.Cause(ctx) == ErrInterrupted {
			err = ErrInterrupted
		}
	}()
	control, err := c.dial(ctx, false)
	if err != nil {
		return Summary{}, err
	}
	defer control.Close()
	c.control = control
	defer context.AfterFunc(ctx, func() {
		_ = control.SetWriteDeadline(time.Now().Add(time.Second))
		_ = writeState(control, clientTerminate)
		control.Close()
	})()
	if err := c.begin(ctx); err != nil {
		return Summary{}, err
	}
	defer c.streams.close()
	c.moving.Store(true)
	cpu := startCPU()
	elapsed, err := c.move(ctx)
	if elapsed <= 0 { // in the start that does not count
		cancel(err)
		return Summary{}, err
	}
	own := c.streams.results(elapsed)
	own.CPUTotal, own.CPUUser, own.CPUSystem = cpu.percent()
	used := cpu.used()
	theirs := unknownResults
	if err == ErrInterrupted && c.options.Bytes > 0 {
		c.streams.reset() // the server waits for the amount otherwise
	}
	if err == nil || err == ErrInterrupted {
		counted, finishErr := c.finish(own)
		if finishErr == nil {
			theirs = counted
		} else if err == nil {
			err = finishErr
		}
	}
	return c.summary(elapsed, used, own, theirs), err
}

// begin negotiates the test and opens its streams.
func (c *client) begin(ctx context.Context) error {
	switch first, err := c.expect(c.options.Patience, paramExchange); {
	case errors.Is(err, errNotIperf):
		return c.greeting(first)
	case isClosed(err):
		return errNoWord
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w for %v", errSilent, c.options.Patience)
	case err != nil:
		return err
	}
	if err := writeMessage(c.control, c.parameters); err != nil {
		return err
	}
	asked := []state{createStreams}
	if c.options.Token.Name != "" {
		asked = append(asked, showToken)
	}
	step, err := c.expect(c.options.Patience, asked...)
	if err == nil && step == showToken {
		if err = c.showToken(); err == nil {
			_, err = c.expect(c.options.Patience, createStreams)
		}
	}
	if err != nil {
		return err
	}
	var sent *budget
	if c.options.Bytes > 0 {
		sent = &budget{}
		sent.left.Store(c.options.Bytes)
	}
	directions := []bool{c.options.Direction != Receive}
	if c.options.Direction == Both {
		directions = []bool{true, false}
	}
	conns, err := c.dialAll(ctx, len(directions)*c.options.Streams)
	for i, conn := range conns {
		var s *stream
		if err == nil {
			s, err = newStream(streamID(i), directions[i/c.options.Streams], conn, c.parameters)
		}
		if err != nil {
			conn.Close()
			continue
		}
		s.budget = sent
		c.streams = append(c.streams, s)
	}
	if err != nil {
		c.streams.close()
		return fmt.Errorf("connect a stream: %w", err)
	}
	_, err = c.expect(c.options.Patience, testStart)
	if err == nil {
		_, err = c.expect(c.options.Patience, testRunning)
	}
	if err != nil {
		c.streams.close()
	}
	return err
}

// dialAll opens the streams' connections, one after the other or all at once. After an
// error it returns the open ones.
func (c *client) dialAll(ctx context.Context, n int) (conns []net.Conn, err error) {
	if !c.options.AtOnce {
		for len(conns) < n {
			conn, err := c.dial(ctx, true)
			if err != nil {
				return conns, err
			}
			conns = append(conns, conn)
		}
		return conns, nil
	}
	type made struct {
		conn net.Conn
		err  error
	}
	all := make(chan made)
	for range n {
		go func() {
			conn, err := c.dial(ctx, true)
			all <- made{conn, err}
		}()
	}
	for range n {
		one := <-all
		if one.err != nil {
			err = one.err
			continue
		}
		conns = append(conns, one.conn)
	}
	return conns, err
}

// greeting returns the first line of another protocol's server as an error.
func (c *client) greeting(first state) error {
	said := make([]byte, 60)
	said[0] = byte(first)
	_ = c.control.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	n, _ := c.control.Read(said[1:])
	line, _, _ := strings.Cut(string(said[:1+n]), "\n")
	return fmt.Errorf("%w: it begins with %q", errNotIperf, strings.TrimRight(line, "\r"))
}

// reasonPatience bounds the wait for the reason why a stream ended.
const reasonPatience = 200 * time.Millisecond

// move moves data for the duration of the test.
func (c *client) move(ctx context.Context) (elapsed time.Duration, err error) {
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c.ready()
	gone, endListening := c.listen()
	heard := make(chan struct{}) // closed when the control connection has nothing more to say
	go func() {
		defer close(heard)
		if err, ended := <-gone; ended {
			cancel(err)
		}
	}()
	endWatch := c.watchBoth(running, c.options.Interval, c.options.SampleEvery, c.options.Report)
	ended := c.streams.run(func(err error) {
		// The reason may be on its way on the control connection.
		select {
		case <-heard:
		case <-time.After(reasonPatience):
		}
		cancel(err)
	})
	over := (<-chan time.Time)(nil)
	if c.options.Duration > 0 {
		timer := time.NewTimer(c.options.Omit + c.options.Duration)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-over:
	case <-c.enough(running):
	case <-c.options.Interrupt:
		err = ErrInterrupted
	case <-running.Done():
		err = context.Cause(running)
	}
	if err == nil && c.options.Bytes > 0 {
		c.streams.flush(running)
	}
	endWatch()
	elapsed = time.Since(c.start)
	endListening()
	// Data in flight still arrives: the server reads until the client announces
	// the end.
	c.streams.stop()
	<-ended
	if err == nil && context.Cause(running) != nil {
		err = context.Cause(running)
	}
	if err == nil || err == ErrInterrupted {
		if writeErr := writeState(c.control, testEnd); err == nil {
			err = writeErr
		}
	}
	return elapsed, err
}

// enough returns a channel that is closed when a test of an amount has moved it.
func (c *client) enough(ctx context.Context) <-chan struct{} {
	if c.options.Bytes == 0 {
		return nil
	}
	moved := make(chan struct{})
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			var sent, received int64
			for _, s := range c.streams {
				if s.sends {
					sent += s.bytes.Load()
				} else {
					received += s.bytes.Load()
				}
			}
			if (c.options.Direction == Receive || sent >= c.options.Bytes) && (c.options.Direction == Send || received >= c.options.Bytes) {
				close(moved)
				return
			}
		}
	}()
	return moved
}

// finish exchanges both sides' counts.
func (c *client) finish(own results) (theirs results, err error) {
	if _, err := c.expect(c.options.Patience, exchangeResults); err != nil {
		return theirs, err
	}
	if err := c.control.SetDeadline(time.Now().Add(c.options.Patience)); err != nil {
		return theirs, err
	}
	if err := writeMessage(c.control, own); err != nil {
		return theirs, err
	}
	if err := readMessage(c.control, maxResults, &theirs); err != nil {
		return theirs, fmt.Errorf("read the server's results: %w", err)
	}
	if _, err := c.expect(c.options.Patience, displayResults); err != nil {
		return theirs, err
	}
	return theirs, writeState(c.control, done)
}

// unknownResults stand for the counts of a server that did not send them.
var unknownResults = results{CPUTotal: -1, CPUUser: -1, CPUSystem: -1}

func (c *client) summary(elapsed, used time.Duration, own, theirs results) Summary {
	s := Summary{
		Options: c.options, Start: c.start, Elapsed: elapsed,
		Local: c.control.LocalAddr(), Remote: c.control.RemoteAddr(),
		LocalCPU:                CPUShare{own.CPUTotal, own.CPUUser, own.CPUSystem},
		RemoteCPU:               CPUShare{theirs.CPUTotal, theirs.CPUUser, theirs.CPUSystem},
		RemoteCongestionControl: theirs.Congestion,
		LocalCPUTime:            used, RemoteCPUTime: -1,
	}
	told := map[int]longhaulStream{}
	if theirs.Longhaul != nil {
		s.RemoteCPUTime = time.Duration(theirs.Longhaul.CPU) * time.Microsecond
		for _, t := range theirs.Longhaul.Streams {
			told[t.ID] = t
		}
	}
	counted := map[int]streamResult{}
	for _, t := range theirs.Streams {
		counted[t.ID] = t
	}
	for i, st := range c.streams {
		other, ok := counted[st.id]
		if !ok {
			other = streamResult{Bytes: -1, Retransmits: -1}
		}
		one := StreamSummary{ID: st.id, Sends: st.sends, Local: st.conn.LocalAddr(), Remote: st.conn.RemoteAddr(), Retransmits: -1, Sample: st.end}
		if st.sends {
			one.SentBytes, one.ReceivedBytes, one.Retransmits = own.Streams[i].Bytes, other.Bytes, int64(own.Streams[i].Retransmits)
			one.Samples, one.CongestionEvents = st.series.kept, st.series.events
			one.CongestionControl, one.Receiver = one.Sample.CongestionControl, told[st.id].Last
			arrived := one.ReceivedBytes
			if !ok {
				arrived = one.SentBytes
			}
			s.SentBps += float64(arrived) * 8 / elapsed.Seconds()
		} else {
			one.SentBytes, one.ReceivedBytes, one.Retransmits = other.Bytes, own.Streams[i].Bytes, int64(other.Retransmits)
			one.Samples, one.CongestionEvents = told[st.id].Samples, told[st.id].CongestionEvents
			one.CongestionControl, one.Receiver = theirs.Congestion, st.last
			s.RecvBps += float64(one.ReceivedBytes) * 8 / elapsed.Seconds()
		}
		s.Streams = append(s.Streams, one)
	}
	return s
}

// Errors of a client that [Explain] explains.
var (
	errUnanswered = errors.New("it does not answer")
	errSilent     = errors.New("it accepts the connection and sends nothing")
	errNoWord     = errors.New("it accepts the connection and closes it without an answer")
)

// isClosed reports whether an error is the other side's end of a connection.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, errEnded)
}

// rootOf returns the innermost error, which is the system's.
func rootOf(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

// Explain returns an error of [Run] in a sentence for the user.
func Explain(server string, err error) error {
	var dns *net.DNSError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &dns):
		return fmt.Errorf("find the address of %s: %s", dns.Name, dns.Err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nobody listens at %s", server)
	case errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH):
		return fmt.Errorf("no route to %s: %w", server, rootOf(err))
	case errors.Is(err, errStopped):
		return fmt.Errorf("the server at %s was stopped during the test", server)
	case isClosed(err):
		return fmt.Errorf("%s ended the test early", server)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%s stopped answering during the test", server)
	}
	return fmt.Errorf("%s: %w", server, err)
}

// Hint returns the hint for an error of [Run]; empty without one.
func Hint(err error) string {
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		return "is the name right?"
	case errors.Is(err, ErrBusy):
		return "try again when it has ended"
	case errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH):
		return "see ip route get, or ask a router on the way"
	case errors.Is(err, errUnanswered):
		return "is the host up, and does a firewall on the way drop what goes to the port?"
	case errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, errNotIperf) || errors.Is(err, errSilent) || errors.Is(err, errNoWord):
		return "is longhaul measure --serve, or iperf3 -s, running there, and the port open?"
	case errors.Is(err, errStopped):
		return "start it again there"
	case isClosed(err):
		return "what does the server's log say?"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "is the way there still open?"
	}
	return ""
}
