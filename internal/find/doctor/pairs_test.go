package doctor

import (
	"bytes"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// pairingOf returns the remedy of two paired relays.
func pairingOf(t *testing.T, r Report) (found *Remedy) {
	t.Helper()
	for i := range r.Remedies {
		if strings.HasPrefix(r.Remedies[i].Action, "pair a longhaul relay at each site") {
			if found != nil {
				t.Error("the pair appears twice")
			}
			found = &r.Remedies[i]
		}
	}
	return found
}

// A connection that stands still, though packets of its size get through or nobody
// answers, is in an outage.
func TestOutage(t *testing.T) {
	stands := func(k int, s *Sample) { s.Info.BytesAcked, s.Info.Backoff = 1000, 4 }
	for name, one := range map[string]struct {
		path  Path
		cause Cause
		says  string // of the evidence
		with  string // one of the remedies
	}{
		"the path is down":       {Path{DeviceMTU: 1500}, Outage, "answers nothing else", ""},
		"a NAT has forgotten it": {Path{DeviceMTU: 1500, MTU: 1500}, Outage, "a NAT or a firewall on the path has forgotten", "keepalives"},
		"too large":              {Path{DeviceMTU: 1500, MTU: 1400}, BlackHole, "carries packets of 1400", ""},
		"probes get no answer":   {Path{DeviceMTU: 1500, Answers: true}, BlackHole, "answers small packets", ""},
		"without probes":         {Path{}, Unexplained, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := bulk(stands)
			o.Local, o.Remote, o.Path = netip.MustParseAddrPort("192.0.2.1:40000"), netip.MustParseAddrPort("203.0.113.9:5432"), one.path
			r, err := Diagnose(o)
			if err != nil {
				t.Fatal(err)
			}
			if r.Cause != one.cause || !strings.Contains(strings.Join(r.Findings[0].Evidence, "\n"), one.says) {
				t.Errorf("%s: %q", r.Cause, r.Findings[0].Evidence)
			}
			if pairing := pairingOf(t, r); (pairing != nil) != (one.cause == Outage) {
				t.Errorf("remedies %+v", r.Remedies)
			}
			var text bytes.Buffer
			if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), one.with) || one.with == "" && strings.Contains(text.String(), "keepalives") {
				t.Errorf("%v, text:\n%s", err, text.String())
			}
			if one.cause == Outage && strings.Contains(text.String(), "No figure") {
				t.Errorf("a path that is down has no figures:\n%s", text.String())
			}
		})
	}
}

// A pair is a remedy for short connections over a long path.
func TestPairForShortFlows(t *testing.T) {
	for _, one := range []struct {
		rtt   time.Duration
		pair  *Pair
		gain  float64 // 64 kB: a handshake and three windows become one round trip
		found bool
	}{
		{rtt: 80 * time.Millisecond, gain: 4, found: true},
		{rtt: 5 * time.Millisecond},
		{rtt: 80 * time.Millisecond, pair: &Pair{Tunnel: "files", Peer: "site-b", Up: true, Lane: true}},
	} {
		o := bulk(func(_ int, s *Sample) {
			s.Info.MinRTT, s.Info.RTT, s.Info.SndSSThresh = one.rtt, one.rtt, infiniteThreshold
		})
		o.Local, o.Remote = netip.MustParseAddrPort("192.0.2.1:40000"), netip.MustParseAddrPort("203.0.113.9:5432")
		o.Connections, o.TotalBytes, o.Time, o.FromStart, o.Pair = 20, 20*64_000, 5*time.Second, true, one.pair
		r, err := Diagnose(o)
		if err != nil {
			t.Fatal(err)
		}
		if r.Cause != ShortFlow {
			t.Fatalf("%v: %s", one.rtt, r.Cause)
		}
		pairing := pairingOf(t, r)
		if (pairing != nil) != one.found {
			t.Errorf("%v, pair %+v: remedies %+v", one.rtt, one.pair, r.Remedies)
		}
		if pairing != nil && (pairing.Gain != one.gain || pairing.PredictedBps != r.GoodputBps*one.gain || !strings.Contains(pairing.Command, "--pair-from")) {
			t.Errorf("%+v", pairing)
		}
	}
}

// The report of a lane names the pair, and has no remedy that is for programs or for
// hosts without relays.
func TestLane(t *testing.T) {
	observe := func(change func(int, *Sample), memory int) Report {
		o := bulk(change)
		o.Local, o.Remote = netip.MustParseAddrPort("192.0.2.1:40000"), netip.MustParseAddrPort("203.0.113.9:6000")
		o.Pair = &Pair{Tunnel: "files", Peer: "site-b", Up: true, Lane: true, MemoryLimited: memory, MemoryRemedy: "raise memory_limit"}
		o.Capacity = &Trial{Streams: 4, GoodputBps: 40e6, MinRTT: 50 * time.Millisecond, RTT: 51 * time.Millisecond, SegmentBytes: 1448}
		r, err := Diagnose(o)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for name, one := range map[string]struct {
		change func(int, *Sample)
		memory int // flows that it limits
		cause  Cause
		says   string
	}{
		"application": {func(_ int, s *Sample) { s.Info.BusyTime /= 2 }, 0, Application, "look at the flows' other connections"},
		"loss":        {lose(60), 0, RandomLoss, "wan: {congestion_control: haul} of tunnel files"},
		"memory":      {func(_ int, s *Sample) { s.Info.BusyTime /= 2 }, 2, SendBuffer, "too little of a flow for this distance, limited by memory"},
		"its setting": {func(_ int, s *Sample) { s.Info.BusyTime /= 2 }, 2, SendBuffer, "raise memory_limit"},
	} {
		t.Run(name, func(t *testing.T) {
			r := observe(one.change, one.memory)
			var text bytes.Buffer
			if err := r.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			words := strings.Join(strings.Fields(text.String()), " ")
			if r.Cause != one.cause || !strings.Contains(words, one.says) || !strings.Contains(words, "a lane of the pair of tunnel files with site-b") {
				t.Errorf("%s:\n%s", r.Cause, text.String())
			}
			if r.RelayPair != nil || strings.Contains(words, "relay at each site") || strings.Contains(words, "have the program keep data ready") {
				t.Errorf("a remedy for hosts without relays:\n%s", text.String())
			}
		})
	}
}

// A pair without a session is the verdict, with samples of a connection or without.
func TestPairDown(t *testing.T) {
	down := &Pair{Tunnel: "files", Peer: "site-b", Problem: "key-unknown", Text: "site-b and this relay do not know each other's keys",
		Remedy: "compare the keys", Error: "remote error: tls: bad certificate\nmore", Flows: 3}
	for _, o := range []Observation{{Pair: down}, func() Observation { o := bulk(nil); o.Pair = down; return o }()} {
		r, err := Diagnose(o)
		if err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		if err := r.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		const want = `The pair of tunnel files with site-b has no session: site-b and this relay do
not know each other's keys.

Evidence:
  - site-b and this relay do not know each other's keys (key-unknown)
  - the relay's last attempt: remote error: tls: bad certificate
  - flows that wait for a session: 3

Remedies, most effective first:
  1. compare the keys
     on the relay's host:
       longhaul check files

Certain.
`
		if r.Cause != PairDown || r.Strength != Certain || text.String() != want {
			t.Errorf("%s, %s:\n%s", r.Cause, r.Strength, text.String())
		}
	}
}

// A policer of each connection leaves several lanes their rate each; one of all connections
// does not.
func TestLanesPastAPolicer(t *testing.T) {
	trial := func(streams int, mbps float64) *Trial {
		return &Trial{Streams: streams, GoodputBps: mbps * 1e6, MinRTT: 50 * time.Millisecond, RTT: 52 * time.Millisecond, LossShare: 0.08, SegmentBytes: 1448}
	}
	for _, test := range []struct {
		name      string
		more      *Trial
		cause     Cause
		predicted float64 // Mb/s, of the pair; 0: no such remedy
	}{
		{"each connection", trial(8, 92), Policer, 87.4},
		{"all of them", trial(8, 52), Policer, 0},
		{"not known", nil, Policer, 0},
	} {
		o := bulk(lose(5))
		o.Capacity, o.MoreStreams = trial(4, 48), test.more
		r, err := Diagnose(o)
		if err != nil {
			t.Fatal(err)
		}
		pairing := pairingOf(t, r)
		if r.Cause != test.cause || (pairing != nil) != (test.predicted > 0) {
			t.Errorf("%s: %s, %+v", test.name, r.Cause, pairing)
			continue
		}
		learn := slices.ContainsFunc(r.Remedies, func(r Remedy) bool {
			return len(r.Notes) > 0 && strings.HasSuffix(r.Notes[0], "longhaul doctor HOST, with a longhaul measure --serve there that takes 8 connections at once.")
		})
		if learn != (test.more == nil) {
			t.Errorf("%s: how many lanes help is to be learnt: %v", test.name, learn)
		}
		o.Pair = &Pair{Tunnel: "files", Peer: "site-b", Up: true, Lane: true}
		ofLane, err := Diagnose(o)
		if err != nil {
			t.Fatal(err)
		}
		if first := ofLane.Remedies[0]; strings.HasPrefix(first.Action, "give each flow 8 lanes") != (test.predicted > 0) {
			t.Errorf("%s: a lane of a pair: %+v", test.name, first)
		}
		if pairing == nil {
			continue
		}
		if math.Abs(pairing.PredictedBps/1e6-test.predicted) > 0.01 || pairing.Gain < 5 || !strings.Contains(pairing.Action, "8 lanes") {
			t.Errorf("%s: %+v", test.name, pairing)
		}
		if evidence := strings.Join(r.Findings[0].Evidence, "\n"); !strings.Contains(evidence, "each has the limit") {
			t.Errorf("%s: %s", test.name, evidence)
		}
		if haul := r.Findings[0].PredictedBps / 1e6; math.Abs(haul-0.95*92/8) > 0.1 {
			t.Errorf("%s: one connection would get %.1f Mb/s", test.name, haul)
		}
	}
}
