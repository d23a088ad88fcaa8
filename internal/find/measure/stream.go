package measure

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"longhaul/internal/sys/tcpinfo"
)

// stream is one connection that carries data.
type stream struct {
	id      int
	sends   bool // data goes from here; else it comes here
	conn    *net.TCPConn
	raw     syscall.RawConn
	bytes   atomic.Int64 // that count
	writes  int          // bytes of each write, or room of each read
	byTime  bool         // the test ends after a time
	budget  *budget      // nil: no bound
	omitted Sample       // what there was when the start that does not count ended
	series  *series      // what the kernel said while it went on
	last    *Timed       // what it said at the end; nil where it says nothing
	end     Sample       // when it was counted
	ended   atomic.Bool  // nothing moves any more
}

func newStream(id int, sends bool, conn net.Conn, p Parameters) (*stream, error) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil, errors.New("not a TCP connection")
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &stream{id: id, sends: sends, conn: tcp, raw: raw, writes: p.Length, byTime: p.Time > 0}, nil
}

// budget is an amount that several streams send together.
type budget struct{ left atomic.Int64 }

// take takes up to n bytes.
func (b *budget) take(n int) int {
	if b == nil {
		return n
	}
	left := b.left.Add(int64(-n)) + int64(n) // before
	return int(min(int64(n), max(left, 0)))
}

// run moves data until the stream is stopped, its budget is used up, or the
// other side ends it. It returns nil for all of these.
func (s *stream) run() error {
	if s.sends {
		return s.send()
	}
	return s.receive()
}

func (s *stream) send() error {
	data := make([]byte, s.writes)
	for i := range data {
		data[i] = byte('0' + i%10) // as iperf3's: text that may be compressed
	}
	for {
		n := s.budget.take(len(data))
		if n == 0 {
			return nil
		}
		written, err := s.conn.Write(data[:n])
		s.bytes.Add(int64(written))
		if err != nil {
			return stopped(err)
		}
	}
}

func (s *stream) receive() error {
	buffer := make([]byte, max(s.writes, 64<<10))
	low := lowWater{}
	for {
		if s.byTime { // else the last bytes are waited for
			low.adapt(s.raw, s.bytes.Load())
		}
		n, err := s.conn.Read(buffer)
		s.bytes.Add(int64(n))
		if err != nil {
			s.sweep(buffer)
			return stopped(err)
		}
	}
}

// lowWater is how much is to be there before a receiving stream is woken. At
// rates where packets come one by one a wake for each would take several times
// the processor time.
type lowWater struct {
	bytes int
	next  int64 // what is to have arrived before the buffer is looked at again
}

// The least is less than what the receive buffer that the kernel starts with
// holds, and the kernel keeps it below half of one that was asked for. The most is
// set once the buffer has grown to many times that. So neither changes a window.
const (
	minLowWater   = 32 << 10  // bytes
	maxLowWater   = 128 << 10 // bytes
	amplyBuffered = 8 * maxLowWater
	lookAgain     = 1 << 20 // bytes
)

// adapt sets it for a stream to which so many bytes have come.
func (l *lowWater) adapt(raw syscall.RawConn, arrived int64) {
	if l.bytes == maxLowWater || arrived < l.next {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		wanted := minLowWater
		if receiveBuffer(int(fd)) >= amplyBuffered {
			wanted = maxLowWater
		}
		if wanted != l.bytes {
			setLowWater(int(fd), wanted)
		}
		l.bytes, l.next = wanted, arrived+lookAgain
	})
}

// sweep reads what is there and was too little to wake for. It reads no more
// than that: the other side may go on sending.
func (s *stream) sweep(buffer []byte) {
	_ = s.raw.Control(func(fd uintptr) {
		for left := maxLowWater; left > 0; {
			n, err := syscall.Read(int(fd), buffer[:min(left, len(buffer))]) // does not block: the runtime's sockets do not
			if n <= 0 || err != nil {
				return
			}
			s.bytes.Add(int64(n))
			left -= n
		}
	})
}

// stopped is nil for the errors that a stream ends with when it is told to.
func stopped(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) || err == io.EOF {
		return nil
	}
	return err
}

// stop has run return.
func (s *stream) stop() { _ = s.conn.SetDeadline(time.Unix(1, 0)) }

// streams are those of a test.
type streams []*stream

// run runs all of them, and cancels the context with the error of the first
// that fails. The channel is closed when all have ended.
func (all streams) run(cancel context.CancelCauseFunc) <-chan struct{} {
	var group sync.WaitGroup
	for _, s := range all {
		group.Go(func() {
			defer s.ended.Store(true)
			if err := s.run(); err != nil {
				cancel(err)
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		group.Wait()
		close(ended)
	}()
	return ended
}

// moved is what all of them have moved since the start, in bytes.
func (all streams) moved() (sum int64) {
	for _, s := range all {
		sum += s.bytes.Load()
	}
	return sum
}

func (all streams) stop() {
	for _, s := range all {
		s.stop()
	}
}

// endSending ends what the other side reads, behind what is under way.
func (all streams) endSending() {
	for _, s := range all {
		if s.sends {
			_ = s.conn.CloseWrite() // fails only if the stream has ended already
		}
	}
}

// drainPatience bounds the wait for what a test of an amount has on the way, and
// drainQuiet the time in which nothing of it arrives.
const (
	drainPatience = 10 * time.Second
	drainQuiet    = time.Second
)

// flush waits until everything that was written has reached the other side.
func (all streams) flush(ctx context.Context) {
	all.wait(ctx, func(s *stream) bool {
		queued := 0
		if s.sends {
			_ = s.raw.Control(func(fd uintptr) { queued = unacknowledged(int(fd)) })
		}
		return queued == 0
	})
}

// drain waits until an amount has arrived: its end is announced on another connection,
// and may come first. An interrupted client sends less, and resets its streams.
func (all streams) drain(ctx context.Context, amount int64) {
	before, quietSince := int64(-1), time.Now()
	all.wait(ctx, func(*stream) bool {
		arrived, receives := int64(0), false
		for _, s := range all {
			if !s.sends {
				receives = receives || !s.ended.Load()
				arrived += s.bytes.Load()
			}
		}
		if arrived > before {
			before, quietSince = arrived, time.Now()
		}
		return !receives || arrived >= amount || time.Since(quietSince) > drainQuiet
	})
}

// counted is what this side counted, of each direction.
func (all streams) counted(own results, elapsed time.Duration) Moved {
	m := Moved{Elapsed: elapsed}
	for i, s := range all {
		if s.sends {
			m.SentBytes += own.Streams[i].Bytes
		} else {
			m.ReceivedBytes += own.Streams[i].Bytes
		}
	}
	return m
}

// wait waits until something holds for every stream, for a time at most.
func (all streams) wait(ctx context.Context, holds func(*stream) bool) {
	deadline := time.Now().Add(drainPatience)
	for _, s := range all {
		for !holds(s) && time.Now().Before(deadline) && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
	}
}

// reset resets the streams that send: what is on the way gets lost.
func (all streams) reset() {
	for _, s := range all {
		if s.sends {
			_ = s.conn.SetLinger(0)
			s.conn.Close()
		}
	}
}

func (all streams) close() {
	for _, s := range all {
		s.conn.Close()
	}
}

// results are what this side counted over a time.
func (all streams) results(elapsed time.Duration) results {
	r := results{HasRetransmits: -1}
	for _, s := range all {
		now := s.sample()
		s.end = now
		one := streamResult{ID: s.id, Bytes: now.Bytes - s.omitted.Bytes, Retransmits: -1, EndTime: elapsed.Seconds()}
		if s.sends && now.Retransmits >= 0 {
			one.Retransmits = number(now.Retransmits - max(s.omitted.Retransmits, 0))
			r.HasRetransmits = 1
		}
		if r.Congestion == "" {
			r.Congestion = now.CongestionControl
		}
		r.Streams = append(r.Streams, one)
	}
	return r
}

// Sample is a stream at one moment. What this system does not tell is -1, or
// empty.
type Sample struct {
	Bytes             int64 // written or read since the start
	Retransmits       int64
	CwndBytes         int64
	RTT, RTTVar       time.Duration
	MinRTT            time.Duration
	PMTU              int64 // bytes
	MSS               int64 // bytes of the largest payload sent
	CongestionControl string
	Info              *tcpinfo.Info // all that the kernel says; nil where it says nothing
}

func (s *stream) sample() Sample {
	sample := Sample{Retransmits: -1, CwndBytes: -1, RTT: -1, RTTVar: -1, MinRTT: -1, PMTU: -1, MSS: -1}
	_ = s.raw.Control(func(fd uintptr) { fillSample(int(fd), &sample) })
	sample.Bytes = s.bytes.Load()
	return sample
}
