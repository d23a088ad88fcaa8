package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/lab/hosts"
	"longhaul/internal/lab/pattern"
)

// bulkPort is where the receiver of a bulk transfer listens.
const bulkPort = 5001

// Sockets are options of a bulk transfer's sockets. What is zero is not set.
type Sockets struct {
	PacingBps   int64 // rate that the sender keeps below, bits per second
	WindowBytes int   // most that the receiver advertises
}

// Sender sets the options of a sending socket.
func (o Sockets) Sender(fd int) error {
	if o.PacingBps == 0 {
		return nil
	}
	return unix.SetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, uint64(o.PacingBps/8))
}

// Receiver sets the options of a listening socket. A buffer of fixed size keeps
// autotuning from lifting the bound, and is large enough for the overhead of
// small packets.
func (o Sockets) Receiver(fd int) error {
	if o.WindowBytes == 0 {
		return nil
	}
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8*o.WindowBytes)
	if err != nil { // not root over the machine
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 8*o.WindowBytes)
	}
	return errors.Join(err, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, o.WindowBytes))
}

// control makes an option setter one for dialers and listeners.
func control(set func(fd int) error) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) (err error) {
		if controlErr := c.Control(func(fd uintptr) { err = set(int(fd)) }); controlErr != nil {
			return controlErr
		}
		return err
	}
}

// transfer is a bulk transfer's outcome.
type transfer struct {
	Bytes   int64
	Elapsed time.Duration // from the sender's connect to the receiver's last byte
}

func (t transfer) goodputBps() float64 { return float64(t.Bytes) * 8 / t.Elapsed.Seconds() }

// bulk sends n bytes from one host to addr, which is the receiver's own
// address or that of a relay which leads there, and returns once the receiver
// has read and compared every one of them and the clean end behind them.
// received is kept up to date meanwhile.
func bulk(ctx context.Context, from, to *hosts.Host, addr netip.AddrPort, n int64, o Sockets, received *atomic.Int64) (transfer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var listener net.Listener
	err := to.Do(func() (err error) {
		config := net.ListenConfig{Control: control(o.Receiver)}
		config.SetMultipathTCP(false)
		listener, err = config.Listen(ctx, "tcp", fmt.Sprintf(":%d", bulkPort))
		return err
	})
	if err != nil {
		return transfer{}, err
	}
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	defer listener.Close()

	type arrival struct {
		at  time.Time
		err error
	}
	arrived := make(chan arrival, 1)
	go func() {
		at, err := receiveBulk(ctx, listener, n, received)
		if err != nil {
			cancel() // the sender need not go on
		}
		arrived <- arrival{at, err}
	}()

	start := time.Now()
	sendErr := sendBulk(ctx, from, addr, n, o)
	if sendErr != nil {
		cancel()
	}
	end := <-arrived
	if end.err != nil && !errors.Is(end.err, net.ErrClosed) {
		return transfer{}, end.err
	}
	if sendErr != nil {
		return transfer{}, sendErr
	}
	if end.err != nil {
		return transfer{}, end.err
	}
	return transfer{Bytes: n, Elapsed: end.at.Sub(start)}, nil
}

func sendBulk(ctx context.Context, from *hosts.Host, addr netip.AddrPort, n int64, o Sockets) error {
	var conn net.Conn
	err := from.Do(func() (err error) {
		// A literal address is dialed on the calling thread, and so from
		// this host.
		dialer := net.Dialer{Control: control(o.Sender)}
		dialer.SetMultipathTCP(false)
		conn, err = dialer.DialContext(ctx, "tcp", addr.String())
		return err
	})
	if err != nil {
		return fmt.Errorf("sender: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	for sent := int64(0); sent < n; {
		w, err := conn.Write(pattern.At(sent, min(256<<10, n-sent)))
		if err != nil {
			return fmt.Errorf("sender: %w", contextOr(ctx, err))
		}
		sent += int64(w)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return fmt.Errorf("sender: %w", err)
	}
	// The receiver closes once it has everything.
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		return fmt.Errorf("sender: waiting for the receiver's end: %w", contextOr(ctx, err))
	}
	return nil
}

// receiveBulk accepts one connection, and returns when its last byte came.
func receiveBulk(ctx context.Context, listener net.Listener, n int64, received *atomic.Int64) (time.Time, error) {
	conn, err := listener.Accept()
	if err != nil {
		return time.Time{}, fmt.Errorf("receiver: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	buf := make([]byte, 256<<10)
	for total := int64(0); ; {
		r, err := conn.Read(buf)
		if !pattern.Match(total, buf[:r]) {
			return time.Time{}, fmt.Errorf("receiver: the data differ within %d bytes of offset %d", r, total)
		}
		total += int64(r)
		received.Store(total)
		switch {
		case total > n || (err == io.EOF && total < n):
			return time.Time{}, fmt.Errorf("receiver: got %d bytes and a clean end, want %d", total, n)
		case err == io.EOF:
			return time.Now(), nil
		case err != nil:
			return time.Time{}, fmt.Errorf("receiver: after %d bytes: %w", total, contextOr(ctx, err))
		}
	}
}

// contextOr returns the reason of a cancelled context rather than the error
// that the cancellation led to.
func contextOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
