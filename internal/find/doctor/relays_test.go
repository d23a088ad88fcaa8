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

const pairAction = "split the connection with a longhaul relay at each site"

// pairOf returns the remedy of a relay pair, which a report offers at most once.
func pairOf(t *testing.T, r Report) *Remedy {
	t.Helper()
	var found *Remedy
	for i := range r.Remedies {
		if !strings.HasPrefix(r.Remedies[i].Action, pairAction) {
			continue
		}
		if found != nil {
			t.Error("the relay pair appears twice")
		}
		found = &r.Remedies[i]
	}
	return found
}

func TestRelayPair(t *testing.T) {
	type causes = []Cause
	window := func(_ int, s *Sample) { s.Info.SndWnd, s.Info.RwndLimited = 62500, s.At }
	buffer := func(_ int, s *Sample) { s.Info.SndCwnd, s.Info.NotsentBytes, s.SendBuffer = 200, 0, 900_000 }
	// The socket's buffer and the window allow the same.
	both := func(k int, s *Sample) {
		window(k, s)
		s.Info.SndCwnd, s.Info.NotsentBytes, s.SendBuffer, s.Info.SndbufLimited = 200, 0, 900_000, s.At/2
	}
	capacity := func(o *Observation) {
		o.Capacity = &Trial{Streams: 4, GoodputBps: 40e6, MinRTT: 50 * time.Millisecond, RTT: 75 * time.Millisecond, SegmentBytes: 1448}
	}
	capture := func(bps float64) func(*Observation) {
		return func(o *Observation) {
			o.Elsewhere, o.Capture = true, &Capture{AtSender: true, Handshake: true, BurstBps: bps}
			for k := range o.Samples {
				o.Samples[k].SendBuffer, o.Samples[k].SendQueued, o.Samples[k].CPU = -1, -1, -1
			}
		}
	}
	for _, test := range []struct {
		name    string
		change  func(int, *Sample)
		beside  func(*Observation)
		offered causes
		first   bool    // of all remedies
		mbps    float64 // predicted; 0 is unknown
		next    string
		atLeast bool
	}{
		{"one cause", window, capacity, causes{ReceiverWindow}, false, 40, "the path", false},
		{"two that must go together", both, capacity, causes{ReceiverWindow, SendBuffer}, true, 40, "the path", false},
		{"losses that bound what comes next", func(k int, s *Sample) {
			window(k, s)
			s.Info.TotalRetrans, s.Info.RTT = uint32(k/50), 52*time.Millisecond
		}, capacity, causes{ReceiverWindow, RandomLoss}, true, 40, "the path", false},
		{"a program that is about as slow", func(k int, s *Sample) {
			buffer(k, s)
			s.Info.MaxPacingRateBps = 11_000_000
		}, capacity, nil, false, 11, string(Pacing), false},
		{"a program that paces at three times the rate", func(k int, s *Sample) {
			window(k, s)
			s.Info.MaxPacingRateBps = 30_000_000
		}, capacity, causes{ReceiverWindow}, false, 30, "the program's pacing", false},
		{"a program with little to send", func(_ int, s *Sample) { s.Info.BusyTime /= 2 }, capacity, nil, false, 10, string(Application), false},
		{"a program without CPU time", func(_ int, s *Sample) {
			s.Info.SndCwnd, s.Info.NotsentBytes, s.SendQueued, s.CPU = 200, 0, 100_000, s.At
		}, capacity, nil, false, 10, string(CPU), false},
		{"a program that reads slowly", func(k int, s *Sample) {
			s.Info.SndWnd, s.Info.RwndLimited = 100_000+uint32(k%2)*100_000, s.At
		}, capacity, nil, false, 10, string(Reader), false},
		{"a window that also holds the trial", window, func(o *Observation) {
			capacity(o)
			o.Capacity.WindowLimited = true
		}, causes{ReceiverWindow}, false, 40, trialBound, true},
		{"small segments", small, segments(5), causes{SegmentSize}, false, 27.2, "the path", false},
		{"losses", lose(10), capacity, causes{RandomLoss}, false, 40, "the path", false},
		{"unknown capacity", window, nil, causes{ReceiverWindow}, false, 0, "", false},
		{"a capture with bursts", window, capture(35e6), causes{ReceiverWindow}, false, 35, "the path", false},
		{"a capture without", window, capture(0), causes{ReceiverWindow}, false, 0, "", false},
		{"nothing wrong", nil, func(o *Observation) { capacity(o); o.Capacity.GoodputBps = 10.5e6 }, nil, false, 10.5, "the path", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := bulk(test.change)
			o.Local, o.Remote = netip.MustParseAddrPort("192.0.2.1:40000"), netip.MustParseAddrPort("203.0.113.9:5432")
			if test.beside != nil {
				test.beside(&o)
			}
			r, err := Diagnose(o)
			if err != nil {
				t.Fatal(err)
			}
			pair, outlook := pairOf(t, r), r.RelayPair
			if outlook == nil {
				t.Fatalf("no outlook: %+v", r.Findings)
			}
			if math.Abs(outlook.PredictedBps/1e6-test.mbps) > 0.02*test.mbps || outlook.Next != test.next || outlook.AtLeast != test.atLeast {
				t.Errorf("outlook %+v, want %.1f Mb/s, then %s", *outlook, test.mbps, test.next)
			}
			if (outlook.Unknown != "") != (test.mbps == 0) || (r.Unpredicted != "") != (test.mbps == 0) {
				t.Errorf("unknown %q, unpredicted %q", outlook.Unknown, r.Unpredicted)
			}
			if pair == nil {
				if test.offered != nil {
					t.Fatalf("no relay pair in %+v", r.Remedies)
				}
				return
			}
			if !slices.Equal(pair.Causes, test.offered) || pair.Outlook != *outlook {
				t.Errorf("offered for %v with %+v, want %v", pair.Causes, pair.Outlook, test.offered)
			}
			if got := strings.HasPrefix(r.Remedies[0].Action, pairAction); got != test.first {
				t.Errorf("first of the remedies: %v, want %v", got, test.first)
			}
		})
	}
}

// The same deed against several causes is one remedy, with the prediction of all.
func TestRemediesMerge(t *testing.T) {
	o := bulk(func(k int, s *Sample) { // half of the losses were none
		lose(60)(k, s)
		s.Info.DSACKDups = s.Info.TotalRetrans / 2
	})
	o.Capacity = &Trial{Streams: 4, GoodputBps: 40e6, MinRTT: 50 * time.Millisecond, RTT: 51 * time.Millisecond, SegmentBytes: 1448, LossShare: 0.2}
	r, err := Diagnose(o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Findings) < 2 {
		t.Fatalf("findings %+v", r.Findings)
	}
	seen := map[string]bool{}
	for _, remedy := range r.Remedies {
		if key := remedy.Action + remedy.Command; seen[key] {
			t.Errorf("%q appears twice", remedy.Action)
		} else {
			seen[key] = true
		}
		if strings.HasPrefix(remedy.Action, "send there with haul") && len(remedy.Causes) != 2 {
			t.Errorf("haul is offered for %v", remedy.Causes)
		}
	}
}

// A pair leads to the end that other hosts connect to.
func TestRelayPairTarget(t *testing.T) {
	for _, test := range []struct{ local, remote, want string }{
		{"192.0.2.1:40000", "203.0.113.9:5432", "203.0.113.9:5432"},
		{"192.0.2.1:5432", "203.0.113.9:40000", "192.0.2.1:5432"},
		{"192.0.2.1:50000", "203.0.113.9:40000", "203.0.113.9:40000"},
	} {
		o := bulk(func(_ int, s *Sample) { s.Info.SndWnd, s.Info.RwndLimited = 62500, s.At })
		o.Local, o.Remote = netip.MustParseAddrPort(test.local), netip.MustParseAddrPort(test.remote)
		r, err := Diagnose(o)
		if err != nil {
			t.Fatal(err)
		}
		if pair := pairOf(t, r); pair == nil || !strings.HasSuffix(pair.Command, "--forward "+test.want) {
			t.Errorf("from %s to %s: %+v", test.local, test.remote, pair)
		}
	}
}

// A window that a trial also meets is the host's, though it varies. Without a trial
// the reading program may be the cause.
func TestWindowOfHost(t *testing.T) {
	varies := func(k int, s *Sample) { s.Info.SndWnd, s.Info.RwndLimited = 70_000+uint32(k%3)*10_000, s.At }
	for _, test := range []struct {
		name   string
		trial  *Trial
		own    bool
		shut   bool // the window closes at times
		cause  Cause
		known  bool
		doubts bool
	}{
		{"without a trial", nil, false, false, Reader, false, true},
		{"without a trial, and it closes", nil, false, true, Reader, true, false},
		{"doctor's own connection", nil, true, false, ReceiverWindow, false, false},
		{"the trial's windows are larger", &Trial{GoodputBps: 40e6, PeerWindow: 1 << 20}, false, false, Reader, true, false},
		{"the trial's are as small", &Trial{GoodputBps: 40e6, PeerWindow: 80_000, WindowLimited: true}, false, false, ReceiverWindow, true, false},
	} {
		o := bulk(func(k int, s *Sample) {
			if varies(k, s); test.shut && k%4 == 0 {
				s.Info.SndWnd = 0
			}
		})
		o.Capacity, o.Own = test.trial, test.own
		r, err := Diagnose(o)
		if err != nil {
			t.Fatal(err)
		}
		if r.Cause != test.cause || r.RelayPair == nil || (r.RelayPair.PredictedBps > 0) != test.known || (r.Doubt != "") != test.doubts {
			t.Errorf("%s: %s, relay pair %+v, doubt %q", test.name, r.Cause, r.RelayPair, r.Doubt)
		}
	}
}

// A capture gets advice that fits captures.
func TestCaptureAdvice(t *testing.T) {
	for _, test := range []struct {
		capture Capture
		want    string
	}{
		{Capture{}, "capture is not from the sending host"},
		{Capture{AtSender: true}, "capture from the connection's start"},
		{Capture{AtSender: true, Handshake: true}, "longhaul doctor --remote"},
		{Capture{AtSender: true, Handshake: true, BurstBps: 80e6}, "bursts cross the path at 80 Mb/s"},
	} {
		o := bulk(func(_ int, s *Sample) { s.Info.RTT = 50 * time.Millisecond })
		o.Capture = &test.capture
		r, err := Diagnose(o)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := r.WriteText(&b); err != nil {
			t.Fatal(err)
		}
		text := strings.Join(strings.Fields(b.String()), " ")
		if r.Cause != Unexplained || !strings.Contains(text, test.want) || strings.Contains(text, "add --test") {
			t.Errorf("%+v: %s, %s", test.capture, r.Cause, text)
		}
	}
}

// A connection with 64 KiB at both ends (iperf3 -w 64K over 63 ms and 100 Mb/s): it got
// 10.6 Mb/s, and through a relay pair 92 Mb/s.
func TestRelayPairAgainstBothEnds(t *testing.T) {
	r, err := Diagnose(readRecord(t, "testdata/receiver-window@both-ends.json"))
	if err != nil {
		t.Fatal(err)
	}
	pair := pairOf(t, r)
	if pair == nil || pair.PredictedBps < 0.8*92e6 || pair.PredictedBps > 1.25*92e6 || pair.Next != "the path" {
		t.Fatalf("relay pair %+v", pair)
	}
	if !strings.HasPrefix(r.Remedies[0].Action, pairAction) || len(r.Remedies) < 2 || r.Remedies[1].PredictedBps > 20e6 {
		t.Errorf("remedies %+v", r.Remedies)
	}
}

// At the receiving end, a trial of the other direction predicts nothing.
func TestRelayPairOfReceiver(t *testing.T) {
	o := bulk(func(_ int, s *Sample) {
		s.Info.BytesReceived, s.Info.BytesAcked = s.Info.BytesAcked, 1
		s.Info.BusyTime, s.Info.Unacked, s.Info.NotsentBytes, s.Info.RcvWnd = 0, 0, 0, 80_000
	})
	o.Capacity = &Trial{GoodputBps: 10e6}
	r, err := Diagnose(o)
	if err != nil {
		t.Fatal(err)
	}
	if pair := pairOf(t, r); r.Cause != ReceiverWindow || pair == nil || pair.PredictedBps != 0 || pair.Unknown == "" {
		t.Errorf("%s, %+v", r.Cause, pair)
	}
}
