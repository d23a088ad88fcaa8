package relay

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/test/nettest"
)

// heldRig is a rig whose tunnel takes transparent connections. A client that dials the
// listener itself stands for one that the kernel brings there: the relay knows its SYN.
func heldRig(t *testing.T, make func(testing.TB, func(*rigOptions)) *rig, change func(*Tunnel)) *rig {
	t.Helper()
	nettest.RequireSandbox(t)
	return make(t, func(o *rigOptions) {
		o.Tunnels[0].Transparent = true
		if change != nil {
			change(&o.Tunnels[0])
		}
	})
}

// openHeld opens a held SYN and returns its answers.
func (g *rig) openHeld(from netip.AddrPort) <-chan *report.Refusal {
	answers := make(chan *report.Refusal, 2)
	g.relay.OpenHeld(HeldSYN{Tunnel: "t", From: from, To: g.addr, Answer: func(r *report.Refusal) { answers <- r }})
	return answers
}

// clientPort is the address of a client that has not connected.
func clientPort(t *testing.T) netip.AddrPort {
	t.Helper()
	l := listen(t)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func answerOf(t *testing.T, answers <-chan *report.Refusal) *report.Refusal {
	t.Helper()
	select {
	case r := <-answers:
		return r
	case <-time.After(patience):
		t.Fatal("no answer to a SYN")
		return nil
	}
}

// The client of a held SYN continues its flow, on whichever loop it is accepted.
func TestHeldFlow(t *testing.T) {
	g := heldRig(t, newRig, nil)
	const flows = 20
	for range flows {
		from := clientPort(t)
		if r := answerOf(t, g.openHeld(from)); r != nil {
			t.Fatal(r)
		}
		target, err := g.target.AcceptTCP()
		nettest.Must(t, err)
		_, err = target.Write([]byte("hello ")) // before its client is there
		nettest.Must(t, err)
		if r := answerOf(t, g.openHeld(from)); r != nil { // the answer was lost
			t.Fatal(r)
		}
		client, err := net.DialTCP("tcp4", net.TCPAddrFromAddrPort(from), net.TCPAddrFromAddrPort(g.addr))
		nettest.Must(t, err)
		_, err = client.Write([]byte("client"))
		nettest.Must(t, err)
		nettest.Must(t, client.CloseWrite())
		nettest.Must(t, target.SetDeadline(time.Now().Add(patience)))
		nettest.Must(t, client.SetDeadline(time.Now().Add(patience)))
		got, err := io.ReadAll(target)
		if string(got) != "client" || err != nil {
			t.Errorf("the target got %q, %v", got, err)
		}
		target.Close()
		got, err = io.ReadAll(client)
		if string(got) != "hello " || err != nil {
			t.Errorf("the client got %q, %v", got, err)
		}
		client.Close()
	}
	nettest.Eventually(t, patience, func() bool { return len(g.flows.all()) == flows }, func() string { return "records are missing" })
	for _, r := range g.flows.all() {
		if r.Reason != report.EndClean || r.BytesUp != 6 || r.BytesDown != 6 {
			t.Errorf("record %+v", r)
		}
	}
	if n := len(g.relay.held.all); n > 0 {
		t.Errorf("%d SYNs are left", n)
	}
}

// The answer to a SYN has the reason why its flow is refused, and the flow a record.
func TestHeldFlowIsRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Tunnel)
		reason report.EndReason
		err    error
	}{
		{"the target refuses", nil, report.EndTargetRefused, unix.ECONNREFUSED},
		{"the source is not allowed", func(t *Tunnel) { t.Allow = []netip.Prefix{netip.MustParsePrefix("10.9.1.7/32")} }, report.EndDenied, nil},
		{"the rate is exceeded", func(t *Tunnel) { t.NewFlowsPerSecond = 1e-9 }, report.EndRateLimit, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := heldRig(t, newRig, c.change)
			g.target.Close()
			if c.reason == report.EndRateLimit {
				g.openHeld(clientPort(t)) // takes the burst
			}
			r := answerOf(t, g.openHeld(clientPort(t)))
			if r == nil || r.Reason != c.reason || c.err != nil && !errors.Is(r, c.err) {
				t.Errorf("answer %v, want %s and %v", r, c.reason, c.err)
			}
			nettest.Eventually(t, patience, func() bool {
				return slices.ContainsFunc(g.flows.all(), func(r report.Record) bool { return r.Reason == c.reason })
			}, func() string { return "the refusal has no record" })
		})
	}
	t.Run("the tunnel is drained", func(t *testing.T) {
		g := heldRig(t, newRig, nil)
		nettest.Must(t, g.relay.DrainTunnel("t"))
		if r := answerOf(t, g.openHeld(clientPort(t))); r == nil || r.Reason != report.EndDrain {
			t.Errorf("answer %v", r)
		}
		nettest.Must(t, g.relay.ResumeTunnel("t"))
		if r := answerOf(t, g.openHeld(clientPort(t))); r != nil {
			t.Errorf("after resume: %v", r)
		}
	})
	t.Run("too many are held", func(t *testing.T) {
		g := heldRig(t, newRig, nil)
		for n := range maxHeld {
			g.relay.held.begin(heldKey{from: netip.AddrPortFrom(loopback, uint16(n))}, 0)
		}
		if r := answerOf(t, g.openHeld(clientPort(t))); r != nil || g.relay.Flows() > 0 {
			t.Errorf("answer %v, %d flows; want that the client connects first", r, g.relay.Flows())
		}
	})
}

// The target of a client that does not connect is reset.
func TestHeldFlowWithoutClient(t *testing.T) {
	g := heldRig(t, newStoppedRig, nil)
	from := clientPort(t)
	if r := answerOf(t, g.openHeld(from)); r != nil {
		t.Fatal(r)
	}
	target, err := g.target.AcceptTCP()
	nettest.Must(t, err)
	defer target.Close()
	g.pass(heldTimeout)
	nettest.Must(t, target.SetDeadline(time.Now().Add(patience)))
	if _, err := target.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the target gets %v, want a reset", err)
	}
	if r := g.flows.one(t); r.Reason != report.EndClientTimeout {
		t.Errorf("record %+v", r)
	}
}

// A stop answers the SYNs that wait; another process that accepts gets their clients.
func TestHeldFlowAtTheEnd(t *testing.T) {
	g := heldRig(t, newRig, func(t *Tunnel) { t.Forward[0].Host, t.Forward[0].Port = "192.0.2.1", 9 })
	answers := g.openHeld(clientPort(t))
	g.relay.Close()
	if r := answerOf(t, answers); r == nil {
		t.Error("a client connects to a relay that has ended")
	}
}

// TestJoinedSYNIsKnown: a copy of a SYN that has become a connection begins no second
// flow, for a while. Another SYN of the same port does.
func TestJoinedSYNIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heldFlows
		syn := heldKey{netip.MustParseAddrPort("192.0.2.1:1000"), netip.MustParseAddrPort("192.0.2.2:22")}
		for _, again := range []time.Duration{0, 0, joinedFor} {
			first := uint32(time.Now().UnixNano())
			if known, _, _ := h.begin(syn, first); known {
				t.Fatal("a first SYN is known")
			}
			h.set(syn, heldPlace{dialed: true})
			if known, dialed, _ := h.begin(syn, first); !known || !dialed {
				t.Errorf("a copy before the client has connected: known %v, dialed %v", known, dialed)
			}
			h.join(syn)
			if known, dialed, _ := h.begin(syn, first); !known || dialed {
				t.Errorf("a copy: known %v, dialed %v", known, dialed)
			}
			time.Sleep(again + 1)
		}
		other := heldKey{syn.from, netip.MustParseAddrPort("192.0.2.2:23")}
		h.begin(other, 1)
		h.join(other)
		if len(h.all) != 0 || len(h.joined) != 1 || len(h.oldest) != 1 {
			t.Errorf("left: %d held, %d joined, %d in order", len(h.all), len(h.joined), len(h.oldest))
		}
	})
}

// More connections of held SYNs than are remembered: the earliest are forgotten.
func TestJoinedSYNsAreBounded(t *testing.T) {
	var h heldFlows
	syn := func(i int) heldKey {
		return heldKey{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 1), netip.AddrPort{}}
	}
	const more = 100
	for i := range maxJoined + more {
		if known, _, full := h.begin(syn(i), 7); known || full {
			t.Fatalf("SYN %d: known %v, full %v", i, known, full)
		}
		h.join(syn(i))
	}
	if len(h.joined) > maxJoined || len(h.oldest) > maxJoined {
		t.Errorf("%d connections are remembered in %d places", len(h.joined), len(h.oldest))
	}
	if known, _, _ := h.begin(syn(maxJoined+more-1), 7); !known {
		t.Error("the latest is forgotten")
	}
	if known, _, _ := h.begin(syn(0), 7); known {
		t.Error("the earliest is remembered")
	}
	if _, _, full := h.begin(syn(-1), 7); full || len(h.all) != 2 {
		t.Errorf("full %v, %d SYNs are held", full, len(h.all))
	}
	for i := 0; len(h.all) < maxHeld; i++ {
		h.begin(syn(1<<20+i), 7)
	}
	if _, _, full := h.begin(syn(1<<22), 7); !full {
		t.Errorf("%d SYNs are held, and one more", len(h.all))
	}
}
