package congestion

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/lab/hosts"
	"longhaul/lab/pattern"
)

// sampleEvery is the interval at which the state of a flow is recorded.
const sampleEvery = 100 * time.Millisecond

// flowSpec describes a TCP connection that sends at full speed.
type flowSpec struct {
	algorithm string
	from, to  *hosts.Host
	address   netip.Addr    // of to
	start     time.Duration // after the run's beginning
	bytes     int64         // to deliver; 0 means until the run ends

	idleFrom, idleTill time.Duration // of the run: the program sends nothing; equal for never

	remote  netip.AddrPort // of a receiver that is no socket
	arrived func() int64   // counts the bytes there

	brutalBps   int64 // rate of payload for brutal; 0: none
	unsentBytes int   // TCP_NOTSENT_LOWAT
}

// flow is the outcome of a flowSpec. Times count from the run's start.
type flow struct {
	flowSpec
	connected time.Duration // 0 if never
	firstByte time.Duration // at the receiver; 0 if none
	finished  time.Duration // when the receiver had all bytes; 0 if unfinished
	samples   []sample
	mss       int           // payload of a full segment, bytes
	cpu       time.Duration // of the sending thread
	err       error         // error that ended the connection early
}

// sample is a flow's state at a moment.
type sample struct {
	at       time.Duration // since the run's beginning
	received int64         // bytes read by the receiving program
	// The sender's kernel's counts, in bytes of payload: sent with
	// retransmissions, and delivered in any order.
	sent, retransmitted, delivered int64
	timeouts                       int // -1 on kernels before 6.7
	srtt                           time.Duration
	// Time with data to send, and the parts limited by the receiver's window and
	// by the send buffer.
	busy, windowLimited, bufferLimited time.Duration
	cwnd                               int // packets
}

// running is a running flow.
type running struct {
	*flow
	listener net.Listener
	received atomic.Int64
	first    atomic.Int64 // time of the first byte since the run's beginning, ns
	done     atomic.Int64 // of the last of a bounded flow

	mu   sync.Mutex
	conn *net.TCPConn // the sender's end, once connected
}

// runFlows runs flows side by side for a time, or until all are delivered if every one
// has a bound. It calls each with every sample's time, between samples.
func runFlows(ctx context.Context, specs []flowSpec, during time.Duration, each func(at time.Duration, all []*running)) ([]flow, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all := make([]*running, len(specs))
	bounded := true
	for i, spec := range specs {
		all[i] = &running{flow: &flow{flowSpec: spec}}
		bounded = bounded && spec.bytes > 0
		if err := all[i].listen(ctx); err != nil {
			closeAll(all)
			return nil, err
		}
	}
	begin := time.Now()
	var workers sync.WaitGroup
	for _, r := range all {
		workers.Go(func() { r.receive(begin) })
		workers.Go(func() { r.send(ctx, begin) })
	}
	sampleUntil(ctx, begin, during, all, bounded, each)
	err := context.Cause(ctx)
	cancel()
	closeAll(all)
	workers.Wait()
	if err != nil {
		return nil, err
	}
	flows := make([]flow, len(all))
	for i, r := range all {
		r.firstByte, r.finished = time.Duration(r.first.Load()), time.Duration(r.done.Load())
		flows[i] = *r.flow
	}
	return flows, nil
}

// sampleUntil samples the flows until the time is over.
func sampleUntil(ctx context.Context, begin time.Time, during time.Duration, all []*running, bounded bool, each func(time.Duration, []*running)) {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	end := time.NewTimer(time.Until(begin.Add(during)))
	defer end.Stop()
	for over := false; !over; {
		select {
		case <-ctx.Done():
			return
		case <-end.C:
			over = true
		case <-ticker.C:
		}
		at := time.Since(begin)
		finished := 0
		for _, r := range all {
			r.sample(begin)
			if r.done.Load() > 0 {
				finished++
			}
		}
		if each != nil {
			each(at, all)
		}
		over = over || bounded && finished == len(all)
	}
}

// closeAll resets the remaining connections, so that nothing waits for data that no
// longer count.
func closeAll(all []*running) {
	for _, r := range all {
		if r == nil {
			continue
		}
		if r.listener != nil {
			r.listener.Close()
		}
		r.mu.Lock()
		if r.conn != nil {
			_ = r.conn.SetLinger(0)
			r.conn.Close()
		}
		r.mu.Unlock()
	}
}

func (r *running) listen(ctx context.Context) error {
	if r.arrived != nil {
		return nil
	}
	return r.to.Do(func() (err error) {
		var config net.ListenConfig
		config.SetMultipathTCP(false)
		r.listener, err = config.Listen(ctx, "tcp", netip.AddrPortFrom(r.address, 0).String())
		return err
	})
}

// receive reads and compares the flow's data until its end.
func (r *running) receive(begin time.Time) {
	if r.listener == nil {
		return
	}
	conn, err := r.listener.Accept()
	if err != nil {
		return // the run is over
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetLinger(0)
	buf := make([]byte, 256<<10)
	for total := int64(0); ; {
		n, err := conn.Read(buf)
		if n > 0 {
			if total == 0 {
				r.first.Store(int64(time.Since(begin)))
			}
			if !pattern.Match(total, buf[:n]) {
				r.fail(fmt.Errorf("receiver: the data differ within %d bytes of offset %d", n, total))
				return
			}
			total += int64(n)
			r.received.Store(total)
			if r.bytes > 0 && total >= r.bytes {
				r.done.Store(int64(time.Since(begin)))
				return
			}
		}
		if err != nil {
			return // the sender reports the error
		}
	}
}

// send connects at the flow's time and sends until the run is over.
func (r *running) send(ctx context.Context, begin time.Time) {
	runtime.LockOSThread() // for the thread's CPU time; the thread ends with the goroutine
	timer := time.NewTimer(time.Until(begin.Add(r.start)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return
	case <-timer.C:
	}
	if err := r.connect(ctx); err != nil {
		if ctx.Err() == nil {
			r.fail(fmt.Errorf("sender: %w", err))
		}
		return
	}
	r.connected = time.Since(begin)
	for sent := int64(0); r.bytes == 0 || sent < r.bytes; {
		if err := r.rest(ctx, begin); err != nil {
			break
		}
		next := int64(256 << 10)
		if r.bytes > 0 {
			next = min(next, r.bytes-sent)
		}
		n, err := r.conn.Write(pattern.At(sent, next))
		if err != nil {
			// The receiver of a bounded flow ends when it has all bytes.
			if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) && r.done.Load() == 0 {
				r.fail(fmt.Errorf("sender: %w", err))
			}
			break
		}
		sent += int64(n)
	}
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &usage); err == nil {
		r.cpu = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
}

// rest waits while the program has nothing to send.
func (r *running) rest(ctx context.Context, begin time.Time) error {
	at := time.Since(begin)
	if at < r.idleFrom || at >= r.idleTill {
		return nil
	}
	timer := time.NewTimer(r.idleTill - at)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

func (r *running) connect(ctx context.Context) error {
	var conn net.Conn
	err := r.from.Do(func() (err error) {
		var dialer net.Dialer
		dialer.SetMultipathTCP(false)
		dialer.Control = r.options
		address := r.remote.String()
		if r.listener != nil {
			address = r.listener.Addr().String()
		}
		conn, err = dialer.DialContext(ctx, "tcp", address)
		return err
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conn = conn.(*net.TCPConn)
	got, err := congestionControl(r.conn)
	if err == nil && got != r.algorithm {
		err = fmt.Errorf("the connection uses congestion control %s, not %s: look for a route with congctl", got, r.algorithm)
	}
	if err != nil {
		return err
	}
	if ctx.Err() != nil { // closeAll may have run before
		r.conn.Close()
		return ctx.Err()
	}
	return nil
}

func congestionControl(c *net.TCPConn) (name string, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return "", err
	}
	controlErr := raw.Control(func(fd uintptr) { name, err = tcpinfo.CongestionControl(int(fd)) })
	return name, errors.Join(controlErr, err)
}

// options sets the sender's socket up before it connects.
func (r *running) options(_, _ string, c syscall.RawConn) error {
	var err error
	controlErr := c.Control(func(fd uintptr) {
		if err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, r.algorithm); err != nil {
			err = fmt.Errorf("use congestion control %s: %w", r.algorithm, err)
			return
		}
		if r.unsentBytes > 0 {
			if err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, r.unsentBytes); err != nil {
				err = os.NewSyscallError("set TCP_NOTSENT_LOWAT", err)
				return
			}
		}
		if r.brutalBps > 0 {
			err = setBrutalRate(int(fd), r.brutalBps)
		}
	})
	return errors.Join(controlErr, err)
}

// setBrutalRate sets the socket option of the brutal algorithm: the rate in bytes of
// payload per second, and the window ÷ (rate × round trip) in tenths.
func setBrutalRate(fd int, bps int64) error {
	const (
		optionBrutal = 23301
		gainTenths   = 20
	)
	value := binary.NativeEndian.AppendUint64(nil, uint64(bps/8))
	value = binary.NativeEndian.AppendUint32(value, gainTenths)
	if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, optionBrutal, string(value)); err != nil {
		return fmt.Errorf("set the algorithm's rate by socket option %d: %w", optionBrutal, err)
	}
	return nil
}

// fail records the error that ended the connection early.
func (r *running) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
}

// sample records the flow's state. It takes the time after the state, so that a process
// stopped between the two computes no rate above the link's.
func (r *running) sample(begin time.Time) {
	if r.arrived != nil {
		r.received.Store(r.arrived())
	}
	s := sample{received: r.received.Load()}
	if len(r.samples) > 0 {
		last := r.samples[len(r.samples)-1]
		s.sent, s.retransmitted, s.delivered, s.timeouts = last.sent, last.retransmitted, last.delivered, last.timeouts
		s.srtt, s.cwnd = last.srtt, last.cwnd
		s.busy, s.windowLimited, s.bufferLimited = last.busy, last.windowLimited, last.bufferLimited
	}
	if info, err := r.info(); err == nil {
		s.sent, s.retransmitted = int64(info.BytesSent), int64(info.BytesRetrans)
		s.delivered = int64(info.Delivered) * int64(info.SndMSS)
		s.srtt, s.cwnd = info.RTT, int(info.SndCwnd)
		s.busy, s.windowLimited, s.bufferLimited = info.BusyTime, info.RwndLimited, info.SndbufLimited
		s.timeouts = -1
		if info.Has(tcpinfo.FieldTotalRTO) {
			s.timeouts = int(info.TotalRTO)
		}
		r.mss = int(info.SndMSS)
	}
	s.at = time.Since(begin)
	r.samples = append(r.samples, s)
}

// info returns the sender's TCP_INFO, or an error before the connection.
func (r *running) info() (info tcpinfo.Info, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn == nil {
		return info, io.ErrClosedPipe
	}
	raw, err := r.conn.SyscallConn()
	if err != nil {
		return info, err
	}
	controlErr := raw.Control(func(fd uintptr) { info, err = tcpinfo.Get(int(fd)) })
	return info, errors.Join(controlErr, err)
}
