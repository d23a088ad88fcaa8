package transfers

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

	"longhaul/lab"
	"longhaul/lab/hosts"
	"longhaul/lab/pattern"
)

// bulkPort is where the receiver of a bulk transfer listens.
const bulkPort = 5001

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

	sender, seen string // addresses: the sender's, and the one that the receiver sees
}

func (t transfer) goodputBps() float64 { return float64(t.Bytes) * 8 / t.Elapsed.Seconds() }

// bulk sends n bytes from one host to addr, which is the receiver's own
// address or that of a relay which leads there, and returns once the receiver
// has read and compared every one of them and the clean end behind them.
// received is kept up to date meanwhile.
func bulk(ctx context.Context, from, to *hosts.Host, addr netip.AddrPort, n int64, o lab.Sockets, received *atomic.Int64) (transfer, error) {
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
	defer context.AfterFunc(ctx, func() { endListening(listener) })()
	defer endListening(listener)

	type arrival struct {
		at   time.Time
		from string
		err  error
	}
	arrived := make(chan arrival, 1)
	go func() {
		at, from, err := receiveBulk(ctx, listener, n, received)
		if err != nil {
			cancel() // the sender need not go on
		}
		arrived <- arrival{at, from, err}
	}()

	start := time.Now()
	sender, sendErr := sendBulk(ctx, from, addr, n, o)
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
	return transfer{Bytes: n, Elapsed: end.at.Sub(start), sender: sender, seen: end.from}, nil
}

// endListening closes a listener so that its port is free at once: a child that another goroutine begins has the
// descriptor until its exec.
func endListening(l net.Listener) {
	if raw, err := l.(*net.TCPListener).SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RD) })
	}
	l.Close()
}

// sendBulk returns the address of the sending socket.
func sendBulk(ctx context.Context, from *hosts.Host, addr netip.AddrPort, n int64, o lab.Sockets) (own string, err error) {
	var conn net.Conn
	err = from.Do(func() (err error) {
		// A literal address is dialed on the calling thread, and so from
		// this host.
		dialer := net.Dialer{Control: control(o.Sender)}
		dialer.SetMultipathTCP(false)
		conn, err = dialer.DialContext(ctx, "tcp", addr.String())
		return err
	})
	if err != nil {
		return "", fmt.Errorf("sender: %w", lab.CauseOr(ctx, err))
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	for sent := int64(0); sent < n; {
		w, err := conn.Write(pattern.At(sent, min(256<<10, n-sent)))
		if err != nil {
			return "", fmt.Errorf("sender: %w", lab.CauseOr(ctx, err))
		}
		sent += int64(w)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return "", fmt.Errorf("sender: %w", err)
	}
	// The receiver closes once it has everything.
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		return "", fmt.Errorf("sender: waiting for the receiver's end: %w", lab.CauseOr(ctx, err))
	}
	return conn.LocalAddr().String(), nil
}

// receiveBulk accepts one connection, and returns when its last byte came, and from where.
func receiveBulk(ctx context.Context, listener net.Listener, n int64, received *atomic.Int64) (at time.Time, from string, err error) {
	conn, err := listener.Accept()
	if err != nil {
		return time.Time{}, "", fmt.Errorf("receiver: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	buf := make([]byte, 256<<10)
	for total := int64(0); ; {
		r, err := conn.Read(buf)
		if !pattern.Match(total, buf[:r]) {
			return time.Time{}, "", fmt.Errorf("receiver: the data differ within %d bytes of offset %d", r, total)
		}
		total += int64(r)
		received.Store(total)
		switch {
		case total > n || (err == io.EOF && total < n):
			return time.Time{}, "", fmt.Errorf("receiver: got %d bytes and a clean end, want %d", total, n)
		case err == io.EOF:
			return time.Now(), conn.RemoteAddr().String(), nil
		case err != nil:
			return time.Time{}, "", fmt.Errorf("receiver: after %d bytes: %w", total, lab.CauseOr(ctx, err))
		}
	}
}
