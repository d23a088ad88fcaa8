package integrity

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// offMemory is the memory of a host whose clock is off.
func offMemory(off time.Duration) *Memory {
	m := NewMemory()
	m.now = func() time.Time { return time.Now().Add(off) }
	return m
}

// offServer is a server whose clock is off; it counts the hellos that it
// refuses.
func offServer(name string, next Next, off time.Duration) (Server, *atomic.Int32) {
	refused := new(atomic.Int32)
	s := server(name, next)
	s.Guard = NewGuard(offMemory(off), func(string, netip.AddrPort) { refused.Add(1) })
	return s, refused
}

func probe(t *testing.T, m *Memory, to netip.AddrPort) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := Health{Key: testKey, Memory: m}.Probe(ctx, to)
	return err
}

// Checks and health checks work with any clocks. A wrong clock costs one
// refused hello, not one per check. At 873605f a wrong clock broke the chain
// and took the hop down.
func TestClocksDiffer(t *testing.T) {
	const off = 7 * time.Minute
	for _, tt := range []struct{ here, b, c time.Duration }{
		{0, 0, 0},
		{90 * time.Second, 0, 0},
		{0, off, 0}, {0, -off, 0},
		{off, 0, 0}, {-off, 0, 0},
		{0, 0, off}, {0, 0, -off},
		{0, off, off}, {0, -off, -2 * off},
		{-off, off, -off}, {3 * time.Hour, -1000 * time.Hour, 30000 * time.Hour},
	} {
		t.Run(fmt.Sprintf("%v %v %v", tt.here, tt.b, tt.c), func(t *testing.T) {
			s := newStand(t)
			b, byB := offServer("b", NextRelay, tt.b)
			c, byC := offServer("c", NextTarget, tt.c)
			here := offMemory(tt.here)
			to := s.relay(b, s.relay(c, s.target()))
			for range 2 {
				if err := probe(t, here, to); err != nil {
					t.Errorf("the hop's health is %v", err)
				}
				chain := s.walkFrom(here, testKey, to, NextRelay, MinBytes)
				if chain.State != Whole || len(chain.Hops) != 3 || chain.Hops[1].Through == nil {
					t.Fatalf("want a chain of 3 hops that is whole: %+v, its fault is %+v", chain, chain.Fault)
				}
				for i, ahead := range []time.Duration{tt.b - tt.here, tt.c - tt.here} {
					told, isOff := chain.Hops[i].ClockIsOff()
					if (told-ahead).Abs() > 30*time.Second || isOff != (ahead.Abs() > maxSkew) {
						t.Errorf("the clock of hop %d is told to be %v ahead, %v, want %v", i+1, told, isOff, ahead)
					}
				}
			}
			want := func(name string, got int32, ahead time.Duration) {
				if n := map[bool]int32{true: 1}[ahead.Abs() > maxSkew]; got != n {
					t.Errorf("%s refused %d hellos, want %d", name, got, n)
				}
			}
			want("b", byB.Load(), tt.b-tt.here)
			want("c", byC.Load(), tt.c-tt.b)
		})
	}
}

// A clock that is set while checks go on costs one refusal each time.
func TestClockIsSet(t *testing.T) {
	s := newStand(t)
	b, refused := offServer("b", NextTarget, 0)
	var off atomic.Int64
	b.Guard.memory.now = func() time.Time { return time.Now().Add(time.Duration(off.Load())) }
	to := s.relay(b, s.target())
	here := NewMemory()
	for i, by := range []time.Duration{0, 7 * time.Minute, 0, -7 * time.Minute, 0} {
		off.Store(int64(by))
		for range 2 {
			if err := probe(t, here, to); err != nil || int(refused.Load()) != i {
				t.Errorf("%v off: %v, %d refusals, want %d", by, err, refused.Load(), i)
			}
		}
	}
	if len(here.ahead) != 0 {
		t.Errorf("clocks that are right are remembered: %v", here.ahead)
	}
}

// jumps is a clock with another error for each hello; a relay reads it twice
// per hello.
func jumps(offs ...time.Duration) func() time.Time {
	var looks atomic.Int32
	return func() time.Time {
		i := min(int(looks.Add(1)-1)/2, len(offs)-1)
		return time.Now().Add(offs[i])
	}
}

// A relay that refuses its own reported time breaks the chain.
func TestClockJumps(t *testing.T) {
	s := newStand(t)
	b := server("b", NextTarget)
	b.Guard.memory.now = jumps(time.Hour, 2*time.Hour, 3*time.Hour, 4*time.Hour)
	to := s.relay(b, s.target())
	chain := s.walk(to, NextRelay, MinBytes)
	if f := chain.Fault; f == nil || f.Reason != Clock || f.Hop != 1 || !strings.Contains(f.Text, "refuses the time of a check of here a second time") || !strings.Contains(f.Hint, "jump") {
		t.Errorf("%+v", f)
	}
	if err := probe(t, NewMemory(), to); err == nil || !strings.Contains(err.Error(), " ahead of the asker's") {
		t.Errorf("the hop's health is %v", err)
	}
}

// If the previous relay cannot report a relay's clock, because its version has
// no stamps, the relay's own refusal reports it.
func TestClockBehindRelayThatCannotTell(t *testing.T) {
	s := newStand(t)
	c := server("c", NextTarget)
	c.Guard.memory.now = jumps(0, 7*time.Minute, 0, 7*time.Minute) // b sees one clock, the asker behind b another
	chain := s.walk(s.relay(server("b", NextRelay), s.relay(c, s.target())), NextRelay, MinBytes)
	if chain.State != Whole || len(chain.Hops) != 3 {
		t.Errorf("%+v, its fault is %+v", chain, chain.Fault)
	}
}

// A refusal belongs to one hello: a recorded one cannot change an asker's view
// of the clock.
func TestRefusalBelongsToItsHello(t *testing.T) {
	recorded := stampedNonce(time.Now())
	refusal := testKey.reply(recorded, reply{nonce: stampedNonce(time.Now().Add(time.Hour)), refuse: refuseClock})
	if r, _, _, ok := testKey.findReply(recorded, refusal); !ok || r.refuse != refuseClock {
		t.Errorf("a refusal is %+v, %v", r, ok)
	}
	stranger := NewKey()
	if _, _, _, ok := stranger.findReply(recorded, refusal); ok {
		t.Error("a refusal under another key is taken")
	}
	s := newStand(t)
	to := s.listen(func(conn *net.TCPConn) {
		_, _ = io.ReadFull(conn, make([]byte, HelloBytes))
		_, _ = conn.Write(refusal)
	})
	m := NewMemory()
	chain := s.walkFrom(m, testKey, to, NextRelay, MinBytes)
	if chain.Fault == nil || chain.Fault.Reason == Clock || len(m.ahead) != 0 {
		t.Errorf("a refusal of another hello is taken: %+v, %v", chain.Fault, m.ahead)
	}
}

func TestClocksHaveABound(t *testing.T) {
	m := NewMemory()
	hour := time.Hour
	for i := range 3 * maxClocks {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 6000)
		m.remember(at, &relayClock{ahead: &hour})
		if c := m.clock(at); c.ahead == nil || *c.ahead != hour {
			t.Fatalf("clock %d is not remembered", i)
		}
	}
	if len(m.ahead) > maxClocks {
		t.Errorf("%d clocks are remembered", len(m.ahead))
	}
}
