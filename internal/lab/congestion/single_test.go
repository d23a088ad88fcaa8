package congestion

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"longhaul/internal/lab"
	"longhaul/internal/lab/link"
	"longhaul/internal/nettest"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) { nettest.Main(m) }

// quick is a path on which a test does not wait.
func quick() Path {
	p := LossyLFN()
	p.RTT, p.RateBps, p.Loss = 20*ms, 20e6, link.Loss{}
	return p
}

func options(during time.Duration, algorithms ...string) Options {
	return Options{Algorithms: algorithms, Time: during, Repeat: 1}
}

func TestBuffersHoldTheWindow(t *testing.T) {
	p := LossyLFN()
	near(t, "the bandwidth-delay product", p.BDPBytes(), 3.75e6, 1)
	near(t, "the buffer", float64(p.bufferBytes()), 90e6, 1)
	p.RTT, p.RateBps = time.Millisecond, 1e6
	near(t, "the least buffer", float64(p.bufferBytes()), minBuffer, 0)
	p.RTT, p.RateBps = time.Hour, 1e12
	near(t, "the largest buffer", float64(p.bufferBytes()), math.MaxInt32/2, 1)
}

// One lossless run fills the link; the figures fit each other, and what the
// link carried.
func TestSingle(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	p := quick()
	var progress []Progress
	o := options(3*time.Second, "cubic", "reno")
	o.Repeat = 2
	o.Progress = func(at Progress) { progress = append(progress, at) }
	var result Result
	nettest.Settles(t, func() (err error) { // the machine may be busy for a moment
		progress = nil
		if result, err = Single(t.Context(), p, o); err != nil {
			t.Fatal(err)
		}
		return fills(result)
	})
	if len(result.Cases) != 2 || result.Cases[0].Name != "cubic" || len(result.Cases[1].Runs) != 2 {
		t.Fatalf("cases %+v", result.Cases)
	}
	for _, c := range result.Cases {
		if c.LimitBps != p.LimitBps() {
			t.Errorf("%s: a limit of %.3g bit/s, want %.3g", c.Name, c.LimitBps, p.LimitBps())
		}
		if c.GoodputBps > c.LimitBps || c.GoodputMinBps > c.GoodputBps || c.GoodputMaxBps < c.GoodputBps {
			t.Errorf("%s: goodput %.3g, from %.3g to %.3g", c.Name, c.GoodputBps, c.GoodputMinBps, c.GoodputMaxBps)
		}
		if c.SecondsTo90.Some() && c.SecondsTo90 < c.SecondsTo50 {
			t.Errorf("%s: 50 %% after %v s, 90 %% after %v", c.Name, c.SecondsTo50, c.SecondsTo90)
		}
		// The queue holds 1 BDP, 20 ms.
		if c.QueueP95Ms <= 0 || c.QueueP50Ms > c.QueueP95Ms {
			t.Errorf("%s: queue delay p50 %v, p95 %v ms", c.Name, c.QueueP50Ms, c.QueueP95Ms)
		}
		if c.SentPerDelivered < 0.99 || c.SentPerDelivered > 1.2 || !c.SenderCPUPerGB.Some() || !c.LabCPUPerGB.Some() {
			t.Errorf("%s: sent ÷ delivered %v, CPU %v and %v s/GB", c.Name, c.SentPerDelivered, c.SenderCPUPerGB, c.LabCPUPerGB)
		}
		for _, r := range c.Runs {
			mean := 0.0
			for _, bps := range r.GoodputSeriesBps {
				mean += bps / float64(len(r.GoodputSeriesBps))
			}
			near(t, "the mean of the series", mean, r.GoodputBps, 0.05*r.GoodputBps)
			for _, series := range [][]float64{r.GoodputSeriesBps, r.DeliverySeriesBps, r.SentSeriesBps, r.QueueSeriesMs, r.RTTSeriesMs, r.CwndSeries} {
				if len(series) != 30 {
					t.Errorf("a series of %d points, want 30", len(series))
				}
			}
			if rtt := r.RTTSeriesMs[29]; rtt < 20 || r.CwndSeries[29] < 10 {
				t.Errorf("at the end the round trip is %v ms and the window %v packets", rtt, r.CwndSeries[29])
			}
		}
	}
	if last := progress[len(progress)-1]; last.Run != 4 || last.Runs != 4 || last.Case != "reno" || last.Total != 3*time.Second {
		t.Errorf("the last progress was %+v", last)
	}
	if _, err := json.Marshal(result); err != nil {
		t.Error(err)
	}
	if err := result.Plot().SVG(new(bytes.Buffer)); err != nil {
		t.Error(err)
	}
}

// fills returns an error unless every case fills the link, soon, and without
// more queue than there is room for.
func fills(r Result) error {
	for _, c := range r.Cases {
		if c.SteadyBps < 0.8*c.LimitBps || c.SteadyBps > 1.05*c.LimitBps || !c.SecondsTo90.Some() || c.SecondsTo90 > 2 || c.QueueP95Ms > 25 {
			return fmt.Errorf("%s does not fill the link: %+v", c.Name, c)
		}
		for _, run := range c.Runs {
			// The smoothed round trip is the path's, with the queue on top.
			if rtt := run.RTTSeriesMs[len(run.RTTSeriesMs)-1]; rtt > 60 {
				return fmt.Errorf("%s: at the end the round trip is %v ms", c.Name, rtt)
			}
		}
	}
	return nil
}

// A seed gives each algorithm the same losses, and 10 % are seen as 10 %.
func TestSingleWithLoss(t *testing.T) {
	nettest.RequireSandbox(t)
	p := quick()
	p.Loss.Probability = 0.1
	result, err := Single(t.Context(), p, options(3*time.Second, "reno"))
	if err != nil {
		t.Fatal(err)
	}
	c := result.Cases[0]
	if c.SteadyBps > 0.5*c.LimitBps {
		t.Errorf("reno reaches %.0f %% of the limit through 10 %% loss", 100*c.SteadyBps/c.LimitBps)
	}
	near(t, "sent ÷ delivered", float64(c.SentPerDelivered), 1/0.9, 0.06)
	near(t, "the share sent again", float64(c.RetransmitRatio), 0.1, 0.05)
	if c.SecondsTo90.Some() {
		t.Errorf("reno reached 90 %% of the limit after %v s", c.SecondsTo90)
	}
}

func TestChoose(t *testing.T) {
	all, err := Choose(nil)
	if err != nil || len(all) == 0 {
		t.Fatalf("%v, %v", all, err)
	}
	if got, err := Choose([]string{"reno"}); err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	for name, names := range map[string][]string{
		`no congestion control "nosuch": it has `: {"reno", "nosuch"},
		"reno is named twice":                     {"reno", "reno"},
	} {
		if _, err := Choose(names); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v: %v", names, err)
		}
	}
	if _, err := Single(t.Context(), quick(), options(time.Second, "nosuch")); err == nil {
		t.Error("an algorithm that there is not was run")
	}
}

func TestPathCheck(t *testing.T) {
	if err := LossyLFN().Check(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Path){
		"no bound on its rate":  func(p *Path) { p.RateBps = 0 },
		"no delay":              func(p *Path) { p.RTT = 0 },
		"carries nothing":       func(p *Path) { p.WindowBDP = math.NaN() },
		"Jitter is 1s":          func(p *Path) { p.Jitter = time.Second },
		"Loss.Probability is 2": func(p *Path) { p.Loss.Probability = 2 },
	} {
		p := LossyLFN()
		change(&p)
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// A connection that is broken off is an error, not a slow flow.
func TestFlowReportsABrokenConnection(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	n, err := build(quick(), lab.TwoSites(quick().Conditions))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	spec := n.flow("reno")
	flows, err := runFlows(t.Context(), []flowSpec{spec, n.flow("reno")}, 2*time.Second, func(at time.Duration, all []*running) {
		if all[0].received.Load() > 0 {
			all[0].mu.Lock()
			defer all[0].mu.Unlock()
			_ = all[0].conn.CloseWrite()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if flows[0].err == nil || flows[1].err != nil {
		t.Errorf("errors %v and %v, want one of the first only", flows[0].err, flows[1].err)
	}
}

func TestFlowsEndWithTheirContext(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	n, err := build(quick(), lab.TwoSites(quick().Conditions))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	why := errors.New("the user's wish")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	spec := n.flow("reno")
	spec.bytes = 100 << 20
	late := n.flow("reno")
	late.start = time.Hour
	_, err = runFlows(ctx, []flowSpec{spec, late}, time.Hour, func(_ time.Duration, all []*running) {
		if all[0].received.Load() > 0 {
			cancel(why)
		}
	})
	if !errors.Is(err, why) {
		t.Errorf("got %v, want the reason of the cancellation", err)
	}
}

// golden compares a text with a file of testdata.
func golden(t *testing.T, file, got string) {
	t.Helper()
	file = "testdata/" + file
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is no longer what is written:\n%s", file, got)
	}
	for line := range strings.Lines(got) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

func TestTable(t *testing.T) {
	p := LossyLFN()
	p.LossPlace = link.LossAfter
	p.LossBA.Probability, p.LossBurstPackets, p.Jitter = 0.1, 8, 50*ms
	o := Options{Time: time.Minute, Repeat: 2}
	run := func(bps float64, reached Value) Run {
		return Run{GoodputBps: bps, SteadyBps: 1.01 * bps, SecondsTo50: reached, SecondsTo90: reached + 1.2, QueueP50Ms: 12, QueueP95Ms: 299.7,
			SentPerDelivered: 1.111, RetransmitRatio: 0.1, Timeouts: 123, SenderCPUPerGB: 12.3, LabCPUPerGB: None}
	}
	for name, repeat := range map[string]int{"single-1.table": 1, "single-2.table": 2} {
		r := Result{Conditions: p.conditions(o), path: p}
		for i, algorithm := range []string{"cubic", "illinois", "haul"} {
			runs := []Run{run(float64(1+40*i)*1e6, None), run(float64(1+43*i)*1e6, 1.5)}
			r.Cases = append(r.Cases, summarize(algorithm, p.LimitBps(), runs[:repeat]))
		}
		var b strings.Builder
		if err := r.WriteTable(&b); err != nil {
			t.Fatal(err)
		}
		golden(t, name, b.String())
	}
}
