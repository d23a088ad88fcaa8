//go:build linux

package main

import (
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"longhaul/bench/kit"
	"longhaul/lab/sandbox"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// TestRun runs a case of each kind. Every packet of a stream must take its way.
func TestRun(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	cases := []string{"relay", "relay-small", "forward-udp4-64", "forward-tcp6-64", "connect"}
	if os.Geteuid() != 0 || sandbox.UserNamespace() { // refuse: mirror loads BPF programs
		cases = cases[:4]
	}
	r, err := suite().Run(t.Context(), kit.Options{Program: nettest.Longhaul(t), Cases: cases, Through: suite().Ways(), Repeat: 1, Quick: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Cases {
		figures := map[string]float64{}
		for _, f := range c.Figures {
			figures[f.Way+" "+f.Name] = f.Median
			if f.Median <= 0 && !strings.Contains(f.Name, "ratio") {
				t.Errorf("%s, %s: %s %v", c.Name, f.Way, f.Name, f.Median)
			}
		}
		if len(c.Errors) > 0 || len(figures) == 0 {
			t.Errorf("%s: %v, %d figures", c.Name, c.Errors, len(figures))
		}
		// Time with a busy machine is no matter of a test: only that the round trip is there.
		if wait := figures["intercept median"]; c.Name == "connect" && (wait >= 20 || figures["plain median"] < 20 || figures["mirror median"] < 20) {
			t.Errorf("%+v", figures)
		}
	}
}

// What a packet costs that the router drops is not the router's, and bounds hold for ways
// that intercept.
func TestFigures(t *testing.T) {
	trial := trial{ways: []string{wayDropped, wayPlain, wayControl, wayIntercept}, zero: wayDropped, reference: wayPlain, atMost: 1.02}
	sums := map[string]*spent{}
	for i, ms := range []time.Duration{10, 20, 20, 21} {
		sums[trial.ways[i]] = &spent{own: ms * time.Millisecond, machine: 2 * ms * time.Millisecond, amount: 2}
	}
	got := map[string]kit.Measured{}
	trial.figures(sums, func(way string, m kit.Measured) { got[way+" "+m.Name] = m })
	f := got["intercept ratio"]
	if math.Abs(f.Value-1.1) > 1e-9 || f.Bound == nil || got["intercept CPU"].Value != 0.0105 || got["intercept machine"].Value != 0.021 {
		t.Errorf("%+v", got)
	}
	if control := got["control ratio"]; control.Value != 1 || control.Bound != nil || len(got) != 4*2+2*2 {
		t.Errorf("%+v", got)
	}
}
