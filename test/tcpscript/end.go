package tcpscript

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const chunk = 64 << 10

// end is one actor's end of a connection.
type end struct {
	tcp     *net.TCPConn
	out, in stream
	got     int64 // bytes read

	// stillborn: the connection was reset before connect returned, so there is
	// no socket.
	stillborn bool

	// A writer in the background processes the queue.
	mu     sync.Mutex
	queue  []func() error
	wake   chan struct{}
	idle   chan struct{} // closed while the queue is empty
	closed bool
	ended  sync.WaitGroup

	// reset is set by the writer: the kernel reports a reset only once, to the
	// first call.
	reset    atomic.Bool
	finished atomic.Bool // the outgoing stream has been ended
	sent     int64       // of the writer
}

func newEnd(c net.Conn, out, in stream) (*end, error) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("a %T is not a TCP connection", c)
	}
	e := &end{tcp: tcp, out: out, in: in, wake: make(chan struct{}, 1), idle: closedChan()}
	e.ended.Go(e.write)
	return e, nil
}

// newStillborn makes the end of a connection that was reset at once.
func newStillborn() *end { return &end{stillborn: true, closed: true, idle: closedChan()} }

func closedChan() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// enqueue hands work to the writer, unless it has stopped.
func (e *end) enqueue(f func() error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	if len(e.queue) == 0 {
		select {
		case <-e.idle:
			e.idle = make(chan struct{})
		default: // the last function is still running
		}
	}
	e.queue = append(e.queue, f)
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// write processes the queue until the end is closed. It continues after an
// error, which the reader also sees.
func (e *end) write() {
	for range e.wake {
		for {
			e.mu.Lock()
			if e.closed {
				e.mu.Unlock()
				return
			}
			if len(e.queue) == 0 {
				select {
				case <-e.idle:
				default:
					close(e.idle)
				}
				e.mu.Unlock()
				break
			}
			f := e.queue[0]
			e.queue = e.queue[1:]
			e.mu.Unlock()
			if err := f(); errors.Is(err, unix.ECONNRESET) {
				e.reset.Store(true)
			}
		}
	}
}

func (e *end) send(size int64) {
	e.enqueue(func() error {
		buf := make([]byte, min(size, chunk))
		for left := size; left > 0; {
			b := buf[:min(left, chunk)]
			e.out.fill(b, e.sent)
			n, err := e.tcp.Write(b)
			e.sent += int64(n)
			left -= int64(n)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// flush waits until everything sent is acknowledged by the peer's kernel.
func (e *end) flush(ctx context.Context) error {
	e.mu.Lock()
	idle := e.idle
	e.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
		return errors.New("bytes are still waiting to be sent")
	}
	if e.stillborn {
		return errReset
	}
	raw, err := e.tcp.SyscallConn()
	if err != nil {
		return err
	}
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for {
		var unacked int
		var ioctlErr error
		if err := raw.Control(func(fd uintptr) { unacked, ioctlErr = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); err != nil {
			return err
		}
		if ioctlErr != nil {
			return ioctlErr
		}
		if unacked == 0 {
			return nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("%d bytes are still unacknowledged", unacked)
		}
	}
}

// finish ends the outgoing stream after the queue.
func (e *end) finish() {
	e.enqueue(func() error {
		e.finished.Store(true)
		return e.tcp.CloseWrite()
	})
}

// close closes the connection after the queue.
func (e *end) close() { e.enqueue(e.tcp.Close) }

// abort resets the connection at once and stops the writer. On a closed
// connection it only stops the writer.
func (e *end) abort() {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	e.closed = true
	close(e.wake)
	e.mu.Unlock()
	e.tcp.SetLinger(0)
	e.tcp.Close()
	e.ended.Wait()
}

// expect reads and compares with the items in order. The error names the actual
// event.
func (e *end) expect(items []item, deadline time.Time) error {
	if !e.stillborn {
		if err := e.tcp.SetReadDeadline(deadline); err != nil {
			return err
		}
	}
	start := e.got
	for _, it := range items {
		var err error
		switch it.kind {
		case wantBytes:
			err = e.expectBytes(it.size)
		case wantAny:
			continue // the next item reads them
		default:
			err = e.expectEvent(it.kind, len(items) > 1 && items[len(items)-2].kind == wantAny)
		}
		if err != nil {
			return &unexpected{what: err, bytes: e.got - start}
		}
	}
	return nil
}

// unexpected is an event that does not match its item.
type unexpected struct {
	what  error
	bytes int64 // read before it
}

func (u *unexpected) Error() string { return u.what.Error() }

func (e *end) expectBytes(size int64) error {
	buf := make([]byte, min(size, chunk))
	for left := size; left > 0; {
		n, err := e.read(buf[:min(left, chunk)])
		left -= int64(n)
		if err != nil {
			return err
		}
	}
	return nil
}

// expectEvent reads until an event other than bytes.
func (e *end) expectEvent(kind itemKind, bytesBefore bool) error {
	want := map[itemKind]error{wantEnd: errEnd, wantReset: errReset, wantSilence: errSilence}[kind]
	buf := make([]byte, chunk)
	for {
		n, err := e.read(buf)
		if n > 0 && !bytesBefore {
			return errBytes
		}
		if err == nil {
			continue
		}
		if err == want {
			return nil
		}
		return err
	}
}

// Possible events.
var (
	errEnd     = errors.New("got an end")
	errReset   = errors.New("got a reset")
	errSilence = errors.New("got nothing")
	errWrong   = errors.New("got wrong bytes")
	errBytes   = errors.New("got bytes")
)

// read reads bytes and compares them with the stream. Its error is one of the
// events above, or an unusual kernel error.
func (e *end) read(buf []byte) (int, error) {
	if e.stillborn {
		return 0, errReset
	}
	n, err := e.tcp.Read(buf)
	if n > 0 {
		want := make([]byte, n)
		e.in.fill(want, e.got)
		if !bytes.Equal(buf[:n], want) {
			return n, errWrong
		}
		e.got += int64(n)
	}
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, unix.ECONNRESET), err == io.EOF && e.resetSeenByWriter():
		return n, errReset
	case err == io.EOF:
		return n, errEnd
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, errSilence
	}
	return n, fmt.Errorf("got an error (%w)", err)
}

// resetSeenByWriter reports, after an end of file, whether the writer has
// received a reset. A write on a dead connection fails at once, so it waits for
// the writer.
func (e *end) resetSeenByWriter() bool {
	if e.reset.Load() {
		return true
	}
	if e.finished.Load() || !e.dead() {
		return false
	}
	e.mu.Lock()
	idle := e.idle
	e.mu.Unlock()
	<-idle
	return e.reset.Load()
}

// dead reports whether the connection is closed in both directions.
func (e *end) dead() bool {
	raw, err := e.tcp.SyscallConn()
	if err != nil {
		return false
	}
	var info *unix.TCPInfo
	if err := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO) }); err != nil {
		return false
	}
	return err == nil && info.State == unix.BPF_TCP_CLOSE
}
