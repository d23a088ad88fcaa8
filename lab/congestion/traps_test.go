package congestion

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"longhaul/test/nettest"
)

func trapNamed(t *testing.T, name string) Trap {
	t.Helper()
	traps, err := chooseTraps([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	return traps[0]
}

func TestTrapsAreValid(t *testing.T) {
	for _, trap := range Traps() {
		p := trap.pathOf(LossyLFN())
		if err := p.Check(); err != nil {
			t.Errorf("%s: %v", trap.Name, err)
		}
		if trap.About == "" || trap.lasts == 0 || len(trap.figures) == 0 || (trap.change != nil) != (trap.changeAt > 0) {
			t.Errorf("%s is incomplete", trap.Name)
		}
		if trap.change != nil {
			changed := p
			trap.change(&changed)
			ab, ba := p.Directions()
			after, afterBack := changed.Directions()
			if changed.RTT <= p.RTT || ab.QueueLimitBytes(ba.Delay) != after.QueueLimitBytes(afterBack.Delay) {
				t.Errorf("%s becomes %v from %v: want a longer round trip and the queue's bytes", trap.Name, changed, p)
			}
		}
	}
	if err := CheckTraps(TrapOptions{Cases: []string{"pit"}}); err == nil || !strings.Contains(err.Error(), "choose from longer-route, ") {
		t.Errorf("got %v", err)
	}
}

// A flow whose delivery is a share of the limit until a time, another one then.
func (t Trap) alone(share func(s float64) float64, queueMs func(s float64) float64) trapRun {
	p := t.pathOf(LossyLFN())
	bytes := 0.0
	var course []float64
	for at := sampleEvery; at <= t.lasts; at += sampleEvery {
		bytes += share(at.Seconds()) * p.LimitBps() / 8 * sampleEvery.Seconds()
		course = append(course, bytes)
	}
	by := func(s float64) float64 { return course[min(int(math.Round(s/sampleEvery.Seconds())), len(course))-1] }
	r := trapRun{path: p, flow: flowOf(t.lasts, 0, by, by), loss: lossOf(p, nil)}
	for at := sampleEvery; at <= t.lasts; at += sampleEvery {
		r.queue.at, r.queue.value = append(r.queue.at, at), append(r.queue.value, queueMs(at.Seconds()))
	}
	return r
}

// falls is a share that is 1 until a time and another one from then on.
func falls(at, to float64) func(float64) float64 {
	return func(s float64) float64 {
		if s <= at {
			return 1
		}
		return to
	}
}

func TestTrapFiguresOfOneFlow(t *testing.T) {
	none := func(float64) float64 { return 0 }
	for _, test := range []struct {
		trap    string
		share   func(float64) float64
		queueMs func(float64) float64
		want    []float64
		ok      []bool
	}{
		{"longer-route", falls(100, 0), none, []float64{1, 1}, []bool{true, true}},
		{"longer-route", falls(20, 0.05), none, []float64{0.05, 0.05}, []bool{false, false}},
		{"longer-route", falls(20, 0.85), none, []float64{0.85, 0.85}, []bool{true, false}},
		{"longer-route", falls(35, 0.5), none, []float64{1, 0.5}, []bool{true, false}},
		// What it delivers before 5 s does not count.
		{"longer-route", func(s float64) float64 { return 1 - falls(25, 0)(s) }, none, []float64{1, 1}, []bool{true, true}},
		{"detour", func(s float64) float64 { return 1 - falls(30, 0)(s) }, none, []float64{0.5, 1}, []bool{false, true}},
		{"longer-deep", falls(100, 0), func(s float64) float64 { return 300 * falls(50, 0.08)(s) }, []float64{24, 1}, []bool{true, true}},
		{"longer-deep", falls(100, 0), func(s float64) float64 { return 200 * (1 - falls(78, 0)(s)) }, []float64{200, 1}, []bool{false, true}},
		{"slow", falls(100, 0), none, []float64{1}, []bool{true}},
		{"slow", falls(6, 0.13), none, []float64{0.217}, []bool{false}},
		{"policer-1mb", falls(100, 0), none, []float64{1}, []bool{true}},
	} {
		trap := trapNamed(t, test.trap)
		a := trap.judge([]trapRun{trap.alone(test.share, test.queueMs)}, nil)
		for i, f := range a.Figures {
			near(t, test.trap+", "+f.Name, float64(f.Median), test.want[i], 0.01*max(1, test.want[i]))
			if f.OK != test.ok[i] {
				t.Errorf("%s, %s: %v is judged %v with a bound of %v", test.trap, f.Name, f.Median, f.OK, f.Bound)
			}
		}
		if a.OK == slices.Contains(test.ok, false) {
			t.Errorf("%s is judged %v, its figures %v", test.trap, a.OK, test.ok)
		}
	}
}

// The bound of harm follows from what another of the others' kind does.
func TestTrapHarm(t *testing.T) {
	trap := trapNamed(t, "beside-cubic")
	run := func(theirs float64) trapRun {
		return trapRun{solo: 100, meeting: meetingRun{theirs: []float64{theirs}}}
	}
	peer := []trapRun{run(80), run(78), run(10)} // harm 0.22: at most 0.292
	for theirs, ok := range map[float64]bool{72: true, 70: false, 0.73: false, 100: true} {
		a := trap.judge([]trapRun{run(0), run(theirs), run(100)}, peer)
		f := a.Figures[0]
		near(t, "the bound", float64(f.Bound), 0.292, 1e-9)
		near(t, "the harm", float64(f.Median), 1-theirs/100, 1e-9)
		if a.OK != ok || f.Min != 0 || f.Max != 1 || len(f.Runs) != 3 {
			t.Errorf("harm of %v is judged %+v, want %v", f.Median, a, ok)
		}
	}
	r := run(100)
	r.broken = "timed out"
	if a := trap.judge([]trapRun{run(100), r}, peer); a.OK || a.Broken == "" {
		t.Errorf("a broken connection is judged %+v", a)
	}
}

func TestTrapSharedSending(t *testing.T) {
	trap := trapNamed(t, "four-flows")
	a := trap.judge([]trapRun{{meeting: meetingRun{oursExcess: []float64{1, 1.2, 1, 1}, allExcess: 1.05}}}, nil)
	if a.OK || !a.Figures[0].OK || a.Figures[1].OK || a.Figures[1].Median != 1.2 {
		t.Errorf("judged %+v: want all within the bound, and one flow above it", a.Figures)
	}
}

// Real flows go through shortened traps; what comes of them is measured by
// `go run ./bench/congestion --traps`.
func TestTrapRuns(t *testing.T) {
	t.Parallel()
	nettest.RequireSandbox(t)
	for _, name := range []string{"longer-route", "detour", "beside-cubic", "four-flows"} {
		t.Run(name, func(t *testing.T) {
			trap := trapNamed(t, name)
			trap.lasts, trap.changeAt, trap.changeTill = 400*ms, trap.changeAt/200, 300*ms
			r, err := trap.run(t.Context(), LossyLFN(), "reno", map[string]float64{}, options(0, "reno"), 1, 1)
			if err != nil {
				t.Fatal(err)
			}
			if r.broken != "" || len(r.delivery) != int(trap.lasts/sampleEvery) || (r.solo > 0) != (name == "beside-cubic") {
				t.Errorf("the run is %+v", r)
			}
		})
	}
}

func TestTrapsTableAndPlot(t *testing.T) {
	r := TrapsResult{Experiment: "lossy-lfn-traps", repeat: 5}
	for _, trap := range Traps() {
		p := trap.pathOf(LossyLFN())
		c := TrapResult{Name: trap.Name, About: trap.About, Path: p.String(), Seconds: trap.lasts.Seconds(), Peer: trap.peerOf("bbr")}
		run := trapRun{path: p, solo: 96e6, delivery: slices.Repeat([]float64{1e6}, 600),
			meeting: meetingRun{theirs: []float64{0.73e6}, oursExcess: []float64{1.98, 1.6}, allExcess: 1.77}}
		if trap.meeting == nil {
			run = trap.alone(falls(1, 0.0512), func(float64) float64 { return 193.4 })
			run.delivery = slices.Repeat([]float64{1e6}, 600)
		}
		for _, name := range []string{"haul", "illinois"} {
			a := trap.judge([]trapRun{run}, []trapRun{run})
			a.Name = name
			if name == "illinois" && trap.Name == "slow" {
				a.Broken = "connection timed out"
			}
			c.Algorithms = append(c.Algorithms, a)
		}
		r.Cases = append(r.Cases, c)
	}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "traps.table", b.String())
	f := r.Plot()
	if len(f.Panels) != len(Traps()) || len(f.Panels[0].Series) != 3 {
		t.Errorf("%d panels", len(f.Panels))
	}
	if err := f.WriteCSV(new(bytes.Buffer)); err != nil {
		t.Error(err)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

func TestCurveQuantile(t *testing.T) {
	c := curve{}
	for i := range 100 {
		c.at, c.value = append(c.at, time.Duration(i)*time.Second), append(c.value, float64(i))
	}
	near(t, "the 95th percentile", c.quantile(0.95, 20*time.Second, 39*time.Second), 38, 0)
	if !math.IsNaN(c.quantile(0.5, 200*time.Second, 300*time.Second)) {
		t.Error("no samples have a quantile")
	}
}
