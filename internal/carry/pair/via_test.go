package pair_test

import (
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/test/nettest"
)

// relayID is a relay as docs/design/pairs-wire.md says.
func relayID(key ed25519.PublicKey) flow.RelayID {
	sum := sha256.Sum256(key)
	return flow.RelayID(sum[:8])
}

// relays are as many that a flow has passed.
func relays(n int) (via flow.Via) {
	for i := range n {
		via = via.Add(flow.RelayID{0: byte(i), 7: 1})
	}
	return via
}

// TestOpenSaysWhichFlow holds that the far relay gets a flow's name, the relays that it has passed with the near
// one behind them, and the place of its port, and that both ends name the other.
func TestOpenSaysWhichFlow(t *testing.T) { eachMode(t, testOpenSaysWhichFlow) }

func testOpenSaysWhichFlow(t *testing.T, in standOption) {
	t.Parallel()
	s := newStand(t, in)
	s.serve(echo)
	name, via := flow.NewName(), relays(flow.MaxVia-2)
	s.setMark(func(c *flow.Client) { c.Name, c.Via, c.Offset = name, via, 7 })
	c := s.dial()
	s.roundTrip(c, "x")
	far, near := s.dialedFor(0), s.flow(0)
	s.mu.Lock()
	o := s.opens[0]
	s.mu.Unlock()
	if want := via.Add(relayID(s.nearKeys.public())); o.Name != name || o.Via != want || o.Offset != 7 || o.Peer != "near" {
		t.Errorf("the far relay dials for %v by %q, offset %d, from %s; want %v by %q", o.Name, string(o.Via), o.Offset, o.Peer, name, string(want))
	}
	if one, two := near.Figures().Peer, far.Figures().Peer; one != "far" || two != "near" {
		t.Errorf("the near flow is with %q, the far one with %q", one, two)
	}
	nettest.Must(t, c.Close())
	for peer, ends := range map[string]chan flow.End{"far": s.nearEnds, "near": s.farEnds} {
		select {
		case e := <-ends:
			if e.Peer != peer {
				t.Errorf("a flow with %s ends with %q", peer, e.Peer)
			}
		case <-time.After(patience):
			t.Fatal("the flow does not end\n" + s.dump())
		}
	}
}

// TestFlowsComeBack holds that a flow which has passed the far relay, or as many as it may, is refused there before
// anything is dialed, and that the near relay gets the reason.
func TestFlowsComeBack(t *testing.T) { eachMode(t, testFlowsComeBack) }

func testFlowsComeBack(t *testing.T, in standOption) {
	t.Parallel()
	s := newStand(t, in)
	s.serve(echo)
	// A rotation leaves two keys: the flow has passed by either.
	older := newKeyring(t).public()
	s.farKeys.mu.Lock()
	s.farKeys.more = older
	s.farKeys.mu.Unlock()
	for _, tt := range []struct {
		via  flow.Via
		want string
	}{
		{relays(2).Add(relayID(s.farKeys.public())), "the flow that near sends has passed this relay already: the chain of pairs leads back to it"},
		{relays(1).Add(relayID(older)), "has passed this relay already"},
		{relays(flow.MaxVia - 1), fmt.Sprintf("the flow that near sends has passed %d relays, and a flow may pass %[1]d relays", flow.MaxVia)},
	} {
		s.setMark(func(c *flow.Client) { c.Via = tt.via })
		c, err := net.Dial("tcp", s.clients.Addr().String())
		switch {
		case err == nil:
			defer c.Close()
		case !errors.Is(err, unix.ECONNRESET): // it may be reset before Dial returns
			t.Fatal(err)
		}
		select {
		case e := <-s.nearEnds:
			if e.Reason != flow.EndLoop || !e.ByPeer || e.Err == nil || !strings.Contains(e.Err.Error(), tt.want) {
				t.Errorf("%d relays: the near flow ends by %s, %v, by the peer: %v; want %q", tt.via.Len(), e.Reason, e.Err, e.ByPeer, tt.want)
			}
		case <-time.After(patience):
			t.Fatal("the flow does not end\n" + s.dump())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.opens) > 0 {
		t.Errorf("the far relay dials for %+v", s.opens)
	}
}
