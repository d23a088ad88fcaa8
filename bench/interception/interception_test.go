//go:build linux

package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

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
	r, err := Run(t.Context(), Options{Program: nettest.Longhaul(t), Cases: cases, Repeat: 1, Quick: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Cases) != 4 {
		t.Fatalf("%d cases", len(r.Cases))
	}
	if len(cases) > 4 {
		for _, way := range r.Connect.Ways {
			// Time with a busy machine is no matter of a test: only that the round trip is there.
			if waited := way.MedianMS.Median >= r.Connect.RTTMilliseconds; waited == (way.Way == wayIntercept) {
				t.Errorf("%s: %+v", way.Way, way)
			}
		}
	}
	for _, c := range r.Cases {
		if want := map[bool]int{true: 4, false: 5}[strings.HasPrefix(c.Name, "relay")]; len(c.Figures) != want {
			t.Errorf("%s has %d figures", c.Name, len(c.Figures))
		}
		for _, f := range c.Figures {
			if f.Cost.Median <= 0 {
				t.Errorf("%s, %s: %+v", c.Name, f.Way, f)
			}
		}
	}
}

// What a packet costs that the router drops is not the router's, and bounds hold for ways
// that intercept.
func TestFigures(t *testing.T) {
	trial := trial{ways: []string{wayDropped, wayPlain, wayControl, wayIntercept}, zero: wayDropped, reference: wayPlain, atMost: 1.02}
	runs := make([][]spent, 4)
	for i, ms := range [][]time.Duration{{10, 10, 10}, {20, 20, 30}, {20, 20, 30}, {21, 20, 31}} {
		for _, own := range ms {
			runs[i] = append(runs[i], spent{own: own * time.Millisecond, machine: 2 * own * time.Millisecond, amount: 2})
		}
	}
	c := Case{Name: "x", About: "y", Unit: "s", Figures: trial.figures(runs)}
	f := c.Figures[3]
	if f.Cost.Median != 0.0105 || f.MachineCost.Median != 0.021 || f.Ratio.Median != 1.05 || f.Ratio.Min != 1 || f.Ratio.Max != 1.1 || *f.OK {
		t.Errorf("%+v, ratio %+v", f, f.Ratio)
	}
	if control := c.Figures[2]; control.Ratio.Median != 1 || control.OK != nil || c.Figures[0].Ratio != nil || c.Figures[1].Ratio != nil {
		t.Errorf("%+v", c.Figures)
	}
	r := Result{Repeat: 3, Cases: []Case{c}}
	if r.Judge() == nil {
		t.Error("a bound that is not kept is no error")
	}
	var text bytes.Buffer
	nettest.Must(t, r.WriteText(&text))
	if !strings.Contains(text.String(), "NO intercept 0.011") {
		t.Error(text.String())
	}
	connect := Connect{RTTMilliseconds: 20, Connects: 200}
	connect.judge([]string{wayPlain, wayMirror}, [][]float64{{20, 20, 21}, {22, 24, 25}}, [][]float64{{30, 31, 32}, {33, 34, 35}})
	r = Result{Repeat: 3, Connect: &connect}
	if m := connect.Ways[1]; *m.Ratio != 1.2 || *m.OK || m.P99MS.Median != 34 || r.Judge() == nil {
		t.Errorf("%+v", m)
	}
	nettest.Must(t, r.WriteText(&text))
	if !strings.Contains(text.String(), "NO mirror 24.00") {
		t.Error(text.String())
	}
	for line := range strings.Lines(text.String()) {
		if len([]rune(line)) > width+1 {
			t.Errorf("wide: %q", line)
		}
	}
}
