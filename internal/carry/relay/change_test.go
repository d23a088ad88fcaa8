package relay

import (
	"errors"
	"net/netip"
	"testing"

	"longhaul/internal/carry/relay/hops"
	"longhaul/test/nettest"
)

// A change that is prepared shows nothing but a bound address until it is
// committed, and leaves nothing when it is aborted.
func TestChangeIsCommittedOrAborted(t *testing.T) {
	nettest.CheckLeaks(t)
	g := fixed(t)
	added := nobody(t)
	tunnels := []Tunnel{
		{Name: "t", Listen: []netip.AddrPort{g.addr}, Forward: []hops.Target{targetOf(g.target)}},
		{Name: "added", Listen: []netip.AddrPort{added}, Forward: []hops.Target{targetOf(g.target)}},
	}
	prepare := func() *Change {
		t.Helper()
		c, err := g.relay.Prepare(tunnels)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	is := func(n int) {
		t.Helper()
		if got := len(g.relay.Snapshot().Tunnels); got != n {
			t.Fatalf("%d tunnels, want %d", got, n)
		}
	}

	c := prepare()
	is(1)
	waiting := dial(t, added)
	g.pair() // goes on
	if _, err := g.relay.Prepare(tunnels); err == nil {
		t.Error("two changes are prepared at the same time")
	}
	c.Abort()
	is(1)
	if _, err := waiting.Read(make([]byte, 1)); err == nil {
		t.Error("a client of a change that was aborted stays connected")
	}
	if c, err := tryDial(added); err == nil {
		c.Close()
		t.Error("the address of a change that was aborted is still bound")
	}
	if err := c.Commit(); !errors.Is(err, ErrClosed) {
		t.Errorf("an aborted change is committed: %v", err)
	}

	c = prepare()
	waiting = dial(t, added)
	if err := c.Commit(); err != nil {
		t.Fatal(err)
	}
	c.Abort() // too late
	is(2)
	s := g.accept()
	write(t, waiting, []byte("x"))
	expect(t, s, []byte("x"))
	waiting.Close()
	s.Close()

	// What ends the relay ends the change before it.
	tunnels = tunnels[:1]
	tunnels[0].Listen = []netip.AddrPort{g.addr, nobody(t)}
	c = prepare()
	g.relay.Close()
	if err := c.Commit(); !errors.Is(err, ErrClosed) {
		t.Errorf("a change of a closed relay is committed: %v", err)
	}
}

// An aborted change gives a listener of another process back to the next one.
func TestAbortKeepsHandedOverListeners(t *testing.T) {
	nettest.CheckLeaks(t)
	g := fixed(t)
	handed, err := g.relay.Listeners()
	if err != nil {
		t.Fatal(err)
	}
	tunnels := []Tunnel{{Name: "t", Listen: []netip.AddrPort{g.addr}, Forward: []hops.Target{targetOf(g.target)}}}
	next := New(Options{Workers: 1, Listeners: handed})
	defer next.Close()
	for range 2 {
		c, err := next.Prepare(tunnels)
		if err != nil {
			t.Fatal(err)
		}
		c.Abort()
	}
	if err := setTunnels(next, tunnels); err != nil {
		t.Fatal(err)
	}
	for _, l := range handed {
		l.File.Close()
	}
}
