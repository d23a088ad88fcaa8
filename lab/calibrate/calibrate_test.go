package calibrate_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"longhaul/lab/calibrate"
	"longhaul/lab/link"
	"longhaul/lab/linktest"
	"longhaul/test/nettest"
)

// These tests hold counts. How well the emulator keeps its times and rates is
// measured by `longhaul lab calibrate`, and for more settings by the tests under the
// build tag "timed".

func TestMain(m *testing.M) {
	nettest.AtOnce(8) // most of them wait
	nettest.Main(m)
}

func newPath(t *testing.T, kind linktest.Kind, ab, ba link.Settings, v6 bool) calibrate.Path {
	t.Helper()
	a, b, l := linktest.New(t, kind, 1500, ab, ba)
	p := calibrate.Path{Link: l, A: calibrate.Host{Addr: a.V4, Run: a.Run}, B: calibrate.Host{Addr: b.V4, Run: b.Run}}
	if v6 {
		p.A.Addr, p.B.Addr = a.V6, b.V6
	}
	return p
}

func forEachKind(t *testing.T, f func(t *testing.T, kind linktest.Kind)) {
	for _, kind := range linktest.Kinds {
		t.Run(kind.Name, func(t *testing.T) { f(t, kind) })
	}
}

// forAllKinds is forEachKind at the same time: what is counted depends on no time.
func forAllKinds(t *testing.T, f func(t *testing.T, kind linktest.Kind)) {
	t.Parallel()
	forEachKind(t, func(t *testing.T, kind linktest.Kind) {
		t.Parallel()
		f(t, kind)
	})
}

// Rows of rates are made with the effects that they are about.
func TestRatesForAShortTime(t *testing.T) {
	calibrate.Shorten(t)
	t.Run("rate and policer", rateAndPolicer)
	t.Run("real path", realPath)
	t.Run("TCP", tcpRow)
}

// policed is a path whose policer admits half of what its bottleneck carries.
func policed(rateBps int64) link.Settings {
	return link.Settings{Delay: time.Millisecond, RateBps: 2 * rateBps, Policer: link.Policer{RateBps: rateBps, BurstBytes: 64 << 10}}
}

// tcpPath loses packets, which TCP's row is measured without.
func tcpPath() link.Settings {
	return link.Settings{Delay: 10 * time.Millisecond, RateBps: 100e6, Loss: link.Loss{Probability: 0.1}}
}

// An echo takes both delays at least, and its row says what it took.
func TestIdleRTTIsNeverShorterThanAsked(t *testing.T) {
	forAllKinds(t, func(t *testing.T, kind linktest.Kind) {
		s := link.Settings{Delay: 5 * time.Millisecond, RateBps: 1e9}
		p := newPath(t, kind, s, s, kind.Name == "veth")
		row, err := p.IdleRTT(t.Context())
		nettest.Must(t, err)
		var ms float64
		if _, err := fmt.Sscanf(row.Got, "%f ms", &ms); err != nil || ms < 10 || row.What != "idle RTT" || row.Asked != "10.001 ms" && row.Asked != "10.002 ms" {
			t.Errorf("the row is %+v, want an idle RTT of at least 10 ms: %v", row, err)
		}
	})
}

// The rows of a rate and of a policer say what was asked and what came, and the
// settings that they are measured without come back.
func rateAndPolicer(t *testing.T) {
	forAllKinds(t, func(t *testing.T, kind linktest.Kind) {
		s := policed(10e6)
		s.Loss.Probability, s.Policer.BurstBytes = 0.1, 16<<10
		p := newPath(t, kind, s, link.Settings{}, kind.Name == "veth")
		rate, err := p.Rate(t.Context(), link.AToB)
		nettest.Must(t, err)
		before := p.Link.Counters(link.AToB)
		policer, err := p.Policer(t.Context(), link.AToB)
		nettest.Must(t, err)
		for _, row := range []struct {
			calibrate.Row
			what, asked string
		}{{rate, "rate a-to-b", "20.000 Mb/s"}, {policer, "policer a-to-b", "10.000 Mb/s + 13.1 %"}} {
			if row.What != row.what || row.Asked != row.asked || !strings.Contains(row.Got, " Mb/s (") {
				t.Errorf("the row is %+v, want %s, asked %s, and a rate", row.Row, row.what, row.asked)
			}
		}
		c := p.Link.Counters(link.AToB)
		if c.Policed == before.Policed || c.PacketsIn-before.PacketsIn < 300 {
			t.Errorf("a flood of %d packets above the policer's rate lost none of them to it: %+v", c.PacketsIn-before.PacketsIn, c)
		}
		if got := p.Link.Settings(link.AToB); got != s {
			t.Errorf("the settings were left as %+v, want %+v", got, s)
		}
	})
}

// A seed gives the same losses twice, and as many as the link counts.
func TestLoss(t *testing.T) {
	const packets = 400
	forAllKinds(t, func(t *testing.T, kind linktest.Kind) {
		p := newPath(t, kind, link.Settings{}, link.Settings{}, false)
		for _, loss := range []link.Loss{
			{},
			{Probability: 0.1},
			{Probability: 0.01, ToBad: 0.05, ToGood: 0.2, BadProbability: 0.5},
		} {
			nettest.Must(t, p.Link.Set(link.BToA, link.Settings{Delay: time.Millisecond, Loss: loss, Seed: 42}))
			before := p.Link.Counters(link.BToA)
			lost, pattern, err := p.Loss(t.Context(), link.BToA, packets)
			nettest.Must(t, err)
			for _, row := range []calibrate.Row{lost, pattern} {
				if !row.OK {
					t.Errorf("%s: asked %s, got %s", row.What, row.Asked, row.Got)
				}
			}
			c := p.Link.Counters(link.BToA)
			if want := fmt.Sprintf("%.3f %% of %d", float64(c.Lost-before.Lost)/2/packets*100, packets); lost.Got != want {
				t.Errorf("the row says %s, the link's counters %s", lost.Got, want)
			}
			if n := c.PacketsIn - before.PacketsIn; n != 2*packets {
				t.Errorf("%d packets crossed the link, want those of the measurement alone, %d", n, 2*packets)
			}
		}
	})
}

// real is a path with everything that real ones have beside a wire.
func real(t *testing.T) link.Settings {
	t.Helper()
	trace, err := link.ParseTrace("test", strings.NewReader("time_s,rate_bps,delay_ms\n0,20e6,1\n0.05,10e6,1\n"))
	nettest.Must(t, err)
	return link.Settings{
		Delay: time.Millisecond, Trace: trace, AQM: link.AQM{Algorithm: link.FQCoDel, ECN: true}, MarkAbove: 2 * time.Millisecond,
		ACKThinning: 4, Aggregate: link.Aggregation{Every: 2 * time.Millisecond}, Loss: link.Loss{Probability: 0.1},
		RateLoss: link.RateLoss{FromBps: 10e6, ToBps: 30e6, Share: 0.1}, Policer: link.Policer{RateBps: 10e6, BurstBytes: 16 << 10, PerFlow: true},
	}
}

// Each row of what access networks and managed queues do is made, with the effect that it
// is about, and the settings come back.
func realPath(t *testing.T) {
	forAllKinds(t, func(t *testing.T, kind linktest.Kind) {
		s := real(t)
		p := newPath(t, kind, s, s, kind.Name == "veth")
		for _, test := range []struct {
			what, asked string
			measure     func(context.Context, link.Direction) (calibrate.Row, error)
			effect      func(c link.Counters) uint64 // nil: none that is counted
		}{
			{"trace a-to-b", " Mb/s from ", p.Trace, nil},
			{"policer a-to-b", "10.000 Mb/s + 13.1 % each", p.Policer, func(c link.Counters) uint64 { return c.Policed }},
			{"queue with fq_codel a-to-b", "5ms × 0.50 to 2, ≥ 95 % used", p.Wait, nil},
			{"TCP beside a flood a-to-b", "50 % ± 5 %", p.Isolation, func(c link.Counters) uint64 { return c.PacketsIn }},
			{"marks of TCP with ECN a-to-b", "some, < 1 % of them drops", p.Marks, func(c link.Counters) uint64 { return c.PacketsIn }},
			{"marks above 2ms a-to-b", "50 % ± 5 %", p.MarkAbove, func(c link.Counters) uint64 { return c.Marked }},
			{"ACKs that pass a-to-b", "1 of 3.40 to 4", p.Thinning, func(c link.Counters) uint64 { return c.Thinned }},
			{"time between bursts a-to-b", "2.08 ms ± 0.46 ms", p.Aggregation, nil},
			{"loss at 20.000 Mb/s a-to-b", "5.00 % ± ", p.RateLoss, nil},
		} {
			before := p.Link.Counters(link.AToB)
			row, err := test.measure(t.Context(), link.AToB)
			nettest.Must(t, err)
			if row.What != test.what || !strings.Contains(row.Asked, test.asked) || row.Got == "" {
				t.Errorf("the row is %+v, want %s, asked %s", row, test.what, test.asked)
			}
			if test.effect != nil && test.effect(p.Link.Counters(link.AToB)) == test.effect(before) {
				t.Errorf("%s: no effect: %+v", test.what, p.Link.Counters(link.AToB))
			}
			for _, dir := range []link.Direction{link.AToB, link.BToA} {
				if got := p.Link.Settings(dir); got != s {
					t.Fatalf("%s: the settings were left as %+v, want %+v", test.what, got, s)
				}
			}
		}
	})
}

// TCP's row is made, and the settings that it is measured without come back.
func tcpRow(t *testing.T) {
	forAllKinds(t, func(t *testing.T, kind linktest.Kind) {
		s := tcpPath()
		p := newPath(t, kind, s, s, false)
		row, err := p.TCP(t.Context(), link.AToB, 100*time.Millisecond)
		nettest.Must(t, err)
		if row.What != "TCP goodput a-to-b" || row.Asked != "≥ 97 % of 96.533 Mb/s" || !strings.Contains(row.Got, " % (") {
			t.Errorf("the row is %+v", row)
		}
		if c := p.Link.Counters(link.AToB); c.WriteErrors != 0 {
			t.Errorf("lost beside the settings: %+v", c)
		}
		if got := p.Link.Settings(link.AToB); got != s {
			t.Errorf("the settings were left as %+v, want %+v", got, s)
		}
	})
}
