package monitor

import (
	"maps"
	"slices"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/words/units"
)

// The counts of a pair never decrease while it has a session, though its sessions
// come and go.
func TestPairCounts(t *testing.T) {
	m := New(Options{})
	session := func(number string, up bool, flows, resumes int64, outage time.Duration) flow.Session {
		return flow.Session{Tunnel: "to-b", Peer: "site-b", Session: number, End: flow.NearEnd, Up: up, FlowsMoving: 2, LanesBusy: 2,
			RetainedBytes: 10, FlowsTotal: flows, Resumes: resumes, Outage: units.Seconds(outage), Since: time.Unix(flows, 0)}
	}
	broken := session("2", false, 1, 0, 0)
	broken.Problem = flow.PairVersion
	refused := session("4", true, 9, 0, 0) // since later
	refused.LaneProblem = flow.PairCertificate
	for i, step := range []struct {
		sessions                       []flow.Session
		up                             bool
		number                         string // of the session that describes the pair
		moving                         int
		flows, resumes, outage, retain int64
	}{
		{[]flow.Session{session("1", true, 5, 1, time.Second)}, true, "1", 2, 5, 1, 1, 10},
		{[]flow.Session{session("1", true, 6, 2, time.Second), broken}, true, "1", 4, 7, 2, 1, 20},
		{[]flow.Session{session("1", false, 6, 2, 3*time.Second), session("2", true, 4, 0, 0)}, true, "2", 4, 10, 2, 3, 20},
		{[]flow.Session{session("2", true, 9, 0, 0)}, true, "2", 2, 15, 2, 3, 10},
		{[]flow.Session{session("2", false, 9, 0, time.Second)}, false, "2", 2, 15, 2, 4, 10},
		{[]flow.Session{session("3", true, 1, 0, 0)}, true, "3", 2, 16, 2, 4, 10},
		{[]flow.Session{refused, session("3", true, 1, 0, 0)}, true, "3", 4, 25, 2, 4, 20},
	} {
		got := m.pairs(&flow.Pairs{Sessions: step.sessions})
		if len(got) != 1 {
			t.Fatalf("step %d: %d pairs", i, len(got))
		}
		p := got[0]
		if p.Up != step.up || p.Session.Session != step.number || p.FlowsMoving != step.moving || p.LanesBusy != step.moving || p.RetainedBytes != step.retain {
			t.Errorf("step %d: %+v", i, p)
		}
		if p.FlowsTotal != step.flows || p.Resumes != step.resumes || p.Outage != units.Seconds(time.Duration(step.outage)*time.Second) {
			t.Errorf("step %d: %d flows, %d resumes, %v of outage", i, p.FlowsTotal, p.Resumes, p.Outage)
		}
		if broken := i == 1; slices.Contains(p.Problems, flow.PairVersion) != broken {
			t.Errorf("step %d: problems %q", i, p.Problems)
		}
	}
	if got := m.pairs(&flow.Pairs{}); len(got) != 0 || len(m.pairTracks) != 0 {
		t.Errorf("a pair without a session is kept: %+v", got)
	}
}

// Pairs are in the order of tunnels, then peers.
func TestPairOrder(t *testing.T) {
	got := New(Options{}).pairs(&flow.Pairs{Sessions: []flow.Session{{Tunnel: "b", Peer: "x"}, {Tunnel: "a", Peer: "y"}, {Tunnel: "a", Peer: "x"}}})
	var order string
	for _, p := range got {
		order += p.Tunnel + p.Peer + " "
	}
	if order != "ax ay bx " {
		t.Errorf("order %s", order)
	}
}

// Each hop that is a far relay has the round-trip time of its session, with flows or without.
func TestHopsHaveTheRTTOfTheirSessions(t *testing.T) {
	session := func(tunnel, hop string, rtt units.Seconds) flow.Session {
		return flow.Session{Tunnel: tunnel, Hop: hop, End: flow.NearEnd, Up: true, RTT: rtt}
	}
	draining, down, far := session("several", "b:1", 9), session("several", "c:1", 9), session("plain", "", 9)
	draining.Draining, down.Up, far.End = true, false, flow.FarEnd
	rtts := sessionRTTs(&flow.Pairs{Sessions: []flow.Session{
		draining, session("several", "a:1", 1), session("several", "b:1", 2), down, session("one", "", 3), far,
	}})
	for _, test := range []struct {
		tunnel string
		hops   []string
		want   []units.Seconds
	}{
		{"several", []string{"a:1", "b:1", "c:1"}, []units.Seconds{1, 2, 0}},
		{"one", []string{"a:1"}, []units.Seconds{3}},
		{"plain", []string{"a:1"}, []units.Seconds{0}},
	} {
		tunnel := Tunnel{Tunnel: flow.Tunnel{Name: test.tunnel}}
		for _, name := range test.hops {
			tunnel.Hops = append(tunnel.Hops, Hop{Hop: flow.Hop{Name: name}})
		}
		for i, want := range test.want {
			if got := rtts.of(&tunnel, i); got != want {
				t.Errorf("%s, hop %s: %v, want %v", test.tunnel, test.hops[i], got, want)
			}
		}
	}
	if got := sessionRTTs(nil); len(got) != 0 {
		t.Errorf("without pairs: %v", got)
	}
}

// Each pair has the bytes that went to its peer: those up at the near end, those down at the far one.
func TestBytesOfPairs(t *testing.T) {
	m := New(Options{})
	m.tunnel("t").last.Peers = map[string]flow.PeerBytes{"a": {Up: 1, Down: 2}, "b": {Up: 3, Down: 4}}
	got := m.pairs(&flow.Pairs{Sessions: []flow.Session{{Tunnel: "t", Peer: "a", End: flow.NearEnd}, {Tunnel: "t", Peer: "b", End: flow.FarEnd},
		{Tunnel: "t", Peer: "c", End: flow.FarEnd}, {Tunnel: "other", Peer: "a", End: flow.NearEnd}}})
	sent := map[string]int64{}
	for _, p := range got {
		sent[p.Tunnel+" "+p.Peer] = p.Sent
	}
	if want := map[string]int64{"t a": 1, "t b": 4, "t c": 0, "other a": 0}; !maps.Equal(sent, want) {
		t.Errorf("%v, want %v", sent, want)
	}
}
