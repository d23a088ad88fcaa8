package main

import (
	"context"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"longhaul/internal/find/doctor"
	"longhaul/lab"
	"longhaul/lab/pattern"
	"longhaul/test/nettest"
)

func TestDraw(t *testing.T) {
	lines := func(all []Scenario) (text []string) {
		for _, s := range all {
			text = append(text, s.String())
		}
		return text
	}
	all := Draw(2*len(kinds), 7, nil)
	if diff := cmp.Diff(lines(all), lines(Draw(2*len(kinds), 7, nil))); diff != "" {
		t.Errorf("the same seed draws others:\n%s", diff)
	}
	if cmp.Equal(lines(all), lines(Draw(2*len(kinds), 8, nil))) {
		t.Error("another seed draws the same")
	}
	for i, s := range all {
		kind := kinds[i%len(kinds)]
		want := 1
		switch kind {
		case "healthy":
			want = 0
		case "mixed":
			want = 2
		}
		if len(s.Hindrances) != want {
			t.Errorf("%s has %d hindrances", s.Name, len(s.Hindrances))
		}
		if kind == "congestion" {
			continue // has no remedy
		}
		for _, cause := range s.Hindrances {
			without := s
			without.tolerant = "haul"
			without.setup = without.without(cause)
			if cmp.Equal(s.setup, without.setup, cmp.AllowUnexported(setup{}), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })) {
				t.Errorf("%s: the remedy of %s changes nothing", s.Name, cause)
			}
		}
		if err := lab.TwoSites(s.conditions); len(err.Hosts) == 0 {
			t.Errorf("%s has no hosts", s.Name)
		}
	}
	for _, s := range Draw(3, 1, []string{"policer"}) {
		if !strings.HasPrefix(s.Name, "policer-") {
			t.Errorf("%s was drawn", s.Name)
		}
	}
}

func TestJudge(t *testing.T) {
	type causes = []doctor.Cause
	for _, test := range []struct {
		name       string
		hindrances causes
		without    map[doctor.Cause]float64 // of 10
		verdict    doctor.Cause
		truth      doctor.Cause
		right      bool
	}{
		{"the one", causes{doctor.Pacing}, map[doctor.Cause]float64{doctor.Pacing: 20}, doctor.Pacing, doctor.Pacing, true},
		{"another", causes{doctor.Pacing}, map[doctor.Cause]float64{doctor.Pacing: 20, doctor.CPU: 10}, doctor.CPU, doctor.Pacing, false},
		{"another whose remedy helps, too", causes{doctor.Policer}, map[doctor.Cause]float64{doctor.Policer: 20, doctor.RandomLoss: 20}, doctor.RandomLoss, doctor.Policer, false},
		{"what is in the way does not matter", causes{doctor.RandomLoss}, map[doctor.Cause]float64{doctor.RandomLoss: 11}, doctor.Healthy, doctor.Healthy, true},
		{"and is named", causes{doctor.RandomLoss}, map[doctor.Cause]float64{doctor.RandomLoss: 11}, doctor.RandomLoss, doctor.Healthy, false},
		{"nothing is in the way, and yet there is a remedy", nil, map[doctor.Cause]float64{doctor.RandomLoss: 15}, doctor.RandomLoss, doctor.RandomLoss, true},
		{"nothing is in the way", nil, nil, doctor.Healthy, doctor.Healthy, true},
		{"nothing is in the way, and nothing is said", nil, nil, doctor.Unexplained, doctor.Healthy, false},
		{"others", causes{doctor.Congestion}, nil, doctor.Congestion, doctor.Congestion, true},
		{"others, not noticed", causes{doctor.Congestion}, nil, doctor.Healthy, doctor.Congestion, false},
		{"two, the lesser named", causes{doctor.Pacing, doctor.SendBuffer}, map[doctor.Cause]float64{doctor.Pacing: 20, doctor.SendBuffer: 13}, doctor.SendBuffer, doctor.Pacing, false},
		{"two alike", causes{doctor.Pacing, doctor.SendBuffer}, map[doctor.Cause]float64{doctor.Pacing: 20, doctor.SendBuffer: 19}, doctor.SendBuffer, doctor.Pacing, true},
	} {
		r := Result{GoodputBps: 10, Hindrances: test.hindrances, Without: test.without, Verdict: test.verdict}
		r.judge()
		if r.truth() != test.truth || r.Right != test.right {
			t.Errorf("%s: truth %s, right %v", test.name, r.truth(), r.Right)
		}
	}
}

func TestSummarize(t *testing.T) {
	results := []Result{
		{GoodputBps: 10, Hindrances: []doctor.Cause{doctor.Pacing}, Without: map[doctor.Cause]float64{doctor.Pacing: 20}, Verdict: doctor.Pacing, PredictedBps: 22},
		{GoodputBps: 10, Hindrances: []doctor.Cause{doctor.Pacing}, Without: map[doctor.Cause]float64{doctor.Pacing: 20, doctor.CPU: 10}, Verdict: doctor.CPU, PredictedBps: 30},
		{GoodputBps: 10, Verdict: doctor.Healthy},
		{GoodputBps: 10, Hindrances: []doctor.Cause{doctor.Pacing, doctor.SendBuffer}, Without: map[doctor.Cause]float64{doctor.Pacing: 10, doctor.SendBuffer: 10}, Verdict: doctor.Pacing},
		{Error: "no verdict"},
	}
	for i := range results {
		if results[i].Error == "" {
			results[i].judge()
		}
	}
	o := summarize(results)
	if o.Accuracy != 0.5 || o.Failed != 1 || o.NoSingle != 1 || o.Recall[doctor.Pacing] != 0.5 || o.Recall[doctor.Healthy] != 1 ||
		o.Gains != 2 || o.GainWithinBand != 0.5 || o.Confusion[doctor.Pacing][doctor.CPU] != 1 {
		t.Errorf("%+v", o)
	}
	var b strings.Builder
	if err := o.WriteText(&b); err != nil || !strings.Contains(b.String(), "cpu 1") {
		t.Errorf("%v:\n%s", err, b.String())
	}
}

// Predictions of a relay pair count by mode and hindrance.
func TestCountPairs(t *testing.T) {
	results := []Result{
		{Hindrances: []doctor.Cause{doctor.Pacing}, Pairs: []Pair{
			{Mode: Tested, PredictedBps: 10, AchievedBps: 10},
			{Mode: Captured, Error: "too little"},
		}},
		{Hindrances: []doctor.Cause{doctor.SendBuffer}, Pairs: []Pair{
			{Mode: Tested, PredictedBps: 7.9, AchievedBps: 10},
			{Mode: Watched, AchievedBps: 10},
			{Mode: Active, PredictedBps: 5, AtLeast: true, AchievedBps: 10},
		}},
		{Hindrances: []doctor.Cause{doctor.SendBuffer}, Pairs: []Pair{
			{Mode: Tested, PredictedBps: 12.5, AchievedBps: 10},
			{Mode: Active, PredictedBps: 12.6, AtLeast: true, AchievedBps: 10},
		}},
		{Hindrances: []doctor.Cause{doctor.Pacing, doctor.SendBuffer}, Pairs: []Pair{{Mode: Tested, PredictedBps: 12.6, AchievedBps: 10}}},
	}
	want := map[Mode]map[string]PairCount{
		Tested: {
			allCauses: {Predicted: 4, Within: 2}, "pacing": {Predicted: 1, Within: 1},
			"send-buffer": {Predicted: 2, Within: 1}, "mixed": {Predicted: 1},
		},
		Watched:  {allCauses: {NoFigure: 1}, "send-buffer": {NoFigure: 1}},
		Captured: {allCauses: {Failed: 1}, "pacing": {Failed: 1}},
		Active:   {allCauses: {Predicted: 2, Within: 1}, "send-buffer": {Predicted: 2, Within: 1}},
	}
	o := Outcome{Pairs: countPairs(results)}
	if diff := cmp.Diff(want, o.Pairs); diff != "" {
		t.Error(diff)
	}
	var b strings.Builder
	if err := o.WriteText(&b); err != nil || !strings.Contains(b.String(), "2 of 4, 50.0 %") {
		t.Errorf("%v:\n%s", err, b.String())
	}
}

// The lab relays what limits hosts and programs, and doctor's own connection meets the
// limits of hosts.
func TestRelayed(t *testing.T) {
	for _, s := range Draw(2*len(kinds), 7, nil) {
		kind, _, _ := strings.Cut(s.Name, "-")
		for _, k := range kinds {
			if strings.HasPrefix(s.Name, k+"-") {
				kind = k
			}
		}
		path := slices.Contains([]string{"healthy", "congestion", "black-hole", "asymmetric-mtu"}, kind)
		if s.relayed() == path {
			t.Errorf("%s: relayed %v", s.Name, s.relayed())
		}
		at, same, ok := s.atHosts()
		program := slices.Contains([]string{"application", "pacing", "cpu", "short-flow", "mixed"}, kind)
		if s.relayed() && ok == program {
			t.Errorf("%s: doctor's own connection meets its limit: %v", s.Name, ok)
		}
		if !s.relayed() || !ok {
			continue
		}
		if at.traffic != (Traffic{}) || at.windowBytes > 0 || at.receiveBufferBytes > 0 {
			t.Errorf("%s: the program keeps a limit: %+v", s.Name, at.traffic)
		}
		if !same && at.hostWindowBytes == 0 && at.hostSendBufferBytes == 0 {
			t.Errorf("%s: no limit is left", s.Name)
		}
	}
}

// TestTransfers has a program make one connection after the other, each with as
// much as it was told, and end when it is told to.
func TestTransfers(t *testing.T) {
	nettest.CheckLeaks(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sent := make(chan error, 1)
	go func() {
		sent <- Traffic{To: l.Addr().(*net.TCPAddr).AddrPort(), TransferBytes: 100_000, WorkPerMB: time.Millisecond, OfferBps: 1e9}.Send(ctx)
	}()
	for range 3 {
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(conn)
		conn.Close()
		if err != nil || len(got) != 100_000 || !pattern.Match(0, got) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
	cancel()
	if err := <-sent; err != nil {
		t.Error(err)
	}
}
