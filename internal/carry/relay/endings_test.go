package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/sys/socket"
	"longhaul/test/nettest"
)

// Sizes for testing endings: nothing, one byte, a copied read, a spliced one,
// and more than all sockets hold.
var sizes = []int{0, 1, 1000, smallRead, smallRead + 1, 300_000, 5_000_000}

func TestTargetResetAfterBytes(t *testing.T) {
	nettest.CheckLeaks(t)
	for _, n := range sizes {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			g := newRig(t, nil)
			c, s := g.pair()
			data := pattern(n)
			read := readAll(c)
			write(t, s, data)
			awaitSent(t, s)
			reset(t, s)
			read.expectReset(t, data)
			if r := g.expectReason(report.EndTargetReset); r.BytesDown != int64(n) {
				t.Errorf("%d bytes down recorded, want %d", r.BytesDown, n)
			}
		})
	}
}

func TestClientResetAfterBytes(t *testing.T) {
	nettest.CheckLeaks(t)
	for _, n := range sizes {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			g := newRig(t, nil)
			c, s := g.pair()
			data := pattern(n)
			read := readAll(s)
			write(t, c, data)
			awaitSent(t, c)
			reset(t, c)
			read.expectReset(t, data)
			g.expectReason(report.EndClientReset)
		})
	}
}

// reading is the result of reading a connection to its end.
type reading chan struct {
	got []byte
	err error
}

func readAll(c *net.TCPConn) reading {
	r := make(reading, 1)
	go func() {
		got, err := io.ReadAll(c)
		r <- struct {
			got []byte
			err error
		}{got, err}
	}()
	return r
}

// expectReset waits for the end, which must be a reset after these bytes.
func (r reading) expectReset(t *testing.T, want []byte) {
	t.Helper()
	one := <-r
	if !errors.Is(one.err, syscall.ECONNRESET) {
		t.Fatalf("read %d bytes and then %v, want %d bytes and a reset", len(one.got), one.err, len(want))
	}
	if !bytes.Equal(one.got, want) {
		t.Fatalf("read %d bytes that differ from the %d that were sent", len(one.got), len(want))
	}
}

func TestTargetRefused(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	g.target.Close()
	expectResetOf(t, g.addr)
	r := g.expectReason(report.EndTargetRefused)
	if r.Err == nil {
		t.Error("the record has no error")
	}
}

func TestHalfCloseUpWithReplyAfter(t *testing.T) {
	nettest.CheckLeaks(t)
	halfClose(t, false)
}

func TestHalfCloseDownWithLaterData(t *testing.T) {
	nettest.CheckLeaks(t)
	halfClose(t, true)
}

func halfClose(t *testing.T, targetFirst bool) {
	for _, n := range sizes {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			g := newRig(t, nil)
			first, second := g.pair()
			if targetFirst {
				first, second = second, first
			}
			data := pattern(n)
			send := func(c *net.TCPConn) {
				if _, err := c.Write(data); err != nil {
					t.Error(err)
				}
				if err := c.CloseWrite(); err != nil {
					t.Error(err)
				}
			}
			go send(first)
			expect(t, second, data)
			expectEnd(t, second)
			go send(second)
			expect(t, first, data)
			expectEnd(t, first)
			r := g.expectReason(report.EndClean)
			if r.Err != nil || r.BytesUp != int64(n) || r.BytesDown != int64(n) {
				t.Errorf("record says %d up, %d down, %v", r.BytesUp, r.BytesDown, r.Err)
			}
		})
	}
}

// TestRelayKilled kills a relay's process at several stages of a flow. Both
// peers must see a reset. A peer that saw an end before has received the whole
// stream of the other.
func TestRelayKilled(t *testing.T) {
	nettest.CheckLeaks(t)
	data := pattern(200_000)
	tests := []struct {
		name  string
		stage func(t *testing.T, c, s *net.TCPConn)
	}{
		{"idle", func(*testing.T, *net.TCPConn, *net.TCPConn) {}},
		{"after bytes", func(t *testing.T, c, s *net.TCPConn) {
			write(t, c, data)
			expect(t, s, data)
			write(t, s, data)
			expect(t, c, data)
		}},
		{"half-closed up", func(t *testing.T, c, s *net.TCPConn) {
			write(t, c, data)
			c.CloseWrite()
			expect(t, s, data)
			expectEnd(t, s)
			write(t, s, data)
			expect(t, c, data)
		}},
		{"half-closed down", func(t *testing.T, c, s *net.TCPConn) {
			write(t, s, data)
			s.CloseWrite()
			expect(t, c, data)
			expectEnd(t, c)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			to := listen(t)
			p := startProcess(t, to, 0)
			g := &rig{t: t, target: to, addr: p.addr}
			c, s := g.pair()
			tt.stage(t, c, s)
			p.kill(t)
			for _, conn := range []*net.TCPConn{c, s} {
				awaitReset(t, conn)
			}
		})
	}
}

// TestRelayKilledInTransfer kills it while bytes move in both directions.
func TestRelayKilledInTransfer(t *testing.T) {
	nettest.CheckLeaks(t)
	to := listen(t)
	p := startProcess(t, to, 0)
	g := &rig{t: t, target: to, addr: p.addr}
	c, s := g.pair()
	type outcome struct{ wrote, read error }
	outcomes := make(chan outcome, 2)
	var moved atomic.Int64
	for _, conn := range []*net.TCPConn{c, s} {
		go func() {
			wrote := sendUntilError(conn, pattern(64<<10))
			_, err := io.Copy(io.Discard, counted{conn, &moved})
			outcomes <- outcome{<-wrote, err}
		}()
	}
	nettest.Eventually(t, patience, func() bool { return moved.Load() > 20<<20 },
		func() string { return "no bytes move" })
	p.kill(t)
	for range 2 {
		if o := <-outcomes; !wasReset(o.wrote, o.read) {
			t.Errorf("a peer saw a clean end: its write failed with %v, its read with %v", o.wrote, o.read)
		}
	}
}

// sendUntilError writes data repeatedly until a write fails.
func sendUntilError(c *net.TCPConn, data []byte) <-chan error {
	failed := make(chan error, 1)
	go func() {
		for {
			if _, err := c.Write(data); err != nil {
				failed <- err
				return
			}
		}
	}()
	return failed
}

// wasReset reports whether a peer that reads and writes was reset without
// having seen an end. The kernel reports a reset once, to the first call; then
// a read returns an end of file or blocks. A write that returns EPIPE means
// that an end came before.
func wasReset(wrote, read error) bool {
	return errors.Is(read, syscall.ECONNRESET) || errors.Is(wrote, syscall.ECONNRESET)
}

type counted struct {
	io.Reader
	n *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// TestTargetResetsWhileClientSends: the relay learns of the reset from a failed
// write. It must not lose the target's bytes or take the following end of file
// for an end.
func TestTargetResetsWhileClientSends(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	data := pattern(100_000)
	for range 40 {
		c, s := g.pair()
		wrote := sendUntilError(c, data)
		write(t, s, data)
		awaitSent(t, s)
		reset(t, s)
		expect(t, c, data)
		_, err := c.Read(make([]byte, 1))
		if wrote := <-wrote; !wasReset(wrote, err) {
			t.Fatalf("the client saw a clean end: its write failed with %v, its read with %v", wrote, err)
		}
		c.Close()
	}
}

// TestCompleteReplyOutlivesReset: the target ends its stream and then resets
// while the client sends. The reply is complete, its end is real, and the
// client learns that its own bytes were lost.
func TestCompleteReplyOutlivesReset(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	data := pattern(100_000)
	for range 50 {
		c, s := g.pair()
		lost := sendUntilError(c, data)
		write(t, s, data)
		s.CloseWrite()
		expect(t, c, data)
		expectEnd(t, c)
		reset(t, s)
		if err := <-lost; errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("the client was never told that its bytes were lost")
		}
		c.Close()
	}
}

// TestResetWithFullQueue: the client does not read, every queue is full, and
// the target resets. Every byte that reached the relay reaches the client.
func TestResetWithFullQueue(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	c, s := g.pair()
	sent, held := g.fill(s)
	reset(t, s)
	got, err := io.ReadAll(c)
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("after %d bytes: %v, want a reset", len(got), err)
	}
	if len(got) < sent-held {
		t.Errorf("the client got %d bytes, the relay had %d", len(got), sent-held)
	}
	if !bytes.Equal(got, pattern(len(got))) {
		t.Error("the bytes differ from what was sent")
	}
	g.expectReason(report.EndTargetReset)
}

// TestResetDrainTimeout: the same with a client that never reads again.
func TestResetDrainTimeout(t *testing.T) {
	nettest.CheckLeaks(t)
	const timeout = 300 * time.Millisecond
	g := newStoppedRig(t, func(o *rigOptions) { o.ResetDrainTimeout = timeout })
	c, s := g.pair()
	c.SetReadBuffer(1) // the bytes on the way exceed it
	g.fill(s)
	reset(t, s)
	g.flowIs("waits for the client to take the rest", func(f *flow) bool { return f.end.deadline })
	g.pass(timeout - 1)
	if n := len(g.flows.all()); n != 0 {
		t.Fatal("the flow ended before its timeout")
	}
	g.pass(1)
	r := g.expectReason(report.EndTargetReset)
	if _, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client saw %v, want a reset (%d bytes were recorded)", err, r.BytesDown)
	}
}

// TestEndBehindPausedReceiver: an end behind 30 MB to a paused receiver arrives
// after all bytes, and the other direction continues.
func TestEndBehindPausedReceiver(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	c, s := g.pair()
	data := pattern(30_000_000)
	go func() {
		if _, err := s.Write(data); err != nil {
			t.Error(err)
		}
		s.CloseWrite()
	}()
	nettest.Eventually(t, patience, func() bool {
		before := g.relay.Snapshot().Flows[0].BytesDown
		return before > 0 && before == g.relay.Snapshot().Flows[0].BytesDown
	}, func() string { return "the flow does not come to a halt" })
	if held := g.relay.Snapshot().Flows[0].HeldDown; held > 2<<20 {
		t.Errorf("the relay holds %d bytes, that is more than a pipe", held)
	}
	expect(t, c, data)
	expectEnd(t, c)
	write(t, c, []byte("still here"))
	expect(t, s, []byte("still here"))
	c.CloseWrite()
	expectEnd(t, s)
	g.expectReason(report.EndClean)
}

// TestConnectAndClose covers a connection without a byte.
func TestConnectAndClose(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	c, s := g.pair()
	c.Close()
	expectEnd(t, s)
	s.Close()
	g.expectReason(report.EndClean)
}

// fill writes until nothing more fits between the target of the only flow and a
// client that does not read. It returns the number of written bytes, and of
// those still at the target.
func (g *rig) fill(target *net.TCPConn) (sent, held int) {
	t, c := g.t, target
	t.Helper()
	data := pattern(64 << 20)
	for {
		c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		n, err := c.Write(data[sent:])
		sent += n
		// A relay that has not run yet holds nothing, and there is room.
		if errors.Is(err, os.ErrDeadlineExceeded) && n == 0 && g.relay.Snapshot().Flows[0].HeldDown > 0 {
			break
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
	}
	control(t, c, func(fd int) { held = socket.Unacknowledged(fd) })
	return sent, held
}

// awaitReset waits until the connection's peer has reset it. It checks the
// socket's state, because a read does not report a reset after an end.
func awaitReset(t *testing.T, c *net.TCPConn) {
	t.Helper()
	nettest.Eventually(t, patience, func() bool {
		var info *unix.TCPInfo
		var err error
		control(t, c, func(fd int) { info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO) })
		if err != nil {
			t.Fatal(err)
		}
		const tcpClose = 7 // TCP_CLOSE of include/net/tcp_states.h
		return info.State == tcpClose
	}, func() string { return fmt.Sprintf("the connection from %s was not reset", c.LocalAddr()) })
}
