package relay

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	report "longhaul/internal/flow"
)

// hopsOf makes a route without sockets, for testing the choice.
func hopsOf(t testing.TB, tunnel Tunnel) *route {
	t.Helper()
	tunnel.Name, tunnel.Listen = "t", []netip.AddrPort{freePort}
	checked, err := validateTunnels([]Tunnel{tunnel})
	if err != nil {
		t.Fatal(err)
	}
	return newRoute(&checked[0], &tunnelState{}, hopsFor(&checked[0], nil), freePort, 0)
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
		change  func(hops []*hop)
		want    string
	}{
		{"one", BalanceRoundRobin, targets([2]int{1, 1}), nil, "a"},
		{"as they stand", BalanceOrdered, targets([2]int{1, 1}, [2]int{9, 1}, [2]int{1, 1}), nil, "abc"},
		{"by priority first", BalanceOrdered, targets([2]int{1, 3}, [2]int{1, 1}, [2]int{1, 2}), nil, "bca"},
		{"down comes last", BalanceOrdered, targets([2]int{1, 1}, [2]int{1, 1}, [2]int{1, 2}),
			func(h []*hop) { h[0].down.Store(true) }, "bca"},
		{"ejected comes last", BalanceOrdered, targets([2]int{1, 1}, [2]int{1, 1}),
			func(h []*hop) { h[0].ejected.Store(now + 1) }, "ba"},
		{"an ejection ends", BalanceOrdered, targets([2]int{1, 1}, [2]int{1, 1}),
			func(h []*hop) { h[0].ejected.Store(now) }, "ab"},
		{"drained is left out", BalanceOrdered, targets([2]int{1, 1}, [2]int{1, 1}),
			func(h []*hop) { h[0].drain(true) }, "b"},
		{"the only one drained", BalanceOrdered, targets([2]int{1, 1}), func(h []*hop) { h[0].drain(true) }, ""},
		{"all drained", BalanceLeastFlows, targets([2]int{1, 1}, [2]int{1, 1}),
			func(h []*hop) { h[0].drain(true); h[1].drain(true) }, ""},
		{"least flows", BalanceLeastFlows, targets([2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}),
			func(h []*hop) { h[0].flows.Store(5); h[1].flows.Store(7); h[2].flows.Store(2) }, "cab"},
		{"least flows for the weight", BalanceLeastFlows, targets([2]int{1, 1}, [2]int{10, 1}),
			func(h []*hop) { h[0].flows.Store(3); h[1].flows.Store(20) }, "ba"},
		{"a hop that returns counts for a tenth", BalanceLeastFlows, targets([2]int{1, 1}, [2]int{1, 1}),
			func(h []*hop) { h[0].flows.Store(8); h[1].back.Store(now) }, "ab"},
		{"and for all of it later", BalanceLeastFlows, targets([2]int{1, 1}, [2]int{1, 1}),
			func(h []*hop) { h[0].flows.Store(8); h[1].back.Store(now - 30*second) }, "ba"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rt := hopsOf(t, Tunnel{Forward: c.hops, Balance: c.balance})
			if c.change != nil {
				c.change(rt.hops)
			}
			if got := hopNames(rt.order(nil, client4(1), now)); got != c.want {
				t.Errorf("the order is %q, want %q", got, c.want)
			}
		})
	}
}

func TestRoundRobinTakesTurnsByWeight(t *testing.T) {
	rt := hopsOf(t, Tunnel{Forward: targets([2]int{3, 1}, [2]int{1, 1}, [2]int{5, 2}), Balance: BalanceRoundRobin})
	turns := ""
	for range 8 {
		turns += hopNames(rt.order(nil, client4(1), second))[:1]
	}
	if turns != "aabaaaba" && turns != "abaaabaa" {
		t.Errorf("weights 3 and 1 give %s", turns)
	}
	rt.hops[0].down.Store(true)
	if got := hopNames(rt.order(nil, client4(1), second)); got != "bca" {
		t.Errorf("with a down the order is %s", got)
	}
}

// TestSourceKeepsClients checks the two promises of the hash: shares follow the
// weights, and the loss of a hop moves only its own clients.
func TestSourceKeepsClients(t *testing.T) {
	const clients = 20000
	rt := hopsOf(t, Tunnel{Forward: targets([2]int{1, 1}, [2]int{2, 1}, [2]int{1, 1}), Balance: BalanceSource})
	before := make([]uint16, clients)
	var share [3]int
	for i := range clients {
		before[i] = rt.order(nil, client4(i), second)[0]
		share[before[i]]++
	}
	for i, want := range []float64{0.25, 0.5, 0.25} {
		if got := float64(share[i]) / clients; got < want-0.02 || got > want+0.02 {
			t.Errorf("hop %d has %.3f of the clients, want %.2f", i, got, want)
		}
	}
	rt.hops[0].down.Store(true)
	for i := range clients {
		if got := rt.order(nil, client4(i), second)[0]; before[i] != 0 && got != before[i] {
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
	health := Health{EjectAfter: 2, EjectFor: 10 * time.Second}.withDefaults()
	broken := fmt.Errorf("broken")
	h := &hop{}
	now := second
	if span := h.connectFailed(now, &health, broken); span != 0 || !h.usable(now) {
		t.Fatalf("one failure ejects for %v", span)
	}
	var spans []time.Duration
	for range 9 { // right after each ejection
		now = max(now, h.ejected.Load())
		spans = append(spans, h.connectFailed(now, &health, broken))
		if h.usable(now) || !h.usable(h.ejected.Load()) {
			t.Fatal("it is not out until the end of its time")
		}
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
	h.connected()
	now = h.ejected.Load()
	h.connectFailed(now, &health, broken)
	if span := h.connectFailed(now, &health, broken); span != 10*time.Second {
		t.Errorf("after a success it is ejected for %v", span)
	}

	h = &hop{}
	never := Health{EjectAfter: -1}.withDefaults()
	for range 100 {
		if h.connectFailed(now, &never, broken) != 0 {
			t.Fatal("ejected although that is off")
		}
	}

	// The first failed probe suffices; later changes take Fall and Rise.
	probed := Health{Fall: 3, Rise: 2}.withDefaults()
	h = &hop{}
	states := ""
	for _, outcome := range "fssfsssffsffff" {
		var err error
		if outcome == 'f' {
			err = broken
		}
		h.probedAs(now, &probed, time.Millisecond, err)
		if h.usable(now) {
			states += "u"
		} else {
			states += "d"
		}
	}
	if want := "dduuuuuuuuuudd"; states != want {
		t.Errorf("the states are %s, want %s", states, want)
	}
	if s := h.snapshot(&Target{}, 0, now); s.State != report.HopDown || s.RTT.Duration() != time.Millisecond || s.LastError != "broken" || !s.Checked {
		t.Errorf("the snapshot is %+v", s)
	}
	h.unprobed()
	if !h.usable(now) {
		t.Error("a hop that nobody checks is down")
	}
}

func BenchmarkOrder(b *testing.B) {
	for _, balance := range []Balance{BalanceOrdered, BalanceLeastFlows, BalanceRoundRobin, BalanceSource} {
		b.Run(string(balance), func(b *testing.B) {
			rt := hopsOf(b, Tunnel{Forward: targets([2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}), Balance: balance})
			var inline [fewHops]uint16
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				rt.order(inline[:0], client4(i), second)
			}
		})
	}
}
