package congestion

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"longhaul/lab"
	"longhaul/lab/progress"
	"longhaul/test/nettest"
)

func TestMeetingFigures(t *testing.T) {
	p := quick()
	limit := p.LimitBps()
	share := func(parts ...float64) []float64 { return scaled(parts, limit) }
	m := p.meeting(Scenario{Name: "1v4", ours: 1, theirs: 4},
		[]meetingRun{{ours: share(0.4), theirs: share(0.1, 0.1, 0.2, 0.2), queueP95: 12, joined: None, oursExcess: []float64{1.01}, allExcess: 1.01, theyExcess: 1.2}},
		[]meetingRun{{theirs: share(0.25, 0.25, 0.25, 0.25)}},
		[]meetingRun{{ours: share(0.2), theirs: share(0.2, 0.2, 0.2, 0.2)}})
	near(t, "the flow's goodput", m.FlowBps, 0.4*limit, 1)
	near(t, "the others' goodput", float64(m.OtherBps), 0.15*limit, 1)
	near(t, "the share of a fair one", float64(m.OfFair), 2, 1e-9)
	near(t, "Jain's index", float64(m.Jain), 1/(5*(0.16+0.02+0.08)), 1e-9)
	near(t, "what is used", m.Used, 1, 1e-9)
	near(t, "harm", float64(m.Harm), 0.4, 1e-9)
	near(t, "harm by their own kind", float64(m.HarmSelf), 0.2, 1e-9)
	if m.SecondsToShare.Some() {
		t.Errorf("a flow that did not join late has its share after %v s", m.SecondsToShare)
	}

	if !m.OK || m.OtherExcess != 1.2 || len(m.FlowExcess) != 1 {
		t.Errorf("judged %+v, want OK: what the others send does not count", m)
	}

	m = p.meeting(Scenario{Name: "4", ours: 4}, []meetingRun{{ours: share(0.3, 0.3, 0.3, 0.1), oursExcess: []float64{1, 1.02, 1, 1.3}, allExcess: 1.04, theyExcess: math.NaN()}}, nil, nil)
	near(t, "the worst flow's sent ÷ delivered", float64(m.WorstExcess), 1.3, 1e-9)
	near(t, "that of all", float64(m.AllExcess), 1.04, 1e-9)
	if m.OK || m.OtherExcess.Some() || len(m.FlowExcess) != 4 || m.FlowExcess[3] != 1.3 {
		t.Errorf("judged %+v, want not OK: one flow sends too much", m)
	}
	near(t, "the share of a fair one among themselves", float64(m.OfFair), 1, 1e-9)
	if m.Harm.Some() || m.OtherBps.Some() {
		t.Errorf("harm %v to others that there are not", m.Harm)
	}
}

// sharing has each way of sharing that differs in its runs.
var sharing = SharingOptions{Against: []string{"cubic", Self}, Scenarios: []string{"1v1", "late", "4"}}

// A run in which nothing arrived has no fairness, and can be written.
func TestNothingArrived(t *testing.T) {
	none := []meetingRun{{ours: []float64{0}, theirs: []float64{0}, joined: None, oursExcess: []float64{3}, allExcess: 3, theyExcess: 3}}
	p := SharingPath()
	for name, alone := range map[string][]meetingRun{"nor alone": none, "but alone": {{theirs: []float64{1e6}}}} {
		m := p.meeting(Scenario{Name: "1v1", ours: 1, theirs: 1}, none, alone, none)
		if m.Jain.Some() || m.OfFair.Some() || m.Harm.Some() != (name == "but alone") {
			t.Errorf("%s: Jain %v, of a fair share %v, harm %v", name, m.Jain, m.OfFair, m.Harm)
		}
		r := SharingResult{path: p, Cases: []SharingCase{{Name: "reno", Meetings: []Meeting{m}}}}
		if _, err := json.Marshal(r); err != nil {
			t.Error(err)
		}
	}
	if h := Harm(0, 1); !math.IsNaN(h) {
		t.Errorf("the harm to flows that have nothing alone is %v, want none", h)
	}
}

func TestRunSharing(t *testing.T) {
	t.Parallel()
	nettest.RequireSandbox(t)
	p := quick()
	o := options(400*ms, "reno")
	runs := map[int]string{}
	o.Report = func(r progress.Report) {
		if r.Kind == progress.Passing {
			runs[r.Done] = r.Text
		}
	}
	result, err := RunSharing(t.Context(), p, sharing, o)
	if err != nil {
		t.Fatal(err)
	}
	// 1v1 and late: reno beside cubic, beside reno, cubic beside cubic; cubic
	// and reno alone; four of reno.
	if len(runs) != 3+3+2+1 {
		t.Errorf("the runs were %v", runs)
	}
	meetings := result.Cases[0].Meetings
	if len(meetings) != 5 {
		t.Fatalf("meetings %+v", meetings)
	}
	for _, m := range meetings {
		if m.Jain.Some() && (float64(m.Jain) < 1/float64(m.Flows+m.Others) || m.Jain > 1) {
			t.Errorf("%s beside %s: Jain %.2f", m.Scenario, m.Against, m.Jain)
		}
		if m.Against == "reno" && m.Scenario == "1v1" {
			if m.Harm.Some() != m.HarmSelf.Some() || m.Harm.Some() && m.Harm != m.HarmSelf {
				t.Errorf("the harm of reno to reno is %v, and %v", m.Harm, m.HarmSelf)
			}
		}
		if (m.Scenario == "late") != m.SecondsToShare.Some() && m.Scenario != "late" {
			t.Errorf("%s: joined after %v s", m.Scenario, m.SecondsToShare)
		}
		if m.Scenario == "late" {
			early := 0.0
			for _, share := range m.Series[0][:1] {
				early += share
			}
			if early != 0 {
				t.Errorf("the late flow was there from the beginning: %v", m.Series[0])
			}
		}
	}
	var b bytes.Buffer
	if err := result.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + b.String())
	for line := range strings.Lines(b.String()) {
		if len([]rune(line)) > 81 {
			t.Errorf("%d columns: %s", len([]rune(line))-1, line)
		}
	}
	f := result.Plot()
	if len(f.Panels) != 5 {
		t.Errorf("%d panels", len(f.Panels))
	}
	if err := f.WriteCSV(&b); err != nil {
		t.Error(err)
	}
	if _, err := json.Marshal(result); err != nil {
		t.Error(err)
	}
}

// The far host's round trips are six times those of the near one, and its
// connection crosses the same bottleneck.
func TestFarHost(t *testing.T) {
	t.Parallel()
	nettest.RequireSandbox(t)
	p := quick()
	n, err := build(p, withFarHost(lab.TwoSites(p.Conditions), p.RTT, rttRatio))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	near, far := n.flow("reno"), n.flow("reno")
	near.bytes, far.bytes = 1000, 1000
	far.from = n.Host(farHost)
	flows, err := runFlows(t.Context(), []flowSpec{near, far}, patience, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []time.Duration{p.RTT, rttRatio * p.RTT} {
		if flows[i].finished == 0 || flows[i].err != nil {
			t.Fatalf("flow %d finished after %v: %v", i, flows[i].finished, flows[i].err)
		}
		if got := flows[i].connected; got < want { // connect takes a round trip, at least
			t.Errorf("flow %d connected after %v, before a round trip of %v", i, got, want)
		}
	}
}

func TestScenarios(t *testing.T) {
	if err := CheckSharing(SharingOptions{Scenarios: []string{"1v1", "far-ours"}}); err != nil {
		t.Error(err)
	}
	if err := CheckSharing(SharingOptions{Scenarios: []string{"2v2"}}); err == nil || !strings.Contains(err.Error(), "choose from 1v1, 1v4, 4v4, late") {
		t.Errorf("got %v", err)
	}
}

func TestSharingTable(t *testing.T) {
	r := SharingResult{path: SharingPath(), Conditions: SharingPath().conditions(Options{Time: time.Minute})}
	for _, name := range []string{"haul", "illinois"} {
		c := SharingCase{Name: name}
		for _, s := range Scenarios() {
			m := Meeting{Scenario: s.Name, Against: "illinois", QueueBDP: 0.5, Flows: s.ours, Others: s.theirs, FlowBps: 11.23e6, OtherBps: 95.1e6,
				OfFair: 1.09, Jain: 0.987, Used: 0.998, Harm: -0.02, HarmSelf: -0.123, QueueP95: 123.4, SecondsToShare: None, AllExcess: 1.26, OtherExcess: 1.01, OK: name == "haul"}
			m.FlowExcess = slices.Repeat([]Value{1.26}, s.ours)
			if s.theirs == 0 {
				m.Against, m.OtherBps, m.Harm, m.HarmSelf, m.OtherExcess = "", None, None, None, None
			}
			if s.joins > 0 {
				m.SecondsToShare = 12.345
			}
			c.Meetings = append(c.Meetings, m)
		}
		r.Cases = append(r.Cases, c)
	}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "sharing.table", b.String())
}
