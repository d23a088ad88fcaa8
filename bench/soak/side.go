package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// outcome is what a side saw at the end of the other's stream.
type outcome string

const (
	sawNothing outcome = ""        // it never had a connection
	sawEnd     outcome = "end"     // the clean end
	sawReset   outcome = "reset"   //
	sawTimeout outcome = "timeout" // its own kernel gave the connection up
	sawStall   outcome = "stall"   // no byte and no end for stallLimit
	sawOwn     outcome = "own"     // it had reset the connection itself
	sawError   outcome = "error"   // anything else
)

// account is what one side of a flow did and saw.
type account struct {
	wrote    int64 // bytes that its kernel took
	ended    bool  // it ended its stream behind them
	reset    bool  // it reset the connection
	writeErr error

	read    int64
	differs int64 // position of the first wrong byte, -1: none
	saw     outcome
	readErr error

	wroteSum, readSum [sha256.Size]byte
}

// side runs one side of a flow over its connection.
type side struct {
	conn *net.TCPConn
	plan sidePlan
	out  *pattern
	in   *pattern

	moved *atomic.Int64 // bytes read, for progress

	account
	sentAll atomic.Bool // no write has failed, and none will follow
	readOK  chan struct{}
}

// run does all that the plan says and returns the account. The first already
// bytes of the stream have been read.
func (s *side) run(ctx context.Context, already []byte) account {
	s.differs = -1
	s.readOK = make(chan struct{})
	if s.plan.smallWindow {
		_ = s.conn.SetReadBuffer(16 << 10)
	}
	stop := context.AfterFunc(ctx, func() { s.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { s.write(ctx) })
	both.Go(func() {
		s.readAll(ctx, already)
		close(s.readOK)
	})
	both.Wait()
	s.conn.Close()
	return s.account
}

// write sends what is to be sent and ends the stream as planned.
func (s *side) write(ctx context.Context) {
	sum := sha256.New()
	defer func() { s.wroteSum = [sha256.Size]byte(sum.Sum(nil)) }()
	if h := min(s.plan.send, int64(len(s.out.header))); h > 0 && !s.send(sum, h, int(h)) {
		return
	}
	if s.plan.afterEnd {
		select {
		case <-s.readOK:
		case <-ctx.Done():
		}
	}
	pause(ctx, s.plan.idle)
	if !s.send(sum, s.plan.send, s.plan.write) {
		return
	}
	if s.plan.end {
		s.sentAll.Store(true)
		if s.writeErr = s.conn.CloseWrite(); s.writeErr != nil {
			return
		}
		s.ended = true
	}
	if s.plan.reset {
		pause(ctx, s.plan.resetWait)
		s.reset = true
		_ = s.conn.SetLinger(0)
		s.conn.Close()
	}
}

// send writes the content up to a position; it returns false when it cannot.
func (s *side) send(sum hash.Hash, until int64, size int) bool {
	for s.wrote < until {
		chunk := s.out.at(s.wrote, int(min(int64(size), until-s.wrote)))
		s.conn.SetWriteDeadline(time.Now().Add(stallLimit))
		n, err := s.conn.Write(chunk)
		sum.Write(chunk[:n])
		s.wrote += int64(n)
		if err != nil {
			s.writeErr = err
			return false
		}
	}
	return true
}

// readAll reads until the other's stream has ended in whatever way.
func (s *side) readAll(ctx context.Context, already []byte) {
	sum := sha256.New()
	defer func() { s.readSum = [sha256.Size]byte(sum.Sum(nil)) }()
	s.take(sum, already)
	pause(ctx, s.plan.readWait)
	buf := make([]byte, s.plan.readSize)
	for {
		s.conn.SetReadDeadline(time.Now().Add(stallLimit))
		n, err := s.conn.Read(buf)
		s.take(sum, buf[:n])
		if err != nil {
			s.readErr = err
			s.saw = s.meaning(err)
			return
		}
		if s.plan.readEvery > 0 {
			pause(ctx, s.plan.readEvery)
		}
	}
}

func (s *side) take(sum hash.Hash, got []byte) {
	if len(got) == 0 {
		return
	}
	sum.Write(got)
	if want := s.in.at(s.read, len(got)); s.differs < 0 && !bytes.Equal(got, want) {
		for i := range got {
			if got[i] != want[i] {
				s.differs = s.read + int64(i)
				break
			}
		}
	}
	s.read += int64(len(got))
	s.moved.Add(int64(len(got)))
}

// meaning is what a read's error says about the other's stream.
func (s *side) meaning(err error) outcome {
	switch {
	case err == io.EOF && dead(s.conn) && !s.sentAll.Load():
		// The kernel tells of a reset once, and it told a write. In this
		// order: the end that this side makes meanwhile closes the connection
		// as well.
		return sawReset
	case err == io.EOF:
		return sawEnd
	case errors.Is(err, net.ErrClosed):
		return sawOwn
	case errors.Is(err, unix.ECONNRESET):
		return sawReset
	case errors.Is(err, unix.ETIMEDOUT):
		return sawTimeout
	case errors.Is(err, os.ErrDeadlineExceeded):
		return sawStall
	}
	return sawError
}

// dead reports whether the kernel has given the connection up.
func dead(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	var info *unix.TCPInfo
	controlErr := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO) })
	return controlErr != nil || err != nil || info.State == unix.BPF_TCP_CLOSE
}

// pause waits, unless the context ends first.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
