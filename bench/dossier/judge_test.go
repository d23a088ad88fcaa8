package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"longhaul/bench/kit/congestion"
)

// bps returns runs of one flow with these goodputs.
func bps(values ...float64) []measured {
	var all []measured
	for _, v := range values {
		m := measured{}
		m.Groups = []congestion.GroupOutcome{{GoodputBps: []float64{v}, SteadyBps: []float64{v}, SteadyExcess: congestion.None}}
		all = append(all, m)
	}
	return all
}

func twoFlows(first, second float64) measured {
	m := measured{}
	m.Groups = []congestion.GroupOutcome{{SteadyBps: []float64{first}}, {SteadyBps: []float64{second}}}
	return m
}

// bounded is a cell with a bound of 100 for the subject's median, and one of another.
func bounded() cell {
	return cell{name: "one", about: "a path", trials: map[role]trial{ours: {}, theirs: {}}, claims: []claim{
		atLeast("goodput", ratio, median(ours, goodput(0)), constant(100)),
		{title: "of theirs", of: theirs, parts: []part{{unit: ratio, value: median(ours, goodput(0)), most: times(2, median(theirs, goodput(0)))}}},
	}}
}

func TestJudge(t *testing.T) {
	for name, test := range map[string]struct {
		runs    runs
		verdict Verdict
		sure    bool
		claims  int
	}{
		"within":                      {runs{ours: bps(110, 111, 112, 113, 114), theirs: bps(100, 100, 100, 100, 100)}, Pass, true, 2},
		"beyond":                      {runs{ours: bps(90, 91, 92, 93, 94), theirs: bps(100, 100, 100, 100, 100)}, Fail, true, 2},
		"within, some runs are not":   {runs{ours: bps(80, 90, 112, 113, 114), theirs: bps(100, 100, 100, 100, 100)}, Pass, false, 2},
		"beyond, some runs are not":   {runs{ours: bps(80, 90, 99, 113, 114), theirs: bps(100, 100, 100, 100, 100)}, Fail, false, 2},
		"the other's bound is beyond": {runs{ours: bps(110, 110, 110, 110, 110), theirs: bps(10, 10, 10, 10, 10)}, Fail, true, 2},
		"without the other":           {runs{ours: bps(110, 111, 112)}, Pass, true, 1},
		"too few for intervals":       {runs{ours: bps(110, 111), theirs: bps(100, 100)}, Pass, false, 2},
		"no run":                      {runs{theirs: bps(100)}, NotRun, false, 0},
		"a figure is missing":         {runs{ours: bps(math.NaN(), math.NaN(), math.NaN()), theirs: bps(100, 100, 100)}, Fail, true, 2},
	} {
		got := bounded().judge(test.runs, "")
		if got.Verdict != test.verdict || got.Sure != test.sure || len(got.Claims) != test.claims {
			t.Errorf("%s: %+v, want %s, %v", name, got, test.verdict, test.sure)
		}
	}
	if got := bounded().judge(nil, "haul is not there"); got.Reason != "haul is not there" {
		t.Errorf("the reason is %q", got.Reason)
	}
	cut := bps(110, 111, 112)
	cut[1].Broken = "haul: connection reset"
	if got := bounded().judge(runs{ours: cut}, ""); got.Verdict != Fail || !got.Sure || got.Reason == "" {
		t.Errorf("a broken connection: %+v", got)
	}
}

// The interval of a median of five is their range, and that of a ratio reaches from the
// worst to the best pair of medians.
func TestIntervals(t *testing.T) {
	r := runs{ours: bps(1, 2, 3, 4, 5), theirs: bps(10, 10, 20, 10, 10)}
	roles := []role{ours, theirs}
	drawn := resample(roles, r, 5)
	p := part{unit: ratio, value: median(ours, goodput(0)), least: constant(0)}
	got := p.judge(r, drawn)
	if got.Value != 3 || got.Low != 1 || got.High != 5 || !got.Sure {
		t.Errorf("%+v, want 3 (1 to 5)", got)
	}
	if again := p.judge(r, resample(roles, r, 5)); again != got {
		t.Errorf("%+v at first, %+v again", got, again)
	}
	if resample(roles, r, 2) != nil {
		t.Error("two runs are drawn again")
	}
	one := part{unit: ratio, value: times(1, median(theirs, goodput(0)))}.judge(r, drawn)
	if one.Low != 10 || one.Value != 10 {
		t.Errorf("%+v", one)
	}
}

// Harm is held against what another flow of the others' kind does.
func TestHarmCells(t *testing.T) {
	cells := haul().harmOf("cubic", meetings(0)[:1])
	judge := func(ours, theirs float64) CellResult {
		return cells[0].judge(runs{
			beside:      {twoFlows(ours, theirs)},
			another:     {twoFlows(10, 10)},
			othersAlone: {{Outcome: congestion.Outcome{Groups: []congestion.GroupOutcome{{SteadyBps: []float64{20}}}}}},
		}, "")
	}
	for name, test := range map[string]struct {
		ours, theirs float64
		harm, share  bool
	}{
		"as another":     {10, 10, true, true},
		"takes more":     {12, 8, false, true},
		"takes little":   {4, 16, true, false},
		"within a tenth": {10.5, 9.1, true, true},
	} {
		got := judge(test.ours, test.theirs)
		if got.Claims[0].OK != test.harm || got.Claims[1].OK != test.share {
			t.Errorf("%s: %+v", name, got.Claims)
		}
	}
	// Another CUBIC gets a tenth of the path's 20 Mb/s, and a flow with 0.7 of an equal share
	// costs more than that one.
	limit := meetings(0)[0].path.LimitBps()
	little := runs{
		beside:      {twoFlows(0.35*limit, 0.65*limit)},
		another:     {twoFlows(0.1*limit, 0.9*limit)},
		othersAlone: {{Outcome: congestion.Outcome{Groups: []congestion.GroupOutcome{{SteadyBps: []float64{0.99 * limit}}}}}},
	}
	if got := cells[0].judge(little, ""); got.Verdict != Fail || !got.Excluded || got.mark() != "FAIL ~ †" {
		t.Errorf("bounds that exclude each other: %q, %+v", got.mark(), got)
	}
	little[another] = []measured{twoFlows(0.4*limit, 0.6*limit)}
	if got := cells[0].judge(little, ""); got.Excluded {
		t.Errorf("bounds that another flow holds: %+v", got)
	}
	little[othersAlone][0].Groups[0].SteadyBps[0] = 0.6 * limit // which leaves room for the share
	little[another] = []measured{twoFlows(0.1*limit, 0.6*limit)}
	little[beside] = []measured{twoFlows(0.3*limit, 0.5*limit)}
	if got := cells[0].judge(little, ""); got.Verdict != Fail || got.Excluded {
		t.Errorf("a path with room: %+v", got)
	}
	if got := harmBound(0.5); math.Abs(got-0.55) > 1e-9 {
		t.Errorf("bound %v", got)
	}
	if got := harmBound(-0.1); math.Abs(got+0.09) > 1e-9 {
		t.Errorf("bound %v", got)
	}
}

func TestCompletionCountsWhatDidNotEnd(t *testing.T) {
	m := measured{}
	m.Groups = []congestion.GroupOutcome{{}, {Seconds: []congestion.Value{1, congestion.None, 2}}}
	if got := completion(1, 0.5)(m); got != 2 {
		t.Errorf("the median is %v", got)
	}
	if got := completion(1, 0.9)(m); !math.IsInf(got, 1) {
		t.Errorf("p90 is %v", got)
	}
}

func TestCPU(t *testing.T) {
	before := parseCPU("cpu  100 0 100 700 50 0 10 40 0 0")
	after := parseCPU("cpu  150 0 150 750 50 0 10 40 7 0")
	if got := after.busySince(before); math.Abs(got-100.0/150) > 1e-9 {
		t.Errorf("busy %v", got)
	}
	for _, line := range []string{"", "cpu", "cpu x y"} {
		if got := parseCPU(line); got != (cpuTimes{}) {
			t.Errorf("%q: %+v", line, got)
		}
	}
	if got := before.busySince(after); got != 0 {
		t.Errorf("busy %v before", got)
	}
}

// The document of stored results, as Markdown.
func TestDocument(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)
	from := Provenance{}
	for i, busy := range []float64{0.2, 0.4, 0.9} {
		from.add(record{Kernel: "6.12.48+deb13-cloud-amd64", At: at.Add(time.Duration(i) * time.Hour), Parallel: i + 1, MachineBusy: busy, LateP99Ms: congestion.Value(8 * i), Measured: measured{}}, maxLateMs)
	}
	c := bounded()
	fails := bounded()
	fails.name = "two"
	later := bounded()
	later.name = "three"
	broken := bps(110, 111, 112)
	broken[0].Broken = "haul: reset | by peer"
	cut := bounded()
	cut.name = "four"
	r := Result{
		Algorithm: "haul", Rivals: []string{"cubic", "bbr3"}, Lacks: []string{"bbr3 is not a congestion control of this kernel"}, Runs: from, Notes: "Measured at night.",
		Families: []FamilyResult{
			{Name: "tiny", Title: "Tiny cells", Items: []string{"5.1.2", "6.1"}, about: "What is measured.", Cells: []CellResult{
				c.judge(runs{ours: bps(110, 111, 112), theirs: bps(100, 100, 100)}, ""),
				fails.judge(runs{ours: bps(90, 120, 80)}, ""),
				later.judge(nil, ""),
				cut.judge(runs{ours: broken}, ""),
			}},
			{Name: "other", Title: "Other cells", Items: []string{"7.1"}, about: "Nothing yet.", Cells: []CellResult{later.judge(nil, "bbr3 is not there")}},
		},
	}
	golden(t, "document.md", r.document())
	var text bytes.Buffer
	r.Document = "dossier.md"
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	golden(t, "result.txt", text.Bytes())
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs from:\n%s", name, got)
	}
}

func TestUnits(t *testing.T) {
	for want, got := range map[string]string{
		"12.3 %": percent.write(0.1234), "12 ms": ms.write(12.3), "1.50 s": seconds.write(1.5), "2.50 Mb/s": mbps.write(2.5e6),
		"0.20 s/GB": cpuPerGB.write(0.2), "7": countUnit.write(7), "0.33": ratio.write(1.0 / 3), "none": ms.write(math.Inf(1)),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	p := PartResult{Value: 0.5, Low: 0.4, High: 0.6, Least: 0.3, Most: congestion.None, OK: true, unit: percent}
	if got := p.text(); got != "50.0 % (40.0 to 60.0 %) ≥ 30.0 %" {
		t.Errorf("%q", got)
	}
}
