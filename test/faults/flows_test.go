package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/lab/pattern"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// serve starts a target on an address and returns the address.
func serve(t *testing.T, address string, one func(net.Conn)) string {
	t.Helper()
	l, err := tcpscript.ListenOn(address)(t.Context())
	nettest.Must(t, err)
	t.Cleanup(tcpserver.Serve(l, one))
	return l.Addr().String()
}

// echo starts a target that sends back what it gets, and ends its stream with the
// client's.
func echo(t *testing.T, address string) string {
	t.Helper()
	return serve(t, address, tcpserver.Echo)
}

func serveEcho(t *testing.T, l net.Listener) {
	t.Cleanup(tcpserver.Serve(l, tcpserver.Echo))
}

// held is a flow that stays open.
type held struct{ *net.TCPConn }

// dialFunc connects to a relay.
type dialFunc func(context.Context) (net.Conn, error)

// ethernet gives a client's or a listener's connections the segments of an Ethernet.
// With those of the loopback, 65 483 bytes, Linux 6.17 and later may stop a connection
// that is full both ways for good (docs/faults.md).
func ethernet(_, _ string, raw syscall.RawConn) (err error) {
	return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_MAXSEG, 1460) }), err)
}

// dialAsEthernet is tcpscript.DialTo with the segments of an Ethernet.
func dialAsEthernet(address string) dialFunc {
	return func(ctx context.Context) (net.Conn, error) {
		d := net.Dialer{Control: ethernet}
		d.SetMultipathTCP(false)
		return d.DialContext(ctx, "tcp", address)
	}
}

// listenAsEthernet is tcpscript.ListenOn with the segments of an Ethernet.
func listenAsEthernet(address string) func(context.Context) (net.Listener, error) {
	return func(ctx context.Context) (net.Listener, error) {
		config := net.ListenConfig{Control: ethernet}
		config.SetMultipathTCP(false)
		return config.Listen(ctx, "tcp", address)
	}
}

// dialFromMany connects to a relay from ever new addresses of the loopback.
func dialFromMany(to string) dialFunc {
	var n atomic.Uint32
	return func(ctx context.Context) (net.Conn, error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 78, 0, byte(n.Add(1)))}}
		d.SetMultipathTCP(false)
		return d.DialContext(ctx, "tcp", to)
	}
}

// hold opens a flow to a target that echoes, and sees that it does.
func hold(t *testing.T, dial dialFunc) held {
	t.Helper()
	h, err := tryHold(t.Context(), dial, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// tryHold is hold without a test, with a time for the first echo.
func tryHold(ctx context.Context, dial dialFunc, within time.Duration) (held, error) {
	c, err := dial(ctx)
	if err != nil {
		return held{}, err
	}
	h := held{c.(*net.TCPConn)}
	if err := h.ping(within); err != nil {
		h.Close()
		return held{}, err
	}
	return h, nil
}

// begin opens a flow that need not be served soon, and reports whether it echoed.
func begin(t *testing.T, dial dialFunc) (echoed <-chan error) {
	result := make(chan error, 1)
	go func() {
		h, err := tryHold(t.Context(), dial, patience)
		if err == nil {
			h.Close()
		}
		result <- err
	}()
	return result
}

// ping sends some bytes through and waits for their echo.
func (h held) ping(within time.Duration) error {
	h.SetDeadline(time.Now().Add(within))
	sent := []byte(time.Now().String())
	if _, err := h.Write(sent); err != nil {
		return err
	}
	got := make([]byte, len(sent))
	if n, err := io.ReadFull(h, got); err != nil {
		return fmt.Errorf("after %d of %d bytes: %w", n, len(got), err)
	}
	if !bytes.Equal(got, sent) {
		return fmt.Errorf("%q came back, not %q", got, sent)
	}
	return nil
}

// alive checks that the flow still works.
func (h held) alive(t *testing.T, when string) {
	t.Helper()
	if err := h.ping(patience); err != nil {
		t.Errorf("%s: a running flow: %v", when, err)
	}
}

// release ends the flow cleanly and waits for the other's end.
func (h held) release(t *testing.T) {
	t.Helper()
	h.SetDeadline(time.Now().Add(patience))
	if err := h.CloseWrite(); err != nil {
		t.Error(err)
	}
	if n, err := h.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("a flow whose client ended got %d bytes, %v; want the end", n, err)
	}
	h.Close()
}

// expectReset opens a connection that must be reset without a byte.
func expectReset(t *testing.T, dial dialFunc, within time.Duration) {
	t.Helper()
	c, err := dial(t.Context())
	if err == nil {
		defer c.Close()
		c.SetDeadline(time.Now().Add(within))
		var n int
		if n, err = c.Read(make([]byte, 1)); n > 0 {
			t.Error("a new connection got a byte, want a reset")
		}
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a new connection got %v, want a reset", err)
	}
}

// traffic are flows that echo all the time.
type traffic struct {
	flows []held
	stop  chan struct{}
	all   sync.WaitGroup

	mu   sync.Mutex
	took []time.Duration // of each echo; the timed tests judge it
	errs []error
}

// useFlows echoes through flows, over and over, until end.
func useFlows(flows []held) *traffic {
	u := &traffic{flows: flows, stop: make(chan struct{})}
	for _, h := range flows {
		u.all.Go(func() {
			pace := time.NewTicker(10 * time.Millisecond)
			defer pace.Stop()
			for {
				begin := time.Now()
				err := h.ping(patience)
				u.mu.Lock()
				if err != nil {
					u.errs = append(u.errs, err)
				}
				u.took = append(u.took, time.Since(begin))
				u.mu.Unlock()
				if err != nil {
					return
				}
				select {
				case <-u.stop:
					return
				case <-pace.C:
				}
			}
		})
	}
	return u
}

// openTraffic opens flows and uses them.
func openTraffic(t *testing.T, dial dialFunc, n int) *traffic {
	t.Helper()
	var flows []held
	for range n {
		flows = append(flows, hold(t, dial))
	}
	return useFlows(flows)
}

// end stops the echoes and fails the test if one of them failed. The flows stay
// open. It returns how long the echoes took, the quickest first.
func (u *traffic) end(t *testing.T) (took []time.Duration) {
	t.Helper()
	close(u.stop)
	u.all.Wait()
	for _, err := range u.errs {
		t.Errorf("a flow that stood does not echo: %v", err)
	}
	slices.Sort(u.took)
	return u.took
}

// release is end, and ends the flows.
func (u *traffic) release(t *testing.T) (took []time.Duration) {
	t.Helper()
	took = u.end(t)
	for _, h := range u.flows {
		h.release(t)
	}
	return took
}

// bulk is a flow to a target that echoes, with a sender that never pauses and a
// receiver that compares.
type bulk struct {
	held
	size      int64
	sent, got atomic.Int64
	reading   sync.Mutex // the receiver has it for each read
	all       sync.WaitGroup
	failed    chan error
}

// startBulk begins to send so many bytes, and ends the stream behind them.
func startBulk(t *testing.T, dial dialFunc, size int64) *bulk {
	t.Helper()
	c, err := dial(t.Context())
	nettest.Must(t, err)
	b := &bulk{held: held{c.(*net.TCPConn)}, size: size, failed: make(chan error, 1)}
	b.all.Go(b.send)
	b.all.Go(func() { b.failed <- b.receive() })
	t.Cleanup(func() {
		b.Close()
		b.all.Wait()
	})
	return b
}

func (b *bulk) send() {
	for b.sent.Load() < b.size {
		n, err := b.Write(pattern.At(b.sent.Load(), min(b.size-b.sent.Load(), 64<<10)))
		b.sent.Add(int64(n))
		if err != nil {
			return // the receiver has an error, too
		}
	}
	_ = b.CloseWrite()
}

func (b *bulk) receive() error {
	buf := make([]byte, 64<<10)
	for {
		b.reading.Lock()
		n, err := b.Read(buf)
		b.reading.Unlock()
		at := b.got.Load()
		switch {
		case !pattern.Match(at, buf[:n]) || at+int64(n) > b.size:
			return fmt.Errorf("after %d bytes: others come back than were sent", at)
		case err == io.EOF && at+int64(n) < b.size:
			return fmt.Errorf("a clean end after %d of %d bytes", at+int64(n), b.size)
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("after %d of %d bytes: %w", at+int64(n), b.size, err)
		}
		b.got.Add(int64(n))
	}
}

// expectWhole waits until everything has come back, and the end.
func (b *bulk) expectWhole(t *testing.T, what string) {
	t.Helper()
	select {
	case err := <-b.failed:
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	case <-time.After(patience):
		t.Errorf("%s: %d bytes of %d came back, %d are sent", what, b.got.Load(), b.size, b.sent.Load())
	}
}

// expectGot waits until so many bytes have come back.
func (b *bulk) expectGot(t *testing.T, n int64) {
	t.Helper()
	nettest.Eventually(t, patience, func() bool { return b.got.Load() >= n },
		func() string {
			return fmt.Sprintf("%d bytes of %d came back, %d are sent", b.got.Load(), n, b.sent.Load())
		})
}

// expectStuck waits until the sender gets nothing away any more.
func (b *bulk) expectStuck(t *testing.T) {
	t.Helper()
	const looks = 50
	before, same := int64(-1), 0
	nettest.Repeatedly(t, patience, func() bool {
		now := b.sent.Load()
		if same++; now != before {
			before, same = now, 0
		}
		return same == looks || now == b.size
	}, func() string { return "a sender that nobody reads from goes on" })
}
