package pair_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/wire"
	"longhaul/test/hostile"
	"longhaul/test/nettest"
)

// deafen makes the kernel drop everything that comes for a socket.
func deafen(t testing.TB, c *net.TCPConn) {
	drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	raw, err := c.SyscallConn()
	nettest.Must(t, err)
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop[0]})
	})
}

// needsDeaf skips a test that proves nothing where the kernel lets this user drop no packets of a
// socket of his own.
func needsDeaf(t *testing.T) {
	t.Helper()
	root, err := nettest.MachineRoot()
	nettest.Must(t, err)
	if !root {
		t.Skip("needs root: some kernels let nobody else filter a socket's packets")
	}
}

func direct(s *stand, _ *pair.Options, o *pair.LinkOptions) {
	address := addrOf(s.lanes)
	o.Addresses = func(context.Context) ([]netip.AddrPort, error) { return []netip.AddrPort{address}, nil }
}

func (s *stand) awaitWarm(n int) {
	s.t.Helper()
	nettest.Eventually(s.t, patience, func() bool { return s.near.State().Sessions[0].LanesWarm >= n }, s.dump)
}

// TestBlackHoles holds that a flow goes on when its lane, or everything, falls silent.
func TestBlackHoles(t *testing.T) {
	t.Parallel()
	needsDeaf(t)
	for _, c := range []struct {
		name  string
		kinds []preface.Kind
	}{{"lanes", []preface.Kind{preface.Lane}}, {"control", []preface.Kind{preface.Control}}, {"both", []preface.Kind{preface.Lane, preface.Control}}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			client := s.begin("before")
			s.awaitWarm(2)
			s.path.deafen(c.kinds...)
			s.roundTrip(client, "behind")
			fresh := s.dial()
			defer fresh.Close()
			s.roundTrip(fresh, "a new flow")
			nettest.Must(t, client.CloseWrite())
			nettest.Must(t, fresh.CloseWrite())
			s.ends(flow.EndClean)
			s.ends(flow.EndClean)
		})
	}
}

// greeted returns a stand whose target echoes, and a client that has an echo.
func greeted(t *testing.T) (*stand, *net.TCPConn) {
	t.Helper()
	s := newStand(t)
	c := s.begin("hello")
	return s, c
}

// TestFarRestarts holds that the flows of a far process that died are reset at once,
// and that new ones are served.
func TestFarRestarts(t *testing.T) {
	t.Parallel()
	s, c := greeted(t)
	// The old process dies without a word: its connections break, its flows are gone.
	old := s.farNode()
	s.mu.Lock()
	s.far = s.node(pair.Options{}, s.farKeys)
	s.mu.Unlock()
	s.path.cut(false)
	if _, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("the client sees %v", err)
	}
	if e := <-s.nearEnds; e.Reason != flow.EndPeerRestarted {
		t.Errorf("ended by %q", e.Reason)
	}
	fresh := s.dial()
	defer fresh.Close()
	s.roundTrip(fresh, "again")
	old.Close()
}

// TestOutageLongerThanResume holds that both ends give up.
func TestOutageLongerThanResume(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(_ *stand, _ *pair.Options, o *pair.LinkOptions) {
		o.Resume = 300 * time.Millisecond
	})
	c := s.begin("hello")
	s.path.cut(true)
	_, _ = c.Write([]byte("lost"))
	s.ends(flow.EndWANLost)
	if _, err := io.ReadAll(c); err == nil {
		t.Error("the client sees an end")
	}
}

// TestInOutage holds that what both ends did in an outage arrives after it.
func TestInOutage(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.serve(func(c *net.TCPConn) {
		b, _ := io.ReadAll(c)
		_, _ = c.Write(bytes.ToUpper(b))
	})
	ended, reset := s.dial(), s.dial()
	defer ended.Close()
	for _, c := range []*net.TCPConn{ended, reset} {
		_, err := c.Write([]byte("hello"))
		nettest.Must(t, err)
	}
	nettest.Eventually(t, patience, func() bool {
		st := s.near.State().Sessions[0]
		return st.RetainedBytes == 0 && st.FlowsMoving == 2
	}, s.dump)
	s.path.cut(true)
	_, err := ended.Write([]byte(" world"))
	nettest.Must(t, err)
	nettest.Must(t, ended.CloseWrite())
	nettest.Must(t, reset.SetLinger(0))
	reset.Close()
	s.path.cut(false)
	if b, err := io.ReadAll(ended); err != nil || string(b) != "HELLO WORLD" {
		t.Errorf("got %q, %v", b, err)
	}
	reasons := map[flow.EndReason]int{}
	for range 2 {
		reasons[(<-s.nearEnds).Reason]++
		reasons[(<-s.farEnds).Reason]++
	}
	if reasons[flow.EndClean] != 2 || reasons[flow.EndClientReset] != 2 {
		t.Errorf("ended by %v", reasons)
	}
}

// TestProblems holds that the cause of a session that does not stand is named.
func TestProblems(t *testing.T) {
	t.Parallel()
	garbage := nettest.ListenTCP(t, "127.0.0.1:0")
	t.Cleanup(func() { garbage.Close() })
	go func() {
		for {
			c, err := garbage.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("SSH-2.0-OpenSSH_10.0\r\n"))
			_, _ = c.Read(make([]byte, 1000))
			c.Close()
		}
	}()
	nobody := nettest.ListenTCP(t, "127.0.0.1:0")
	nobody.Close()
	to := func(l *net.TCPListener) standOption {
		return func(_ *stand, _ *pair.Options, o *pair.LinkOptions) {
			address := addrOf(l)
			o.Addresses = func(context.Context) ([]netip.AddrPort, error) { return []netip.AddrPort{address}, nil }
		}
	}
	for _, c := range []struct {
		option standOption
		want   flow.PairProblem
	}{
		{to(garbage), flow.PairUnpaired},
		{to(nobody), flow.PairPathDown},
		{func(s *stand, _ *pair.Options, _ *pair.LinkOptions) { s.farKeys.forget("near") }, flow.PairKeyUnknown},
		{func(s *stand, _ *pair.Options, _ *pair.LinkOptions) { s.nearKeys.forget("far") }, flow.PairKeyUnknown},
		{func(s *stand, _ *pair.Options, _ *pair.LinkOptions) { s.admit = false }, flow.PairDenied},
	} {
		t.Run(string(c.want), func(t *testing.T) {
			t.Parallel()
			s := newStand(t, c.option)
			nettest.Eventually(t, patience, func() bool { return s.near.State().Sessions[0].Problem == c.want }, s.dump)
		})
	}
}

// TestPeerRemoved holds that a peer that is admitted no more loses its flows.
func TestPeerRemoved(t *testing.T) {
	t.Parallel()
	s, c := greeted(t)
	s.mu.Lock()
	s.admit = false
	s.mu.Unlock()
	if _, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("the client sees %v", err)
	}
}

// TestTunnelRemoved holds that flows outlive their far tunnel, and that no other one comes.
func TestTunnelRemoved(t *testing.T) {
	t.Parallel()
	s, c := greeted(t)
	s.removed.Store(true)
	nettest.Eventually(t, patience, func() bool {
		return slices.ContainsFunc(s.near.State().Sessions, func(n flow.Session) bool { return n.Problem == flow.PairDenied })
	}, s.dump)
	s.roundTrip(c, "and on")
	nettest.Must(t, c.CloseWrite())
	if b, err := io.ReadAll(c); len(b) != 0 || err != nil {
		t.Errorf("%q, %v; want the end", b, err)
	}
	s.ends(flow.EndClean)
}

// TestRotation holds that a new key reaches the peer over a session that stands.
func TestRotation(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	next := newKeyring(t).public()
	s.nearKeys.mu.Lock()
	s.nearKeys.announced = next
	s.nearKeys.mu.Unlock()
	nettest.Eventually(t, patience, func() bool {
		s.nearKeys.mu.Lock()
		defer s.nearKeys.mu.Unlock()
		return len(s.nearKeys.taken) == 1 && len(s.farKeys.PeerKeys("near")) == 2
	}, s.dump)
}

// TestDrain holds that a draining far relay keeps its flows, and that new ones go to
// its successor.
func TestDrain(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	c := s.begin("old")
	old := s.farNode()
	s.mu.Lock()
	s.far = s.node(pair.Options{Elsewhere: func(instance uint64, fd int, first []byte) bool {
		if instance != old.Instance() {
			return false
		}
		old.Serve(fd, first, s)
		return true
	}}, s.farKeys)
	s.mu.Unlock()
	t.Cleanup(old.Close)
	old.Drain()
	nettest.Eventually(t, patience, func() bool { return len(s.near.State().Sessions) == 2 }, s.dump)
	fresh := s.dial()
	defer fresh.Close()
	s.roundTrip(fresh, "new")
	if n := old.Flows(); n != 1 {
		t.Errorf("the old process has %d flows", n)
	}
	s.path.cut(false) // the old flow's lane has to find the old process
	s.roundTrip(c, "old again")
	nettest.Must(t, c.CloseWrite())
	s.ends(flow.EndClean)
	nettest.Eventually(t, patience, func() bool { return len(s.near.State().Sessions) == 1 }, s.dump)
}

// TestPathIsDead holds that a control connection ends on which a PING has no answer and nothing else
// comes, and that one stays on which other messages come.
func TestPathIsDead(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	up := func(number uint64) bool {
		return slices.ContainsFunc(s.sessionsOf("hostile"), func(one flow.Session) bool { return one.Session == pair.NumberText(number) && one.Up })
	}
	begin := func() (number uint64, control *hostile.Conn) {
		peer := s.hostilePeer()
		hello := peer.Hello()
		session, err := peer.Begin(ctx, hello, hostile.Dialing{})
		nettest.Must(t, err)
		nettest.Eventually(t, patience, func() bool { return up(hello.Session) }, s.dump) // the answer comes first
		return hello.Session, session.Control
	}
	talks, control := begin()
	s.tasks.Go(func() {
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for control.Send(wire.Message{Type: wire.MessageAck, Flow: 1, Offset: 1}) == nil {
			<-ticker.C
		}
	})
	control.Discard()
	defer control.Close()
	silent, other := begin() // later, so that the first one's PING waits for longer
	defer other.Close()
	nettest.Eventually(t, patience, func() bool { return !up(silent) }, s.dump)
	if !up(talks) {
		t.Error("the connection on which messages come has ended")
	}
}
