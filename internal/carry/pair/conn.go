package pair

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/pair/preface"
)

// handshakeTimeout bounds the preface of a connection, and the other end's part of TLS and of HELLO each,
// beside the time for which they wait for a processor.
const handshakeTimeout = 10 * time.Second

// nearHandshake is the near relay's bound: it gives up before the far one does, whose reset would say that
// no relay is there.
const nearHandshake = handshakeTimeout - handshakeTimeout/20

// The sizes of a connection's buffers in bytes. A read takes many TLS records, and a
// write carries those of a frame with their overhead.
const (
	smallBuffer = 20 << 10
	largeBuffer = 272 << 10
)

var (
	smallBuffers = sync.Pool{New: func() any { return new([smallBuffer]byte) }}
	largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}
)

func takeBuffer(large bool) []byte {
	if large {
		return largeBuffers.Get().(*[largeBuffer]byte)[:]
	}
	return smallBuffers.Get().(*[smallBuffer]byte)[:]
}

func giveBuffer(b []byte) {
	switch cap(b) {
	case largeBuffer:
		largeBuffers.Put((*[largeBuffer]byte)(b[:largeBuffer]))
	case smallBuffer:
		smallBuffers.Put((*[smallBuffer]byte)(b[:smallBuffer]))
	}
}

// bulkConn is the TCP connection below TLS. crypto/tls reads and writes record by
// record; bulkConn reads and writes the kernel's socket in larger pieces. It holds no
// buffer while it waits.
//
// It never gives TLS more than the record that TLS is reading. So nobody but
// bulkConn holds bytes that TLS has not asked for, and clear text may follow.
type bulkConn struct {
	tcp *net.TCPConn
	raw syscall.RawConn

	// The reading side, for one goroutine.
	in     []byte // buffer; nil: none
	r, w   int    // bytes in[r:w] are to be read
	record int    // bytes left of the record that TLS reads; 0: its head comes next
	large  bool   // the last read filled its buffer
	clear  bool   // no records any more
	exact  bool   // in clear: a read takes no more than is asked for, so that splice may take what follows
	linger *linger
	given  int // bytes of that record that TLS has
	due    int // bytes of the stream that the other end has sent for certain, as the frame says
	batch  batch

	// The writing side, under the caller's lock.
	out        []byte
	corked     bool   // Write waits for flush
	tailApart  bool   // the next flush ends with a small segment, see vanished
	flushReads bool   // a read flushes: one goroutine does both, in the handshake
	turns      *turns // the handshake has one of them, but for the time that it waits
	waited     bool   // a write had to wait for room
	expected   int    // bytes that the next writes bring until flush
	handshakeTime
	// rtt and repeats are what the kernel knew of the path when the handshake had ended: the round
	// trip, and the segments that it had sent again.
	rtt     time.Duration
	repeats uint32

	preface [preface.Size]byte // of an accepted connection, to pass on
	begun   atomic.Bool        // of an accepted connection: TLS has answered
}

// handshakeTime bounds a handshake.
type handshakeTime struct {
	// deadline is that of the handshake, in which this end's waits for its turns do not count.
	deadline time.Time
	// strained is how late this process, or the other one, is now; granted is what of that the deadline
	// has in it.
	strained func() time.Duration
	granted  time.Duration
}

func newBulkConn(tcp *net.TCPConn) (*bulkConn, error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &bulkConn{tcp: tcp, raw: raw}, nil
}

// connOf takes a descriptor over.
func connOf(fd int) (*net.TCPConn, error) {
	file := os.NewFile(uintptr(fd), "accepted")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("descriptor %d is no TCP socket", fd)
	}
	if tcp.RemoteAddr() == nil {
		tcp.Close()
		return nil, unix.ECONNRESET // since it was accepted
	}
	return tcp, nil
}

// unread puts bytes in front of what the socket has.
func (c *bulkConn) unread(b []byte) {
	if len(b) == 0 {
		return
	}
	c.in = takeBuffer(len(b) > smallBuffer)
	c.r, c.w = 0, copy(c.in, b)
}

// recordHead is the length of the head of a TLS record (RFC 8446, section 5.1).
const recordHead = 5

func (c *bulkConn) Read(p []byte) (int, error) {
	if c.clear && c.in == nil && (c.exact || len(p) >= smallBuffer/2) {
		return c.readSocket(func() []byte { return p }, func() {})
	}
	need := 1
	if !c.clear && c.record == 0 {
		need = recordHead
	}
	for c.w-c.r < need {
		if err := c.fill(); err != nil {
			if c.w == c.r || err != io.EOF {
				return 0, err
			}
			need = 1
		}
	}
	n := min(len(p), c.w-c.r)
	if !c.clear {
		if c.record == 0 && c.w-c.r >= recordHead {
			c.record = recordHead + int(c.in[c.r+3])<<8 + int(c.in[c.r+4])
		}
		n = min(n, max(c.record, 1))
		c.record = max(c.record-n, 0)
		if c.given += n; c.record == 0 {
			c.given = 0
		}
	}
	copy(p, c.in[c.r:c.r+n])
	c.take(n)
	return n, nil
}

func (c *bulkConn) take(n int) {
	if c.r += n; c.r == c.w {
		giveBuffer(c.in)
		c.in, c.r, c.w = nil, 0, 0
	}
}

// ready reports whether a read will not wait: a whole record is here.
func (c *bulkConn) ready() bool {
	n := c.w - c.r
	if c.clear {
		return n > 0
	}
	return c.record == 0 && n >= recordHead && n >= recordHead+int(c.in[c.r+3])<<8+int(c.in[c.r+4])
}

// lacking is the number of bytes without which the next ones are of no use: the rest of
// a record or of its head. At least 1.
func (c *bulkConn) lacking() int {
	n := c.w - c.r
	switch {
	case c.clear:
		return 1
	case c.record > 0:
		return max(c.record-n, 1)
	}
	return max(recordHead-n, 1)
}

// fill waits for bytes and reads them behind those that are here.
func (c *bulkConn) fill() error {
	if c.flushReads {
		if err := c.flush(); err != nil {
			return err
		}
		c.turns.give()
		defer c.goOn()
	}
	if c.in != nil && c.r > 0 {
		c.w = copy(c.in, c.in[c.r:c.w])
		c.r = 0
	}
	n, err := 0, os.ErrDeadlineExceeded
	for again := true; again; again = errors.Is(err, os.ErrDeadlineExceeded) && c.postpone() {
		n, err = c.readSocket(func() []byte {
			if c.in == nil {
				c.in = takeBuffer(c.large)
			}
			return c.in[c.w:]
		}, func() {
			if c.w == 0 {
				giveBuffer(c.in)
				c.in = nil
			}
		})
	}
	c.w += n
	c.large = c.w >= smallBuffer
	return err
}

// goOn waits for the handshake's next turn.
func (c *bulkConn) goOn() {
	began := time.Now()
	c.turns.goOn()
	if waited := time.Since(began); waited > handshakeTimeout/100 && !c.deadline.IsZero() {
		c.endBy(c.deadline.Add(waited))
	}
}

// endWithin gives a handshake, or what is left of it, so much time and that for which a processor is late.
func (c *bulkConn) endWithin(d time.Duration, strained func() time.Duration) {
	c.strained, c.granted = strained, strained()
	c.endBy(time.Now().Add(d + c.granted))
}

// postpone moves the handshake's deadline, which has come, by what a processor has become later since. It
// reports false if that is nothing.
func (c *bulkConn) postpone() bool {
	if c.deadline.IsZero() || c.strained == nil {
		return false
	}
	more := c.strained() - c.granted
	if more <= 0 {
		return false
	}
	c.granted += more
	c.endBy(c.deadline.Add(more))
	return true
}

// endBy has reads and writes fail from a moment on; zero: from none.
func (c *bulkConn) endBy(t time.Time) {
	c.deadline = t
	_ = c.SetDeadline(t)
}

// await waits until bytes are here, or an end. It takes little memory: the handshake's stack is
// large, and who says nothing is to have none.
func (c *bulkConn) await() error {
	if c.w > c.r {
		return nil
	}
	var err error
	waited := c.raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, err = retry(func() (int, error) { n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK); return n, err })
		return err != unix.EAGAIN
	})
	if waited != nil {
		return waited
	}
	return os.NewSyscallError("read", err)
}

// readSocket reads once, to memory that take gives and that drop takes back while it
// waits.
func (c *bulkConn) readSocket(take func() []byte, drop func()) (n int, err error) {
	waited := c.raw.Read(func(fd uintptr) bool {
		n, err = recv(int(fd), take())
		if err == unix.EAGAIN {
			c.batch.wait(int(fd), c.lacking(), c.due-c.given-(c.w-c.r))
			if c.linger.wait(int(fd), unix.POLLIN) {
				n, err = recv(int(fd), take())
			}
		}
		if err == unix.EAGAIN {
			drop()
			return false
		}
		return true
	})
	switch {
	case waited != nil:
		return 0, waited
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

func (c *bulkConn) Write(p []byte) (int, error) {
	if c.clear && len(p) >= smallBuffer/2 {
		if err := c.flush(); err != nil {
			return 0, err
		}
	}
	if !c.corked || c.clear && len(p) >= smallBuffer/2 {
		return c.writeSocket(p)
	}
	if c.out == nil {
		c.out = takeBuffer(max(len(p), c.expected) > smallBuffer-recordOverhead)[:0]
		c.expected = 0
	}
	if len(c.out)+len(p) > cap(c.out) && cap(c.out) < largeBuffer {
		grown := append(takeBuffer(true)[:0], c.out...)
		giveBuffer(c.out)
		c.out = grown
	}
	if len(c.out)+len(p) > cap(c.out) {
		if err := c.flush(); err != nil {
			return 0, err
		}
		return c.Write(p)
	}
	c.out = append(c.out, p...)
	return len(p), nil
}

// writeSocket writes all of p.
func (c *bulkConn) writeSocket(p []byte) (n int, err error) {
	waited := c.raw.Write(func(fd uintptr) bool {
		for n < len(p) {
			var m int
			if m, err = send(int(fd), p[n:]); err != nil {
				c.waited = c.waited || err == unix.EAGAIN
				return err != unix.EAGAIN
			}
			n += m
		}
		return true
	})
	switch {
	case waited != nil:
		return n, waited
	case err != nil:
		return n, os.NewSyscallError("write", err)
	}
	return n, nil
}

// smallTail is the length of the segment that ends the first bytes of an end. It crosses every path.
const smallTail = 64

// flush writes what Write collected.
func (c *bulkConn) flush() error {
	if c.out == nil {
		return nil
	}
	out := c.out
	var err error
	if c.tailApart && len(out) > smallTail {
		_, err = c.writeSocket(out[:len(out)-smallTail])
		out = out[len(out)-smallTail:]
	}
	c.tailApart = false
	if err == nil {
		_, err = c.writeSocket(out)
	}
	giveBuffer(c.out)
	c.out = nil
	return err
}

// unsentBytes is how much the kernel takes beyond what it can send while a lane shares a flow
// with others: what it has taken, no other lane can carry.
const unsentBytes = 128 << 10

// recordOverhead bounds what frames and TLS add to a record.
const recordOverhead = 2 << 10

// awaitRoom waits until the kernel takes more, and reports whether it had to wait.
func (c *bulkConn) awaitRoom() (waited bool, err error) {
	err = c.raw.Write(func(fd uintptr) bool {
		look := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		_, _ = retry(func() (int, error) { return unix.Poll(look, 0) })
		room := look[0].Revents != 0
		waited = waited || !room
		return room
	})
	return waited, err
}

// pull bounds what the kernel takes; the function that it returns takes the bound away.
func (c *bulkConn) pull() (end func()) {
	before := 0
	c.control(func(fd int) {
		before, _ = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentBytes)
	})
	return func() {
		c.control(func(fd int) { _ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, before) })
	}
}

// goClear ends the records: what follows on the socket is clear text.
func (c *bulkConn) goClear() { c.clear = true }

// control calls f with the descriptor, which is valid during the call.
func (c *bulkConn) control(f func(fd int)) { _ = c.raw.Control(func(fd uintptr) { f(int(fd)) }) }

// The rest of net.Conn.

func (c *bulkConn) Close() error { return c.tcp.Close() }

func (c *bulkConn) LocalAddr() net.Addr { return c.tcp.LocalAddr() }

func (c *bulkConn) RemoteAddr() net.Addr { return c.tcp.RemoteAddr() }

func (c *bulkConn) SetDeadline(t time.Time) error { return c.tcp.SetDeadline(t) }

func (c *bulkConn) SetReadDeadline(t time.Time) error { return c.tcp.SetReadDeadline(t) }

func (c *bulkConn) SetWriteDeadline(t time.Time) error { return c.tcp.SetWriteDeadline(t) }
