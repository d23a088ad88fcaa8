package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"longhaul/bench/kit"
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
	for {
		select {
		case <-timer.C:
		case <-until.Done():
		}
		if until.Err() != nil {
			break
		}
		timer.Reset(time.Duration(dice.Int64N(2*int64(p.every)) + 1))
		size := int64(dice.IntN(2*p.bytes) + 1)
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

func (s *side) position() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent
}

// read compares everything until the other's end.
func (s *side) read(conn net.Conn, shift int64) {
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
			s.arrivals = append(s.arrivals, time.Now())
		}
		s.sawEnd = err == io.EOF
		s.mu.Unlock()
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
	s.conn = conn
	s.mu.Unlock()
	until, cancel := context.WithCancel(until)
	defer cancel()
	var both sync.WaitGroup
	both.Go(func() { s.write(until, conn, out, p, dice) })
	if p.stall > 0 {
		_ = kit.Pause(until, p.stall)
	}
	s.read(conn, in)
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

func (s *side) failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil
}

// header is what the client's stream begins with.
func (f *flow) header() []byte { return binary.BigEndian.AppendUint64(nil, f.number) }
