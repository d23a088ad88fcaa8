package pair_test

import (
	"context"
	"errors"
	"io"
	mathrand "math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/sys/socket"
	"longhaul/test/nettest"
)

func TestEcho(t *testing.T) { eachMode(t, testEcho) }

func testEcho(t *testing.T, in standOption) {
	t.Parallel()
	s := newStand(t, in)
	c := s.begin("hello")
	want := pattern(5<<20, 7)
	go func() {
		_, _ = c.Write(want)
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil {
		t.Fatalf("%v after %d bytes; ends %+v %+v", err, len(got), receive(s.nearEnds), receive(s.farEnds))
	}
	checkEqual(t, got, want)
	s.ends(flow.EndClean)
}

func TestHalfClose(t *testing.T) { eachMode(t, testHalfClose) }

func testHalfClose(t *testing.T, in standOption) {
	t.Parallel()
	s := newStand(t, in)
	s.serve(func(c *net.TCPConn) {
		n, _ := io.Copy(io.Discard, c)
		_, _ = c.Write(pattern(int(n), 1))
		_ = c.CloseWrite()
	})
	c := s.dial()
	defer c.Close()
	_, err := c.Write(pattern(100000, 0))
	nettest.Must(t, err)
	nettest.Must(t, c.CloseWrite())
	got, err := io.ReadAll(c)
	if err != nil {
		t.Fatalf("%v after %d bytes; ends %+v %+v", err, len(got), receive(s.nearEnds), receive(s.farEnds))
	}
	checkEqual(t, got, pattern(100000, 1))
	s.ends(flow.EndClean)
}

// TestClientResets holds that a client's reset reaches the target as a reset, after
// all bytes before it.
func TestClientResets(t *testing.T) { eachMode(t, testClientResets) }

func testClientResets(t *testing.T, in standOption) {
	t.Parallel()
	s := newStand(t, in)
	got := make(chan int, 1)
	failed := make(chan error, 1)
	s.serve(func(c *net.TCPConn) {
		_, _ = c.Write([]byte("!"))
		n, err := io.Copy(io.Discard, c)
		got <- int(n)
		failed <- err
	})
	for round := range 20 {
		c := s.dial()
		size := round * 5000
		_, err := c.Write(pattern(size, 0))
		nettest.Must(t, err)
		_, err = io.ReadFull(c, make([]byte, 1))
		nettest.Must(t, err)
		waitAcknowledged(t, c)
		nettest.Must(t, c.SetLinger(0))
		c.Close()
		if n, err := <-got, <-failed; err == nil || n > size {
			t.Errorf("round %d: target got %d bytes of %d, then %v", round, n, size, err)
		}
		s.ends(flow.EndClientReset)
	}
}

// TestTargetResets holds that a client gets all bytes of a target that resets, then
// the reset.
func TestTargetResets(t *testing.T) { eachMode(t, testTargetResets) }

func testTargetResets(t *testing.T, in standOption) {
	t.Parallel()
	s := newStand(t, in)
	size := make(chan int, 1)
	s.serve(func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 1)) // the far relay has connected
		_, _ = c.Write(pattern(<-size, 0))
		waitAcknowledged(t, c)
		_ = c.SetLinger(0)
	})
	for round := range 20 {
		n := round * 5000
		size <- n
		c := s.dial()
		_, err := c.Write([]byte("!"))
		nettest.Must(t, err)
		b, err := io.ReadAll(c)
		c.Close()
		if err == nil || len(b) != n {
			t.Errorf("round %d: client got %d bytes of %d, then %v", round, len(b), n, err)
		}
		s.ends(flow.EndTargetReset)
	}
}

// hastyAcceptor takes the error of each target's socket before it hands it over.
type hastyAcceptor struct {
	*stand
	dialed chan struct{} // closed when the target may reset
}

func (a *hastyAcceptor) Dial(ctx context.Context, o flow.Open) (flow.Target, error) {
	target, err := a.stand.Dial(ctx, o)
	if err != nil {
		return target, err
	}
	close(a.dialed)
	look := []unix.PollFd{{Fd: int32(target.FD), Events: unix.POLLRDHUP}}
	for _, err = unix.Poll(look, 60_000); err == unix.EINTR; _, err = unix.Poll(look, 60_000) {
	}
	nettest.Must(a.t, err)
	errno, err := unix.GetsockoptInt(target.FD, unix.SOL_SOCKET, unix.SO_ERROR)
	nettest.Must(a.t, err)
	target.Reset = unix.Errno(errno)
	return target, nil
}

// TestTargetResetsBeforeHandOver holds that a reset is none the less one when nobody can
// read it from the socket any more: a read returns an end.
func TestTargetResetsBeforeHandOver(t *testing.T) {
	t.Parallel()
	dialed := make(chan struct{})
	s := newStand(t, func(s *stand, _ *pair.Options, _ *pair.LinkOptions) { s.acceptor = &hastyAcceptor{s, dialed} })
	s.serve(func(c *net.TCPConn) {
		<-dialed
		_ = c.SetLinger(0)
	})
	c := s.dial()
	defer c.Close()
	if n, err := c.Read(make([]byte, 1)); n > 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client got %d bytes, %v; want a reset", n, err)
	}
	s.ends(flow.EndTargetReset)
}

// TestCleanEndWithRacingReset holds that the target's whole answer and its end arrive
// although the client's reset follows.
func TestCleanEndWithRacingReset(t *testing.T) { eachMode(t, testCleanEndWithRacingReset) }

func testCleanEndWithRacingReset(t *testing.T, in standOption) {
	t.Parallel()
	s := newStand(t, in)
	s.serve(func(c *net.TCPConn) {
		_, _ = c.Write(pattern(30000, 0))
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	})
	for range 20 {
		c := s.dial()
		b, err := io.ReadAll(c)
		nettest.Must(t, err)
		checkEqual(t, b, pattern(30000, 0))
		nettest.Must(t, c.SetLinger(0))
		c.Close()
		s.ends(flow.EndClientReset)
	}
}

// TestClientResetsAfterBothEnds holds that a flow ends at once whose client resets what both
// relays have already passed on.
func TestClientResetsAfterBothEnds(t *testing.T) { eachMode(t, testClientResetsAfterBothEnds) }

func testClientResetsAfterBothEnds(t *testing.T, in standOption) {
	t.Parallel()
	s := newStand(t, in)
	s.serve(func(c *net.TCPConn) {
		_, _ = io.Copy(io.Discard, c)
		_, _ = c.Write(pattern(300000, 0))
	})
	c := s.dial()
	defer c.Close()
	nettest.Must(t, c.SetReadBuffer(4096)) // what does not fit waits at the near relay
	nettest.Must(t, c.CloseWrite())
	f := s.flow(0)
	nettest.Eventually(t, patience, func() bool { return f.Figures().State == flow.StateDelivering }, s.dump)
	nettest.Must(t, c.SetLinger(0))
	c.Close()
	s.ends(flow.EndClean)
}

func TestTargetRefuses(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	l := nettest.ListenTCP(t, "127.0.0.1:0")
	s.setTarget(addrOf(l))
	l.Close()
	c := s.dial()
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the client got a byte")
	}
	s.ends(flow.EndTargetRefused)
}

// TestLanesLost cuts the path at random moments while random data goes both ways.
func TestLanesLost(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.serve(echo)
	const flows, size, cuts = 4, 512 << 10, 8
	var all sync.WaitGroup
	var received atomic.Int64
	var happened [cuts]chan struct{} // each cut meets all flows: none is so far ahead that it has ended
	for i := range happened {
		happened[i] = make(chan struct{})
	}
	for i := range flows {
		c := s.dial()
		want := make([]byte, size)
		random := mathrand.NewChaCha8([32]byte{byte(i)})
		_, _ = random.Read(want)
		all.Go(func() {
			for at := 0; at < size; {
				if cut := at*10/size - 2; cut >= 0 && cut < cuts {
					<-happened[cut]
				}
				n := min(size-at, 32<<10)
				if _, err := c.Write(want[at : at+n]); err != nil {
					t.Error(err)
				}
				at += n
			}
			_ = c.CloseWrite()
		})
		all.Go(func() {
			defer c.Close()
			got, err := readCounting(c, 32<<10, &received)
			if err != nil {
				t.Errorf("flow %d: %v after %d bytes", i, err, len(got))
			}
			checkEqual(t, got, want)
		})
	}
	for i := range int64(cuts) {
		at := (i + mathrand.Int64N(2)) * flows * size / 10
		nettest.Eventually(t, patience, func() bool { return received.Load() >= at }, s.dump)
		s.path.cut(false)
		close(happened[i])
	}
	all.Wait()
	resumes := 0
	for range flows {
		e := <-s.nearEnds
		if e.Reason != flow.EndClean {
			t.Errorf("near relay ended by %q: %v", e.Reason, e.Err)
		}
		resumes += e.Resumes
		if e := <-s.farEnds; e.Reason != flow.EndClean {
			t.Errorf("far relay ended by %q: %v", e.Reason, e.Err)
		}
	}
	t.Logf("%d lanes replaced", resumes)
	if resumes == 0 {
		t.Error("no lane was lost")
	}
}

func waitAcknowledged(t testing.TB, c *net.TCPConn) {
	raw, err := c.SyscallConn()
	nettest.Must(t, err)
	nettest.Eventually(t, patience, func() (done bool) {
		_ = raw.Control(func(fd uintptr) { done = socket.Unacknowledged(int(fd)) == 0 })
		return done
	}, func() string { return "bytes are not acknowledged" })
}
