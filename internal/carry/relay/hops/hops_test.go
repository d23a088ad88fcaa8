package hops

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
)

// set makes the hops of a tunnel with defaults.
func set(balance Balance, targets []Target) *Set {
	return New(targets, balance, Health{}.WithDefaults(), nil)
}

// targets makes hops a, b, c and so on with these weights and priorities.
func targets(weightsAndPriorities ...[2]int) []Target {
	var all []Target
	for i, wp := range weightsAndPriorities {
		all = append(all, Target{Host: string(rune('a' + i)), Port: 1, Weight: wp[0], Priority: wp[1]})
	}
	return all
}

func client4(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

// hopNames writes an order of hops as their names.
func hopNames(order []uint16) string {
	s := ""
	for _, i := range order {
		s += string(rune('a' + i))
	}
	return s
}

const second = time.Second

func TestOrderOfHops(t *testing.T) {
	now := 1000 * second
	for _, c := range []struct {
		name    string
		balance Balance
		hops    []Target
		change  func(hops []*Hop)
		want    string
	}{
		{"one", RoundRobin, targets([2]int{1, 1}), nil, "a"},
		{"as they stand", Ordered, targets([2]int{1, 1}, [2]int{9, 1}, [2]int{1, 1}), nil, "abc"},
		{"by priority first", Ordered, targets([2]int{1, 3}, [2]int{1, 1}, [2]int{1, 2}), nil, "bca"},
		{"down comes last", Ordered, targets([2]int{1, 1}, [2]int{1, 1}, [2]int{1, 2}),
			func(h []*Hop) { h[0].down.Store(true) }, "bca"},
		{"ejected comes last", Ordered, targets([2]int{1, 1}, [2]int{1, 1}),
			func(h []*Hop) { h[0].failing.Store(true); h[0].ejected.Store(now + 1) }, "ba"},
		{"and stays there when its time is over", Ordered, targets([2]int{1, 1}, [2]int{1, 1}),
			func(h []*Hop) { h[0].failing.Store(true); h[0].ejected.Store(now) }, "ba"},
		{"drained is left out", Ordered, targets([2]int{1, 1}, [2]int{1, 1}),
			func(h []*Hop) { h[0].Drain(true) }, "b"},
		{"the only one drained", Ordered, targets([2]int{1, 1}), func(h []*Hop) { h[0].Drain(true) }, ""},
		{"all drained", LeastFlows, targets([2]int{1, 1}, [2]int{1, 1}),
			func(h []*Hop) { h[0].Drain(true); h[1].Drain(true) }, ""},
		{"least flows", LeastFlows, targets([2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}),
			func(h []*Hop) { h[0].flows.Store(5); h[1].flows.Store(7); h[2].flows.Store(2) }, "cab"},
		{"least flows for the weight", LeastFlows, targets([2]int{1, 1}, [2]int{10, 1}),
			func(h []*Hop) { h[0].flows.Store(3); h[1].flows.Store(20) }, "ba"},
		{"a hop that returns counts for a tenth", LeastFlows, targets([2]int{1, 1}, [2]int{1, 1}),
			func(h []*Hop) { h[0].flows.Store(8); h[1].back.Store(now) }, "ab"},
		{"and for all of it later", LeastFlows, targets([2]int{1, 1}, [2]int{1, 1}),
			func(h []*Hop) { h[0].flows.Store(8); h[1].back.Store(now - 30*second) }, "ba"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := set(c.balance, c.hops)
			if c.change != nil {
				c.change(s.hops)
			}
			if got := hopNames(s.Order(nil, client4(1), now)); got != c.want {
				t.Errorf("the order is %q, want %q", got, c.want)
			}
		})
	}
}

// TestPreparedSetChangesNothing: a hop that returns comes first or last by its own set's configuration, and a
// set that is made after it and may never be in force does not change that.
func TestPreparedSetChangesNothing(t *testing.T) {
	far := targets([2]int{1, 1}, [2]int{1, 1})
	for i := range far {
		far[i].Carrier = &farRelay{says: flow.Taking{Peer: "b", Host: fmt.Sprint(i), Takes: true, Stood: true, Met: true, Since: time.Now()}}
	}
	near := targets([2]int{1, 1}, [2]int{1, 1}) // so does a dry run see far relays
	usual, never, blind := Health{}.WithDefaults(), Health{EjectAfter: -1}.WithDefaults(), Health{Blind: true}.WithDefaults()
	for _, c := range []struct {
		name    string
		forward []Target
		health  Health
		kept    bool
	}{
		{"usual", near, usual, false},
		{"a far relay", far, usual, true},
		{"no ejection", near, never, true},
		{"blind", near, blind, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := New(c.forward, Ordered, c.health, nil)
			s.hops[0].failing.Store(true)
			s.hops[0].ejected.Store(second)
			order := map[bool]string{true: "ab", false: "ba"}[c.kept]
			is := func() {
				t.Helper()
				shown := s.Snapshot(nil, second)[0].Usable
				if got := hopNames(s.Order(nil, client4(1), second)); got != order || s.Usable(0, second) != c.kept || shown != c.kept {
					t.Errorf("the order is %s, usable %t, shown %t; want kept %t", got, s.Usable(0, second), shown, c.kept)
				}
			}
			is()
			for _, health := range []Health{usual, never, blind} {
				for _, forward := range [][]Target{near, far} {
					New(forward, Ordered, health, s)
					is()
				}
			}
		})
	}
}

func TestRoundRobinTakesTurnsByWeight(t *testing.T) {
	s := set(RoundRobin, targets([2]int{3, 1}, [2]int{1, 1}, [2]int{5, 2}))
	turns := ""
	for range 8 {
		turns += hopNames(s.Order(nil, client4(1), second))[:1]
	}
	if turns != "aabaaaba" && turns != "abaaabaa" {
		t.Errorf("weights 3 and 1 give %s", turns)
	}
	s.hops[0].down.Store(true)
	if got := hopNames(s.Order(nil, client4(1), second)); got != "bca" {
		t.Errorf("with a down the order is %s", got)
	}
}

// TestSourceKeepsClients checks the two promises of the hash: shares follow the
// weights, and the loss of a hop moves only its own clients.
func TestSourceKeepsClients(t *testing.T) {
	const clients = 20000
	s := set(Source, targets([2]int{1, 1}, [2]int{2, 1}, [2]int{1, 1}))
	before := make([]uint16, clients)
	var share [3]int
	for i := range clients {
		before[i] = s.Order(nil, client4(i), second)[0]
		share[before[i]]++
	}
	for i, want := range []float64{0.25, 0.5, 0.25} {
		if got := float64(share[i]) / clients; got < want-0.02 || got > want+0.02 {
			t.Errorf("hop %d has %.3f of the clients, want %.2f", i, got, want)
		}
	}
	s.hops[0].down.Store(true)
	for i := range clients {
		if got := s.Order(nil, client4(i), second)[0]; before[i] != 0 && got != before[i] {
			t.Fatalf("client %d moved from hop %d to %d although its hop is up", i, before[i], got)
		} else if got == 0 {
			t.Fatalf("client %d is sent to the hop that is down", i)
		}
	}
	if draw(client4(1), "a") != draw(netip.AddrFrom16(client4(1).As16()), "a") {
		t.Error("a client in IPv4-mapped form is another client")
	}
}

func TestHopHealth(t *testing.T) {
	health := Health{EjectAfter: 2, EjectFor: 10 * time.Second}.WithDefaults()
	broken := fmt.Errorf("broken")
	h := &Hop{}
	now := second
	is := func(want flow.HopState) {
		t.Helper()
		s := h.snapshot(&Target{}, false, now)
		if s.State != want || s.Usable != (want == flow.HopUp || want == flow.HopUntried) || s.Usable != usable(h.state(now), false) {
			t.Errorf("the hop is %+v, want %s", s, want)
		}
	}
	is(flow.HopUntried)
	if span := h.connectFailed(now, &health, broken); span != 0 {
		t.Fatalf("one failure ejects for %v", span)
	}
	is(flow.HopUntried)
	var spans []time.Duration
	for range 9 { // right after each ejection
		now = max(now, h.ejected.Load())
		spans = append(spans, h.connectFailed(now, &health, broken))
		is(flow.HopEjected)
		if span := h.connectFailed(now, &health, broken); span != 0 {
			t.Fatalf("a failure while it is out adds %v", span)
		}
	}
	want := []time.Duration{10, 20, 40, 80, 160, 320, 640, 640, 640}
	for i := range want {
		want[i] *= time.Second
	}
	if !slices.Equal(spans, want) {
		t.Errorf("it is ejected for %v, want %v", spans, want)
	}
	now = h.ejected.Load()
	is(flow.HopReturning)
	now += 1000 * time.Hour // until something succeeds, however long that takes
	is(flow.HopReturning)
	if h.retriedAs(now, &health, 0, broken) {
		t.Error("a probe ejects a hop that returns")
	}
	is(flow.HopReturning)
	h.Connected(now)
	is(flow.HopUp)
	if share := h.share(now, 30*second); share != minShare {
		t.Errorf("it comes back with a share of %v", share)
	}
	h.connectFailed(now, &health, broken)
	is(flow.HopUp)
	if span := h.connectFailed(now, &health, broken); span != 10*time.Second {
		t.Errorf("after a success it is ejected for %v", span)
	}
	if !h.retriedAs(now, &health, time.Millisecond, nil) {
		t.Error("a probe that succeeds does not end the ejection")
	}
	is(flow.HopUp)
	if h.connectFailed(now, &health, broken); !h.retriedAs(now, &health, 0, broken) {
		t.Error("a failed probe does not count beside failed connects")
	}
	is(flow.HopEjected)
	if until := h.ejected.Load() - now; until != 20*time.Second {
		t.Errorf("a hop that answers probes, and not flows, is ejected for %v", until)
	}

	h = &Hop{}
	never := Health{EjectAfter: -1}.WithDefaults()
	for range 100 {
		if h.connectFailed(now, &never, broken) != 0 {
			t.Fatal("ejected although that is off")
		}
	}
	is(flow.HopReturning)

	// The first failed probe suffices; later changes take Fall and Rise.
	probed := Health{Fall: 3, Rise: 2}.WithDefaults()
	h = &Hop{}
	states := ""
	for _, outcome := range "fssfsssffsffff" {
		var err error
		if outcome == 'f' {
			err = broken
		}
		h.probedAs(now, &probed, time.Millisecond, err)
		if usable(h.state(now), false) {
			states += "u"
		} else {
			states += "d"
		}
	}
	if want := "dduuuuuuuuuudd"; states != want {
		t.Errorf("the states are %s, want %s", states, want)
	}
	if s := h.snapshot(&Target{}, false, now); s.State != flow.HopDown || s.RTT.Duration() != time.Millisecond || s.LastError != "broken" || !s.Checked {
		t.Errorf("the snapshot is %+v", s)
	}
	h.unprobed()
	if !usable(h.state(now), false) {
		t.Error("a hop that nobody checks is down")
	}
}

func BenchmarkOrder(b *testing.B) {
	for _, balance := range []Balance{Ordered, LeastFlows, RoundRobin, Source} {
		b.Run(string(balance), func(b *testing.B) {
			s := set(balance, targets([2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}))
			var inline [Few]uint16
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s.Order(inline[:0], client4(i), second)
			}
		})
	}
}
