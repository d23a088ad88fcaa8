package congestion

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"longhaul/lab"
	"longhaul/lab/link"
	"longhaul/lab/progress"
	"longhaul/test/nettest"
)

// patience bounds flows that end by themselves.
const patience = 2 * time.Minute

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	nettest.AtOnce(8) // most of them wait
	nettest.MainWithoutLeaks(m)
}

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

// The figures of lossless runs fit each other and the link's hard bounds: its rate,
// its round trip, and the room of its queue.
func TestSingle(t *testing.T) {
	t.Parallel()
	nettest.RequireSandbox(t)
	p := quick()
	var reports []progress.Report
	o := options(time.Second, "cubic", "reno")
	o.Repeat = 2
	o.Report = func(r progress.Report) { reports = append(reports, r) }
	result, err := Single(t.Context(), p, o)
	if err != nil {
		t.Fatal(err)
	}
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
		if c.QueueP50Ms > c.QueueP95Ms || c.QueueP95Ms > 21 {
			t.Errorf("%s: queue delay p50 %v, p95 %v ms", c.Name, c.QueueP50Ms, c.QueueP95Ms)
		}
		if c.GoodputMinBps > 0 && (!c.SentPerDelivered.Some() || !c.SenderCPUPerGB.Some() || !c.LabCPUPerGB.Some()) {
			t.Errorf("%s: sent ÷ delivered %v, CPU %v and %v s/GB", c.Name, c.SentPerDelivered, c.SenderCPUPerGB, c.LabCPUPerGB)
		}
		for _, r := range c.Runs {
			mean := 0.0
			for _, bps := range r.GoodputSeriesBps {
				mean += bps / float64(len(r.GoodputSeriesBps))
			}
			near(t, "the mean of the series", mean, r.GoodputBps, 0.05*r.GoodputBps)
			for _, series := range [][]float64{r.GoodputSeriesBps, r.DeliverySeriesBps, r.SentSeriesBps, r.QueueSeriesMs, r.RTTSeriesMs, r.CwndSeries} {
				if len(series) != 10 {
					t.Errorf("a series of %d points, want 10", len(series))
				}
			}
			if rtt := r.RTTSeriesMs[9]; rtt < 20 && r.GoodputBps > 0 {
				t.Errorf("at the end the round trip is %v ms, the path's is 20", rtt)
			}
		}
	}
	if last := reports[len(reports)-1]; last.Done != 4 || last.Of != 4 || !strings.HasPrefix(last.Text, "reno 4/4 ") {
		t.Errorf("the last report was %+v", last)
	}
	if _, err := json.Marshal(result); err != nil {
		t.Error(err)
	}
}

// What the link loses is sent again: the figures show at least as much as the link
// counts. Timeouts that come too early add to that on a busy machine.
func TestLossIsSeen(t *testing.T) {
	t.Parallel()
	nettest.RequireSandbox(t)
	p := quick()
	p.Loss.Probability = 0.1
	n, err := build(p, lab.TwoSites(p.Conditions))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	spec := n.flow("reno")
	spec.bytes = 200e3
	flows, err := runFlows(t.Context(), []flowSpec{spec}, patience, nil)
	if err != nil || flows[0].err != nil || flows[0].finished == 0 {
		t.Fatalf("the flow did not arrive: %v, %+v", err, flows)
	}
	r := p.figures(flows[0], flows[0].finished)
	c := n.Link(lab.WAN).Counters(link.AToB)
	if c.Lost == 0 || !r.RetransmitRatio.Some() {
		t.Fatalf("%d packets lost, %v sent again", c.Lost, r.RetransmitRatio)
	}
	// Short segments are lost like full ones, and weigh less.
	if lost := float64(c.Lost) / float64(c.PacketsIn); float64(r.RetransmitRatio) < 0.7*lost {
		t.Errorf("%.3f of the packets were lost, and %.3f of the bytes sent again", lost, float64(r.RetransmitRatio))
	}
	if r.GoodputBps > p.LimitBps() {
		t.Errorf("goodput %.3g above the limit of %.3g", r.GoodputBps, p.LimitBps())
	}
}

func TestUnknownAlgorithmIsRefused(t *testing.T) {
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
	t.Parallel()
	nettest.RequireSandbox(t)
	n, err := build(quick(), lab.TwoSites(quick().Conditions))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	broken, whole := n.flow("reno"), n.flow("reno")
	broken.bytes, whole.bytes = 1<<40, 100e3
	flows, err := runFlows(t.Context(), []flowSpec{broken, whole}, patience, func(_ time.Duration, all []*running) {
		r := all[0]
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case r.err != nil:
			r.done.Store(1) // and with the other the run is over
		case r.received.Load() > 0:
			_ = r.conn.CloseWrite()
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
	t.Parallel()
	nettest.RequireSandbox(t)
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
		r := Result{Path: p, Seconds: o.Time.Seconds()}
		for i, algorithm := range []string{"cubic", "illinois", "haul"} {
			runs := []Run{run(float64(1+40*i)*1e6, None), run(float64(1+43*i)*1e6, 1.5)}
			r.Cases = append(r.Cases, summarize(algorithm, p.LimitBps(), runs[:repeat]))
		}
		var b strings.Builder
		if err := r.WriteText(&b); err != nil {
			t.Fatal(err)
		}
		golden(t, name, b.String())
	}
}
