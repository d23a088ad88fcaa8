package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/lab/pattern"
)

// Traffic is the traffic of a program: at full speed, unless a field limits it.
type Traffic struct {
	To netip.AddrPort `json:"to"`
	// OfferBps is the rate of the program's data, in bits per second, and
	// ChunkBytes the size of each burst.
	OfferBps   int64 `json:"offer_bps,omitempty"`
	ChunkBytes int   `json:"chunk_bytes,omitempty"`
	// WorkPerMB is the CPU time for a megabyte (10^6 bytes).
	WorkPerMB time.Duration `json:"work_per_mb_ns,omitempty"`
	// TransferBytes is the data of one connection, after which it opens another.
	TransferBytes int64 `json:"transfer_bytes,omitempty"`

	SendBufferBytes   int    `json:"send_buffer_bytes,omitempty"` // SO_SNDBUF
	PacingBps         int64  `json:"pacing_bps,omitempty"`        // SO_MAX_PACING_RATE
	CongestionControl string `json:"congestion_control,omitempty"`
}

// Send sends until the context or the other side ends.
func (t Traffic) Send(ctx context.Context) error {
	for {
		err := t.transfer(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case t.TransferBytes == 0:
			return nil
		}
	}
}

func (t Traffic) transfer(ctx context.Context) error {
	dialer := net.Dialer{Timeout: 20 * time.Second, Control: t.control}
	dialer.SetMultipathTCP(false)
	conn, err := dialer.DialContext(ctx, "tcp", t.To.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	// The route's congestion control came with the connection.
	if raw, err := conn.(syscall.Conn).SyscallConn(); err == nil {
		if err := t.control("", "", raw); err != nil {
			return err
		}
	}
	if err := t.write(ctx, conn); err != nil {
		return err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

func (t Traffic) control(_, _ string, raw syscall.RawConn) (err error) {
	set := func(fd uintptr) {
		if t.SendBufferBytes > 0 {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, t.SendBufferBytes)
		}
		if err == nil && t.PacingBps > 0 {
			err = unix.SetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, uint64(t.PacingBps/8))
		}
		if err == nil && t.CongestionControl != "" {
			err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, t.CongestionControl)
		}
	}
	return errors.Join(raw.Control(set), err)
}

// write writes the program's data of one connection.
func (t Traffic) write(ctx context.Context, conn net.Conn) error {
	chunk := t.ChunkBytes
	if chunk == 0 {
		chunk = 64 << 10
	}
	if t.WorkPerMB > 0 {
		runtime.LockOSThread() // so that the thread's CPU time is the program's
		defer runtime.UnlockOSThread()
	}
	begin := time.Now()
	for sent := int64(0); t.TransferBytes == 0 || sent < t.TransferBytes; {
		n := int64(chunk)
		if t.TransferBytes > 0 {
			n = min(n, t.TransferBytes-sent)
		}
		if t.WorkPerMB > 0 {
			work(time.Duration(float64(t.WorkPerMB) * float64(n) / 1e6))
		}
		w, err := conn.Write(pattern.At(sent, n))
		sent += int64(w)
		if err != nil {
			return err
		}
		if t.OfferBps > 0 {
			due := begin.Add(time.Duration(float64(sent) * 8 / float64(t.OfferBps) * float64(time.Second)))
			if err := sleepUntil(ctx, due); err != nil {
				return err
			}
			// Data that the connection did not accept is dropped.
			begin = begin.Add(max(0, time.Since(due)-10*time.Millisecond))
		}
	}
	return nil
}

// work uses CPU time of the calling thread.
func work(d time.Duration) {
	used := func() time.Duration {
		var t unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // never fails
		return time.Duration(t.Nano())
	}
	for end := used() + d; used() < end; {
	}
}

func sleepUntil(ctx context.Context, due time.Time) error {
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// receiver reads and counts data, up to a maximum rate.
type receiver struct {
	listener net.Listener
	readBps  int64
	count    func(int)

	mu    sync.Mutex
	open  map[net.Conn]bool // nil after close
	taken sync.WaitGroup
}

func receive(l net.Listener, readBps int64, count func(int)) *receiver {
	r := &receiver{listener: l, readBps: readBps, count: count, open: map[net.Conn]bool{}}
	r.taken.Go(r.run)
	return r
}

// close closes all connections: the other side may be gone.
func (r *receiver) close() {
	r.listener.Close()
	r.mu.Lock()
	for conn := range r.open {
		conn.Close()
	}
	r.open = nil
	r.mu.Unlock()
	r.taken.Wait()
}

func (r *receiver) run() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.mu.Lock()
		if r.open == nil {
			conn.Close()
		} else {
			r.open[conn] = true
			r.taken.Go(func() { r.take(conn) })
		}
		r.mu.Unlock()
	}
}

func (r *receiver) take(conn net.Conn) {
	defer func() {
		conn.Close()
		r.mu.Lock()
		delete(r.open, conn)
		r.mu.Unlock()
	}()
	buffer := make([]byte, 64<<10)
	if r.readBps > 0 {
		buffer = buffer[:8<<10]
	}
	begin, got := time.Now(), int64(0)
	for {
		n, err := conn.Read(buffer)
		got += int64(n)
		r.count(n)
		if err != nil {
			return // end of the stream or of the scenario
		}
		if r.readBps > 0 {
			due := begin.Add(time.Duration(float64(got) * 8 / float64(r.readBps) * float64(time.Second)))
			time.Sleep(time.Until(due))
			begin = begin.Add(max(0, time.Since(due)-10*time.Millisecond))
		}
	}
}
