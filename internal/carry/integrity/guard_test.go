package integrity

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// clock is a clock set by the test.
type clock struct{ time.Time }

func newMemory(c *clock) *Memory {
	m := NewMemory()
	m.now = func() time.Time { return c.Time }
	return m
}

// undatedNonce is a nonce of a program without stamps.
func undatedNonce(i int) (n nonce) {
	binary.BigEndian.PutUint32(n[:], uint32(i))
	return n
}

func (m *Memory) expect(t *testing.T, what string, n nonce, want admission) {
	t.Helper()
	if got := m.admit(n); got != want {
		t.Fatalf("%s: %d, want %d", what, got, want)
	}
}

func TestStamp(t *testing.T) {
	for _, second := range []int64{0, 1, 1 << 31, 1<<32 - 1} {
		if got, ok := stampedNonce(time.Unix(second, 5e8)).stamp(); !ok || got != second {
			t.Errorf("the stamp of second %d is %d, %v", second, got, ok)
		}
	}
	if _, ok := undatedNonce(1).stamp(); ok {
		t.Error("a nonce without a stamp has one")
	}
	if a, b := stampedNonce(time.Unix(1, 0)), stampedNonce(time.Unix(1, 0)); a == b {
		t.Error("two nonces are the same")
	}
}

func TestHelloIsAdmittedOnce(t *testing.T) {
	c := &clock{time.Unix(1e9, 0)}
	m := newMemory(c)
	for _, tt := range []struct {
		off  time.Duration
		want admission
	}{
		{0, fresh},
		{-maxSkew, fresh}, {maxSkew, fresh},
		{-maxSkew - time.Second, skewed}, {maxSkew + time.Second, skewed},
		{-1000 * time.Hour, skewed}, {1000 * time.Hour, skewed},
	} {
		n := stampedNonce(c.Add(tt.off))
		m.expect(t, tt.off.String()+" off", n, tt.want)
		m.expect(t, tt.off.String()+" off, again", n, repeated)
	}
	m.expect(t, "without a stamp", undatedNonce(1), undated)
	m.expect(t, "without a stamp, again", undatedNonce(1), repeated)

	// Every second in which its stamp is valid.
	early := stampedNonce(c.Add(maxSkew))
	m.expect(t, "of a clock that is ahead", early, fresh)
	for range int(2 * maxSkew / time.Second) {
		c.Time = c.Add(time.Second)
		m.expect(t, "again, later", early, repeated)
		m.expect(t, "a new one", stampedNonce(c.Time), fresh) // which removes the oldest
	}
	c.Time = c.Add(time.Second)
	m.expect(t, "after its time", early, skewed)
}

// With any number of hellos the memory is bounded, and no hello is admitted
// twice: a forgotten one is too old.
func TestMemoryHasABound(t *testing.T) {
	c := &clock{time.Unix(1e9, 0)}
	m := newMemory(c)
	first := stampedNonce(c.Time)
	m.expect(t, "the first", first, fresh)
	c.Time = c.Add(time.Second)
	second := stampedNonce(c.Time)
	m.expect(t, "one of the next second", second, fresh)
	c.Time = c.Add(time.Second)
	for range maxNonces - 2 {
		m.expect(t, "one of many", stampedNonce(c.Time), fresh)
	}
	m.expect(t, "the first again, while remembered", first, repeated)
	m.expect(t, "one more", stampedNonce(c.Time), fresh)
	if m.stamped > maxNonces || len(m.bySecond) != 2 {
		t.Errorf("%d hellos of %d seconds are remembered", m.stamped, len(m.bySecond))
	}
	m.expect(t, "the first again, once forgotten", first, repeated)
	m.expect(t, "another so old", stampedNonce(c.Add(-2*time.Second)), repeated)
	m.expect(t, "the second again", second, repeated)
	m.expect(t, "another like the second", stampedNonce(c.Add(-time.Second)), fresh)

	// All in one second.
	for range maxNonces + 1 {
		m.admit(stampedNonce(c.Time))
	}
	m.expect(t, "one of a second with too many", stampedNonce(c.Time), repeated)
	c.Time = c.Add(time.Second)
	m.expect(t, "one of the next second", stampedNonce(c.Time), fresh)
	c.Time = c.Add(-time.Hour)
	m.expect(t, "one after the clock was set back", stampedNonce(c.Time), fresh)
	if m.stamped != 1 {
		t.Errorf("%d hellos are remembered after the clock was set back", m.stamped)
	}

	for i := range 3 * maxUndated {
		m.expect(t, "one without a stamp", undatedNonce(i), undated)
	}
	if len(m.undated) != maxUndated || len(m.order) != maxUndated {
		t.Errorf("%d and %d hellos without a stamp are remembered", len(m.undated), len(m.order))
	}
	for i := 2 * maxUndated; i < 3*maxUndated; i++ {
		m.expect(t, "one of the last without a stamp", undatedNonce(i), repeated)
	}
}

func TestPlacesHaveBounds(t *testing.T) {
	g := newGuard(NewMemory())
	source := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }
	var places []*place
	take := func(from int, undated, want bool) {
		t.Helper()
		p := g.place(source(from))
		if got := p.take(undated); got != want {
			t.Fatalf("a place for %v: %v with %d taken", source(from), got, g.unproven)
		}
		if want {
			places = append(places, p)
		}
	}
	for range maxUnprovenUndated {
		take(1, true, true)
	}
	take(2, true, false)
	for range maxUnprovenSource - maxUnprovenUndated {
		take(1, false, true)
	}
	take(1, false, false)
	for range maxUnproven - maxUnprovenSource {
		take(2, false, true)
	}
	take(3, false, false)

	for i, p := range places {
		for range 2 {
			if got, want := p.prove(), i < maxProven; got != want {
				t.Fatalf("place %d is proven: %v, want %v", i, got, want)
			}
		}
	}
	if g.unproven != 0 || g.undated != 0 || len(g.bySource) != 0 {
		t.Errorf("places are left: %+v", g)
	}
	places = places[:maxProven]
	take(1, false, true) // connections with the key take no places of others
	if last := places[maxProven]; last.prove() {
		t.Error("one more than there may be is proven")
	}
	for _, p := range places {
		p.leave()
		p.leave()
	}
	if g.proven != 0 || g.unproven != 0 || len(g.bySource) != 0 {
		t.Errorf("places are left: %+v", g)
	}
}

// hello sends a hello and returns the session, or the fault.
func (s *stand) hello(to netip.AddrPort) (*session, *trouble) {
	s.t.Helper()
	conn, err := dialTCP(s.t.Context(), to)
	if err != nil {
		s.t.Fatal(err)
	}
	s.keep(conn)
	return greet(conn, &testKey, &relayClock{now: time.Now})
}

// Connections that only send a hello do not take the places of others, and one
// source cannot take all places. A refused connection learns the reason.
func TestWhoSaysOnlyHello(t *testing.T) {
	s := newStand(t)
	b := server("b", NextTarget)
	to := s.relay(b, s.target())
	last, trouble := s.hello(to)
	if trouble != nil {
		t.Fatal(trouble)
	}
	for range maxUnprovenSource - 1 {
		if _, trouble := s.hello(to); trouble != nil {
			t.Fatalf("%+v", trouble)
		}
	}
	if _, trouble := s.hello(to); trouble == nil || trouble.Reason != Busy {
		t.Fatalf("one more: %+v", trouble)
	}
	if chain := s.walk(to, NextRelay, MinBytes); chain.Fault == nil || chain.Fault.Reason != Busy || !strings.Contains(chain.Fault.Text, "answers too many checks") {
		t.Errorf("a check of the same source: %+v", chain.Fault)
	}
	if _, err := last.ask(); err != nil { // it has proved the key
		t.Fatal(err)
	}
	if chain := s.walk(to, NextRelay, MinBytes); chain.State != Whole {
		t.Errorf("a check: %+v", chain.Fault)
	}
}

// The number of concurrent checks is bounded, and a refused asker learns the
// reason.
func TestChecksHaveABound(t *testing.T) {
	s := newStand(t)
	to := s.relay(server("b", NextTarget), s.target())
	var running []*session
	for range maxProven {
		session, trouble := s.hello(to)
		if trouble != nil {
			t.Fatal(trouble)
		}
		if _, err := session.ask(); err != nil {
			t.Fatal(err)
		}
		running = append(running, session)
	}
	chain := s.walk(to, NextRelay, MinBytes)
	if chain.Fault == nil || !strings.Contains(chain.Fault.Text, "it answers too many checks at the same time") {
		t.Errorf("one more: %+v", chain.Fault)
	}
	if err := running[0].send(kindBye, nil); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, running[0].conn)
	if chain := s.walk(to, NextRelay, MinBytes); chain.State != Whole {
		t.Errorf("after one has ended: %+v", chain.Fault)
	}
}

// A repeated hello gets no byte and no place.
func TestRepeatedHelloGetsNothing(t *testing.T) {
	s := newStand(t)
	b := server("b", NextTarget)
	to := s.relay(b, s.target())
	for what, hello := range map[string][]byte{
		"stamped":         testKey.hello(stampedNonce(time.Now())),
		"of another time": testKey.hello(stampedNonce(time.Now().Add(-time.Hour))),
		"without a stamp": testKey.hello(undatedNonce(7)),
	} {
		for i := range 20 {
			conn, err := dialTCP(t.Context(), to)
			if err != nil {
				t.Fatal(err)
			}
			s.keep(conn)
			if _, err := conn.Write(hello); err != nil {
				t.Fatal(err)
			}
			_ = conn.(*net.TCPConn).CloseWrite()
			got, err := io.ReadAll(conn)
			if err != nil || (len(got) == 0) != (i > 0) {
				t.Fatalf("%s, time %d: %d bytes, %v", what, i+1, len(got), err)
			}
		}
	}
}

// A checker without stamps is answered, so that relays can be upgraded in any
// order. It cannot take the places of others.
func TestCheckersWithoutStamps(t *testing.T) {
	s := newStand(t)
	to := s.relay(server("b", NextTarget), s.target())
	greeted := func(i int) (Conn, int) {
		conn, err := dialTCP(t.Context(), to)
		if err != nil {
			t.Fatal(err)
		}
		s.keep(conn)
		if _, err := conn.Write(testKey.hello(undatedNonce(i))); err != nil {
			t.Fatal(err)
		}
		n, _ := io.ReadFull(conn, make([]byte, allReplyBytes))
		return conn, n
	}
	for i := range maxUnprovenUndated {
		if _, n := greeted(i); n != allReplyBytes {
			t.Fatalf("the reply has %d bytes", n)
		}
	}
	if _, n := greeted(maxUnprovenUndated); n != 0 {
		t.Errorf("one more gets %d bytes", n)
	}
	if chain := s.walk(to, NextRelay, MinBytes); chain.State != Whole {
		t.Errorf("%+v", chain.Fault)
	}
}

// A relay answers under both of its keys and asks with the first. So relays
// understand each other with the two keys in any order.
func TestTwoKeys(t *testing.T) {
	s := newStand(t)
	fresh := NewKey()
	both := []Keys{{testKey, fresh}, {fresh, testKey}}
	target := s.target()
	for _, ofB := range both {
		for _, ofC := range both {
			c := server("c", NextTarget)
			c.Keys = ofC
			b := server("b", NextRelay)
			b.Keys = ofB
			to := s.relay(b, s.relay(c, target))
			for _, key := range []Key{testKey, fresh} {
				if chain := s.walkWith(key, to, NextRelay, MinBytes); chain.State != Whole || len(chain.Hops) != 3 {
					t.Errorf("%+v", chain.Fault)
				}
			}
			third := NewKey()
			if b.Keys.Recognize(third.hello(stampedNonce(time.Now()))) != NoHello {
				t.Error("a third key is taken")
			}
		}
	}
	one := Keys{First: testKey}
	var none Key
	if one.Recognize(none.hello(stampedNonce(time.Now()))) != NoHello {
		t.Error("the key that is missing is one")
	}
}
