package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"longhaul/lab/pattern"
)

// errWrong is the error of a side that received bytes which were not sent.
var errWrong = errors.New("received bytes differ from the sent ones")

// headerBytes is the length of a flow's number, with which its client begins.
const headerBytes = 8

// flow is one flow of a crowd, with both its sides.
type flow struct {
	number uint64
	began  time.Time
	client side
	target side

	local       string          // the client's address
	seed        uint64          // of the sizes and moments of its writes
	targetUntil context.Context // done: the target ends its stream
	taken       bool            // the target has it, or never will; the crowd's lock guards it
	manners     manners
	done        time.Time // both sides are done; zero: not yet
	targetDone  chan struct{}
}

// side is one side of a flow: it sends at intervals, and compares what comes.
type side struct {
	mu   sync.Mutex
	conn *net.TCPConn
	came chan struct{} // has a token after each read
	account
}

// account is what a side did and saw.
type account struct {
	sent     int64 // bytes that its kernel took, without the header
	ended    bool  // it has ended its stream behind them
	got      int64
	sawEnd   bool
	left     time.Time // it has reset the flow, as it wanted; zero: it has not
	err      error     // the first
	failedAt time.Time
	arrivals []time.Time
	gotAt    []int64   // what it had at each of them
	readTo   time.Time // it reads no more
}

// shift is the place in the pattern where the stream of a side begins: no two flows
// have the same bytes.
func (f *flow) shift(ofClient bool) int64 {
	at := int64(f.number) * 2 * 7919
	if ofClient {
		return at
	}
	return at + 7919
}

// pace is how the sides of a flow send.
type pace struct {
	every time.Duration // mean time between two writes
	bytes int           // mean size of a write
}

// manner is how a side behaves.
type manner struct {
	pace
	stall time.Duration // for which it reads nothing in the beginning
	reset bool          // it resets the flow in place of ending its stream

	// reads, unless nil, ends when the side begins to read.
	reads context.Context
	// follows has the side end its stream after the other one, however long that takes.
	follows bool
	// awaits, unless 0, is the size of the other side's messages: each answers one of this
	// side, or asks for it. All messages then have the mean size.
	awaits int
	asks   bool // the first message is this side's
}

// manners are those of both sides of a flow.
type manners struct{ client, target manner }

// fail keeps the first error of a side that has not left.
func (s *side) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && err != nil && s.left.IsZero() {
		s.err, s.failedAt = err, time.Now()
	}
}

// write sends pieces of random sizes at random moments until a context is done, and
// then ends the stream or resets the flow.
func (s *side) write(until context.Context, conn *net.TCPConn, shift int64, p manner, dice *rand.Rand) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for message := int64(0); ; message++ {
		select {
		case <-timer.C:
		case <-until.Done():
		}
		if !s.mayWrite(until, p, message) {
			break
		}
		timer.Reset(time.Duration(dice.Int64N(2*int64(p.every)) + 1))
		size := int64(dice.IntN(2*p.bytes) + 1)
		if p.awaits > 0 {
			size = int64(p.bytes)
		}
		for end := s.position() + size; s.position() < end; {
			n, err := conn.Write(pattern.At(shift+s.position(), end-s.position()))
			s.mu.Lock()
			s.sent += int64(n)
			s.mu.Unlock()
			if err != nil {
				s.fail(fmt.Errorf("write: %w", err))
				return
			}
		}
	}
	if p.reset && !s.failed() {
		s.leave()
		return
	}
	if err := conn.CloseWrite(); err != nil {
		s.fail(fmt.Errorf("end: %w", err))
		return
	}
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
}

// mayWrite waits until it is the side's turn to send a message. It returns false when the
// side is to end its stream.
func (s *side) mayWrite(until context.Context, p manner, message int64) bool {
	due := message * int64(p.awaits)
	if !p.asks {
		due += int64(p.awaits)
	}
	for until.Err() == nil && s.received() < due {
		select {
		case <-s.came:
		case <-until.Done():
		}
	}
	return until.Err() == nil
}

func (s *side) received() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got
}

func (s *side) position() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent
}

// read compares everything until the other's end.
func (s *side) read(conn net.Conn, shift int64) {
	defer func() {
		s.mu.Lock()
		s.readTo = time.Now()
		s.mu.Unlock()
	}()
	buffer := make([]byte, 16<<10)
	for {
		n, err := conn.Read(buffer)
		if !pattern.Match(shift+s.got, buffer[:n]) {
			s.fail(fmt.Errorf("within %d bytes of offset %d: %w", n, s.got, errWrong))
			return
		}
		s.mu.Lock()
		s.got += int64(n)
		if n > 0 {
			s.arrivals, s.gotAt = append(s.arrivals, time.Now()), append(s.gotAt, s.got)
		}
		s.sawEnd = err == io.EOF
		s.mu.Unlock()
		select {
		case s.came <- struct{}{}:
		default:
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			s.fail(fmt.Errorf("read: %w", err))
			return
		}
	}
}

// leave resets the flow.
func (s *side) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = time.Now()
	_ = s.conn.SetLinger(0)
	s.conn.Close()
}

// run sends and compares until both directions have ended, or one side has failed.
func (s *side) run(until context.Context, conn *net.TCPConn, out, in int64, p manner, dice *rand.Rand) {
	s.mu.Lock()
	s.conn, s.came = conn, make(chan struct{}, 1)
	s.mu.Unlock()
	if p.follows {
		until = context.WithoutCancel(until)
	}
	until, cancel := context.WithCancel(until)
	defer cancel()
	var both sync.WaitGroup
	both.Go(func() { s.write(until, conn, out, p, dice) })
	if p.stall > 0 {
		_ = pause(until, p.stall)
	}
	if p.reads != nil {
		// Of a fixed size: one that the kernel had widened would drop what comes into its
		// window, and the relay's kernel repeat that with pauses that double.
		if err := conn.SetReadBuffer(64 << 10); err != nil {
			s.fail(err)
		}
		<-p.reads.Done()
	}
	s.read(conn, in)
	if p.follows {
		cancel()
	}
	if s.failed() {
		cancel()
		_ = conn.SetLinger(0) // the other side learns that the flow is no more
		conn.Close()
	}
	both.Wait()
	conn.Close()
}

// giveUp has a side fail that waits for the other.
func (s *side) giveUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		_ = s.conn.SetDeadline(time.Unix(1, 0))
	}
}

// silence is the longest time without bytes between a moment and the end of what the side
// reads, or its n-th byte, or now.
func (s *side) silence(from time.Time, n int64) (longest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, _ := slices.BinarySearchFunc(s.arrivals, from, time.Time.Compare)
	if at > 0 && s.gotAt[at-1] >= n {
		return 0
	}
	for ; at < len(s.arrivals); at++ {
		longest, from = max(longest, s.arrivals[at].Sub(from)), s.arrivals[at]
		if s.gotAt[at] >= n {
			return longest
		}
	}
	last := s.readTo
	if last.IsZero() {
		last = time.Now()
	}
	return max(longest, last.Sub(from))
}

func (s *side) failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil
}

// header is what the client's stream begins with.
func (f *flow) header() []byte { return binary.BigEndian.AppendUint64(nil, f.number) }
