package relay

import (
	"bytes"
	"cmp"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/proxyproto"
	"longhaul/internal/carry/relay/hops"
	"longhaul/test/nettest"
)

// namedHeader is a header of version 2 with an identifier.
func namedHeader(h proxyproto.Header, id string) []byte {
	return proxyproto.AppendExtension(proxyproto.AppendHeader(nil, 2, h), proxyproto.UniqueID, []byte(id))
}

// expectHeader reads a header of version 2 with these addresses and a flow's name, which it returns.
func expectHeader(t testing.TB, c *net.TCPConn, h proxyproto.Header) report.Name {
	t.Helper()
	const text = 36 // bytes of a name
	got := namedHeader(h, strings.Repeat("?", text))
	addresses := bytes.Clone(got[:len(got)-text])
	n, err := io.ReadFull(c, got)
	if err != nil || !bytes.Equal(got[:len(addresses)], addresses) {
		t.Fatalf("got the header %q, %v", got[:n], err)
	}
	name, err := report.ParseName(string(got[len(addresses):]))
	nettest.Must(t, err)
	return name
}

// byID are the flows that live, the oldest first. The event loops look at their ages at different moments.
func (g *rig) byID() []FlowSnapshot {
	all := g.relay.Snapshot().Flows
	slices.SortFunc(all, func(a, b FlowSnapshot) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// names are those of the flows that live, the oldest first.
func (g *rig) names() (all []report.Name) {
	for _, f := range g.byID() {
		all = append(all, f.Name)
	}
	return all
}

var proxied = proxyproto.Header{Source: netip.MustParseAddrPort("192.0.2.7:1234"), Destination: netip.MustParseAddrPort("192.0.2.1:443")}

const uniqueID = "5f3a0000-0001-4002-8003-0000000000ff"

// named begins a flow by a header with an identifier, and returns both ends and its name.
func (g *rig) named(id string) (client, target *net.TCPConn, name report.Name) {
	g.t.Helper()
	client = dial(g.t, g.addr)
	write(g.t, client, namedHeader(proxied, id))
	target = g.accept()
	all := g.names()
	return client, target, all[len(all)-1]
}

// ends ends the flow of these ends, and waits until its name is free or remembered.
func (g *rig) ends(client, target *net.TCPConn) {
	g.t.Helper()
	before := len(g.flows.all())
	client.Close()
	target.Close()
	nettest.Eventually(g.t, patience, func() bool { return len(g.flows.all()) > before && g.relay.FlowsNow() == 0 }, func() string { return "the flow does not end" })
}

// TestFlowsHaveNames holds that a flow has one name, the same in status, samples and its record.
func TestFlowsHaveNames(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	client, target := g.pair()
	g.pair()
	names := g.names()
	if len(names) != 2 || names[0] == names[1] || names[0].IsZero() || names[1].IsZero() {
		t.Fatalf("the names are %v", names)
	}
	var sampled []report.Name
	nettest.Must(t, g.relay.eachFlow(func(s *report.Sample) { sampled = append(sampled, s.Name) }))
	if len(sampled) != 2 || sampled[0] != names[0] && sampled[0] != names[1] {
		t.Errorf("the samples have %v, status %v", sampled, names)
	}
	client.Close()
	target.Close()
	if r := g.flows.one(t); r.Name != names[0] || r.Peer != "" {
		t.Errorf("the record has the name %v and the peer %q, status had %v", r.Name, r.Peer, names[0])
	}
}

func TestNamesOfProxyHeaders(t *testing.T) {
	nettest.CheckLeaks(t)
	required := func(o *rigOptions) { o.Tunnels[0].ProxyIn.Required = true }
	want := report.NameOf([]byte(uniqueID))
	t.Run("none before the header", func(t *testing.T) {
		g := newRig(t, required)
		dial(t, g.addr)
		g.flowIs("waits for its header", func(f *flow) bool { return f.phase == phaseHeader && f.name.IsZero() })
	})
	for what, id := range map[string]string{"as text": uniqueID, "in 16 bytes": string(want[:])} {
		t.Run(what, func(t *testing.T) {
			if _, _, got := newRig(t, required).named(id); got != want {
				t.Errorf("the flow has the name %v", got)
			}
		})
	}
	t.Run("of another form", func(t *testing.T) {
		const id = "C0000201:04D2_C6336402:1770"
		if _, _, got := newRig(t, required).named(id); got != report.NameOf([]byte(id)) || got == want {
			t.Errorf("the flow has the name %v", got)
		}
	})
	t.Run("without one", func(t *testing.T) {
		g := newRig(t, required)
		for _, version := range []int{1, 2} {
			write(t, dial(t, g.addr), proxyproto.AppendHeader(nil, version, proxied))
			g.accept()
		}
		if names := g.names(); len(names) != 2 || names[0] == names[1] || names[0].IsZero() || names[1].IsZero() {
			t.Errorf("the names are %v", names)
		}
	})
	t.Run("twice", func(t *testing.T) {
		g := newRig(t, required)
		client, target, first := g.named(uniqueID)
		clientToo, targetToo, second := g.named(uniqueID)
		if first != want || second == want || second.IsZero() {
			t.Fatalf("the names are %v and %v", first, second)
		}
		g.named(second.String()) // a name that the relay made is taken too
		if names := g.names(); names[1] == names[2] {
			t.Error("another flow took a name that the relay had made")
		}
		if n := strings.Count(g.log.String(), "names of others"); n != 1 {
			t.Errorf("%d lines in the log", n)
		}
		nettest.Must(t, clientToo.Close())
		nettest.Must(t, targetToo.Close())
		nettest.Must(t, client.Close())
		nettest.Must(t, target.Close())
	})
	t.Run("again once it has moved bytes", func(t *testing.T) {
		g := newRig(t, required)
		client, target, _ := g.named(uniqueID)
		write(t, client, []byte("x"))
		expect(t, target, []byte("x"))
		g.ends(client, target)
		if _, _, got := g.named(uniqueID); got == want || got.IsZero() {
			t.Errorf("the flow has the name %v", got)
		}
	})
	t.Run("again without a byte", func(t *testing.T) {
		g := newRig(t, required)
		client, target, _ := g.named(uniqueID)
		g.ends(client, target)
		if _, _, got := g.named(uniqueID); got != want {
			t.Errorf("the flow has the name %v", got)
		}
	})
}

// TestNameCrossesRelays holds that a flow has one name in two relays that PROXY headers join, and at its target.
func TestNameCrossesRelays(t *testing.T) {
	nettest.CheckLeaks(t)
	second := newRig(t, func(o *rigOptions) {
		o.Tunnels[0].ProxyIn = ProxyIn{Required: true, Trusted: prefixes("127.0.0.0/8")}
		o.Tunnels[0].ProxyOut = ProxyV2
	})
	first := newRig(t, func(o *rigOptions) {
		o.Tunnels[0].Forward = []hops.Target{{Host: second.addr.Addr().String(), Port: second.addr.Port()}}
		o.Tunnels[0].ProxyOut = ProxyV2
	})
	client := dial(t, first.addr)
	name := expectHeader(t, second.accept(), proxyproto.Header{Source: client.LocalAddr().(*net.TCPAddr).AddrPort(), Destination: first.addr})
	if one, two := first.names(), second.names(); len(one) != 1 || len(two) != 1 || one[0] != name || two[0] != name || name.IsZero() {
		t.Errorf("the names are %v, %v, and %v for the target", one, two, name)
	}
}

// TestNamesOfFarFlows holds that a far flow has its near relay's name for it, and that no near relay names two.
func TestNamesOfFarFlows(t *testing.T) {
	nettest.CheckLeaks(t)
	want := report.NameOf([]byte(uniqueID))
	far := func(o *rigOptions) { farTunnel(o) }
	begin := func(g *rig, peer string, name report.Name, passed ...string) (*carriedFlow, report.Name) {
		o := atNear
		o.Peer, o.Name, o.Via = peer, name, report.Via(strings.Join(passed, ""))
		_, f, err := g.open(o)
		nettest.Must(g.t, err)
		g.t.Cleanup(func() { f.end(report.End{}) })
		g.accept()
		all := g.byID()
		if last := all[len(all)-1]; last.Peer != peer {
			g.t.Errorf("the flow of %s has the peer %q", peer, last.Peer)
		}
		return f, all[len(all)-1].Name
	}
	end := func(g *rig, f *carriedFlow, up int64) report.Record {
		before := len(g.flows.all())
		f.end(report.End{Reason: report.EndClean, BytesUp: up})
		nettest.Eventually(t, patience, func() bool { return len(g.flows.all()) > before && g.relay.FlowsNow() == 0 }, func() string { return "no record" })
		return g.flows.all()[before]
	}
	t.Run("its own", func(t *testing.T) {
		g := newRig(t, far)
		f, got := begin(g, "a", want)
		if r := end(g, f, 1); got != want || r.Name != want || r.Peer != "a" {
			t.Errorf("the flow is %v, and its record %v of %s", got, r.Name, r.Peer)
		}
		if f, got = begin(g, "a", want); got == want || got.IsZero() {
			t.Errorf("a second flow is %v", got)
		}
		end(g, f, 0)
	})
	t.Run("of an older release", func(t *testing.T) {
		g := newRig(t, far)
		f, got := begin(g, "a", report.Name{})
		if r := end(g, f, 1); got.IsZero() || r.Name != got {
			t.Errorf("the flow is %v, and its record %v", got, r.Name)
		}
	})
	t.Run("of another peer", func(t *testing.T) {
		g := newRig(t, far)
		begin(g, "a", want)
		if _, got := begin(g, "b", want); got == want || got.IsZero() {
			t.Errorf("the other's flow is %v", got)
		}
		if log := g.log.String(); !strings.Contains(log, "peer b sends it") {
			t.Errorf("the log says %s", log)
		}
	})
	t.Run("offered once more", func(t *testing.T) {
		g := newRig(t, far)
		first, _ := begin(g, "a", want)
		second, got := begin(g, "a", want)
		if got != want {
			t.Errorf("offered while the first is open, it is %v", got)
		}
		first.end(report.End{Reason: report.EndWANLost})
		second.set(report.Figures{State: report.StateOpen, BytesUp: 1})
		if _, got := begin(g, "a", want); got == want {
			t.Error("a flow got the name of one that moves bytes")
		}
	})
	t.Run("offered by another hub", func(t *testing.T) {
		g := newRig(t, far)
		begin(g, "hub-1", want, "relay--1", "hub----1")
		second, got := begin(g, "hub-2", want, "relay--1", "hub----2")
		if got != want {
			t.Errorf("offered by another hub, it is %v", got)
		}
		if _, got := begin(g, "hub-2", report.NameOf([]byte("other")), "relay--2", "hub----2"); got == want {
			t.Error("two names are one")
		}
		if _, got := begin(g, "hub-1", want, "relay--2", "hub----1"); got == want {
			t.Error("a flow of another client's relay got the name")
		}
		second.set(report.Figures{State: report.StateOpen, BytesUp: 1})
		if _, got := begin(g, "hub-1", want, "relay--1", "hub----1"); got == want {
			t.Error("a flow got the name of one that moves bytes")
		}
	})
	t.Run("refused", func(t *testing.T) {
		g := newRig(t, func(o *rigOptions) {
			farTunnel(o)
			o.Tunnels[0].NewFlowsPerSecond = 0.001
		})
		begin(g, "a", report.Name{})
		o := atNear
		o.Peer, o.Name = "a", want
		_, _, err := g.open(o)
		if reason := refusal(t, err); reason != report.EndRateLimit {
			t.Errorf("refused for %s", reason)
		}
		if r := g.flows.one(t); r.Name != want || r.Peer != "a" || r.Flow != 0 {
			t.Errorf("the record is %+v", r)
		}
	})
}

// TestPeersOfNearFlows holds that a near flow has the far relay that its carrier names.
func TestPeersOfNearFlows(t *testing.T) {
	nettest.CheckLeaks(t)
	g, carrier := newNearRig(t, nil)
	dial(t, g.addr)
	f := carrier.next(t)
	f.set(report.Figures{State: report.StateOpen, Peer: "site-b/b1"})
	if s := g.relay.Snapshot().Flows[0]; s.Peer != "site-b/b1" || s.Name != f.client.Name {
		t.Errorf("status has %v with %q", s.Name, s.Peer)
	}
	nettest.Must(t, g.relay.eachFlow(func(s *report.Sample) {
		if s.Peer != "site-b/b1" || s.Name != f.client.Name {
			t.Errorf("the sample has %v with %q", s.Name, s.Peer)
		}
	}))
	f.end(report.End{Reason: report.EndClean, Peer: "site-b/b2"})
	if r := g.flows.one(t); r.Peer != "site-b/b2" || r.Name != f.client.Name {
		t.Errorf("the record has %v with %q", r.Name, r.Peer)
	}
}

// TestNamesAreBounded holds that no more names of ended flows are remembered than there may be, the latest.
func TestNamesAreBounded(t *testing.T) {
	var names flowNames
	name := func(i int) report.Name { return report.Name{byte(i), byte(i >> 8), byte(i >> 16), 15: byte(i)} }
	key := func(i int) nameKey { return nameIn("t", name(i)) }
	const ended = maxEndedNames + 1000
	for i := range ended {
		if !names.take(key(i), nameHolder{flow: 1}) {
			t.Fatalf("name %d is taken", i)
		}
		names.leave(key(i), 2, true) // somebody else's flow
		names.leave(key(i), 1, true)
	}
	live, kept, rings := 0, 0, 0
	for i := range names {
		live += len(names[i].live)
		kept += len(names[i].ended)
		rings += len(names[i].ring)
	}
	if live != 0 || kept != maxEndedNames || rings != maxEndedNames {
		t.Errorf("%d names are kept in rings of %d, and %d live", kept, rings, live)
	}
	for i := range ended {
		if free := names.take(key(i), nameHolder{flow: 1}); free != (i < ended-maxEndedNames) {
			t.Fatalf("name %d is free: %v", i, free)
		}
	}
	if !names.take(nameIn("other", name(ended-1)), nameHolder{flow: 1}) {
		t.Error("a name of one tunnel is taken in another")
	}
}

// TestOneFlowGetsAName has event loops give one name at the same time.
func TestOneFlowGetsAName(t *testing.T) {
	var names flowNames
	var all sync.WaitGroup
	got := make(chan uint64, 64)
	for flow := range uint64(cap(got)) {
		all.Go(func() {
			if names.take(nameIn("t", report.Name{1}), nameHolder{flow: flow + 1}) {
				got <- flow
			}
		})
	}
	all.Wait()
	if len(got) != 1 {
		t.Errorf("%d flows have the name", len(got))
	}
}

func BenchmarkFlowNames(b *testing.B) {
	var names flowNames
	b.RunParallel(func(pb *testing.PB) {
		for flow := uint64(1); pb.Next(); flow++ {
			k := nameIn("t", report.NewName())
			names.take(k, nameHolder{flow: flow})
			names.leave(k, flow, true)
		}
	})
}
