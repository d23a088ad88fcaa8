package pair_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/pair/preface"
	"longhaul/test/nettest"
)

// fill writes until nothing more goes, and returns how much went.
func fill(c *net.TCPConn) (n int) {
	b := make([]byte, 64<<10)
	for {
		_ = c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		m, err := c.Write(b)
		n += m
		if err != nil {
			return n
		}
	}
}

// stall accepts and reads nothing until the test ends.
func (s *stand) stall() {
	done := make(chan struct{})
	s.serve(func(*net.TCPConn) { <-done })
	s.t.Cleanup(func() { close(done) })
}

// TestStalledTarget holds that a client that sends to a target that reads nothing is
// stopped, with bounded memory, and that its reset still arrives.
func TestStalledTarget(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(s *stand, _ *pair.Options, _ *pair.LinkOptions) { s.resetDrain = 300 * time.Millisecond })
	s.stall()
	c := s.dial()
	n := fill(c)
	if kept := s.near.State().RetainedBytes; kept > 64<<20 {
		t.Errorf("%d bytes kept of %d", kept, n)
	}
	nettest.Eventually(t, patience, func() bool { // else the far relay never hears of the flow
		all := s.far.State().Sessions
		return len(all) > 0 && all[0].FlowsTotal > 0
	}, s.dump)
	nettest.Must(t, c.SetLinger(0))
	c.Close()
	s.ends(flow.EndClientReset)
}

// TestMemoryLimit holds all stores to a quarter of the limit in an outage, and that
// flows go on behind it.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	const limit = 8 << 20
	s := newStand(t, func(_ *stand, o *pair.Options, _ *pair.LinkOptions) {
		o.RetainedLimit = func() int64 { return limit / 4 }
	})
	s.serve(func(c *net.TCPConn) {
		n, _ := io.Copy(io.Discard, c)
		_, _ = c.Write(pattern(int(n%1000), 0))
	})
	var clients []*net.TCPConn
	for range 4 {
		c := s.dial()
		defer c.Close()
		_, err := c.Write([]byte("x"))
		nettest.Must(t, err)
		clients = append(clients, c)
	}
	nettest.Eventually(t, patience, func() bool {
		st := s.near.State()
		return st.Sessions[0].FlowsMoving == 4 && st.Sessions[0].RetainedBytes == 0 && st.RetainedLimitBytes > 0
	}, s.dump)
	s.path.cut(true)
	sent := make([]int, len(clients))
	for i, c := range clients {
		sent[i] = 1 + fill(c)
	}
	if kept := s.near.State().RetainedBytes; kept > limit/4+4*(20<<10) {
		t.Errorf("%d bytes kept under a limit of %d", kept, limit)
	}
	s.path.cut(false)
	for i, c := range clients {
		_ = c.SetDeadline(time.Now().Add(patience))
		nettest.Must(t, c.CloseWrite())
		if b, err := io.ReadAll(c); err != nil || len(b) != sent[i]%1000 {
			t.Errorf("flow %d: answer of %d bytes for %d sent, %v", i, len(b), sent[i], err)
		}
		s.ends(flow.EndClean)
	}
}

// TestReset holds that an operator's reset reaches both ends with its reason, and that
// the flow's figures can be read.
func TestReset(t *testing.T) {
	t.Parallel()
	s, c := greeted(t)
	f := s.flow(0)
	f.Inspect(func(leg, lane int, _ flow.Counters) {
		if leg < 0 || lane < 0 {
			t.Errorf("descriptors %d and %d", leg, lane)
		}
	})
	nettest.Eventually(t, patience, func() bool {
		g := f.Figures()
		return g.BytesUp == 5 && g.BytesDown == 5 && g.Retained == 0 && g.State == flow.StateOpen && g.Target == s.target
	}, func() string { return fmt.Sprintf("%+v", f.Figures()) })
	f.Reset(flow.EndShed, nil)
	if _, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("the client sees %v", err)
	}
	s.ends(flow.EndShed)
}

// TestResetOfADeliveredFlow holds that the relay may give up a flow of which only this end's kernel has
// something left, for a reader that takes nothing; at the end of the process that goes on.
func TestResetOfADeliveredFlow(t *testing.T) {
	t.Parallel()
	for _, reason := range []flow.EndReason{flow.EndHalfClosed, flow.EndDrain} {
		t.Run(string(reason), func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			const size = 200_000 // more than a small window, less than what the relay's kernel takes
			s.serve(func(c *net.TCPConn) {
				_, _ = c.Write(pattern(size, 1))
				_ = c.CloseWrite()
				_, _ = io.Copy(io.Discard, onlyReader{c})
			})
			d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
				return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<10) })
			}}
			c, err := d.Dial("tcp", s.clients.Addr().String())
			nettest.Must(t, err)
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			nettest.Must(t, c.(*net.TCPConn).CloseWrite())
			f := s.flow(0)
			nettest.Eventually(t, patience, func() bool { return f.Figures().Clean }, s.dump)
			f.Reset(reason, nil)
			if reason == flow.EndDrain {
				got, err := io.ReadAll(c)
				nettest.Must(t, err)
				checkEqual(t, got, pattern(size, 1))
			}
			s.ends(flow.EndClean) // of the reset before the client takes the rest: the near relay looks now and then
			if reason == flow.EndDrain {
				return
			}
			if _, err := io.ReadAll(c); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("the client sees %v", err)
			}
		})
	}
}

// TestNoSession holds that a client is reset when no session stands in its time.
func TestNoSession(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(s *stand, _ *pair.Options, _ *pair.LinkOptions) {
		s.deadline = 300 * time.Millisecond
		s.admit = false
	})
	c := s.dial()
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("the client sees %v", err)
	}
	if e := <-s.nearEnds; e.Reason != flow.EndPairDown || e.Err == nil {
		t.Errorf("ended by %q, %v", e.Reason, e.Err)
	}
}

// TestStrangers holds that what is no handshake of a peer gets nothing.
func TestStrangers(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.awaitWarm(1)
	valid := preface.Preface{Kind: preface.Lane}.Append(nil, s.farKeys.public())
	for name, b := range map[string][]byte{
		"garbage":          pattern(100, 0),
		"a foreign key":    preface.Preface{Kind: preface.Lane}.Append(nil, s.nearKeys.public()),
		"a replay":         append(valid, pattern(100, 0)...),
		"kind of a join":   preface.Preface{Kind: preface.Join}.Append(nil, s.farKeys.public()),
		"a preface, alone": valid,
	} {
		c, err := net.Dial("tcp", s.lanes.Addr().String())
		nettest.Must(t, err)
		_, err = c.Write(b)
		nettest.Must(t, err)
		_ = c.(*net.TCPConn).CloseWrite()
		_ = c.SetDeadline(time.Now().Add(patience))
		if got, _ := io.ReadAll(c); len(got) > 7 { // an alert of TLS
			t.Errorf("%s got %d bytes", name, len(got))
		}
		c.Close()
	}
}
