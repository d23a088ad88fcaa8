package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// A short run of the experiment, whose flows live long enough for a second send.
// `go run ./bench/upgrade` measures the goodput's dips on an idle machine.
func TestNobodyNotices(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	program := nettest.Longhaul(t)
	o := Options{Program: program, Flows: 132, PerSecond: 60, Bulk: 2, Upgrades: 3, Every: time.Second}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", r)
	if r.Refused+r.Reset+r.Wrong > 0 {
		t.Errorf("%d flows refused, %d reset, %d wrong: %s", r.Refused, r.Reset, r.Wrong, r.FirstError)
	}
	if r.Flows == 0 || r.OpenMost == 0 || r.BulkFlows != o.Bulk || len(r.Upgrades) != o.Upgrades {
		t.Fatalf("%d flows, %d of them open at once, %d bulk flows, %d upgrades: each must be above 0", r.Flows, r.OpenMost, r.BulkFlows, len(r.Upgrades))
	}
	for i, relay := range []string{"relay-a", "relay-b", "relay-a"} {
		u := r.Upgrades[i]
		if u.Relay != relay {
			t.Errorf("upgrade %d was of %s, want %s", i+1, u.Relay, relay)
		}
		// The bulk flows stay with the first process of each.
		if i < 2 && u.FlowsLeft < int64(o.Bulk) {
			t.Errorf("upgrade %d left %d flows to the old process, want the %d bulk flows at least", i+1, u.FlowsLeft, o.Bulk)
		}
	}
}

func TestDipOf(t *testing.T) {
	steady := func(n int, bytes int64) []int64 {
		bins := make([]int64, n)
		for i := range bins {
			bins[i] = bytes
		}
		return bins
	}
	for _, tt := range []struct {
		name string
		bins []int64
		want Dip
	}{
		{"none", nil, Dip{}},
		{"steady", steady(30, 100), Dip{}},
		{"nine tenths", steady(30, 90), Dip{0, 0.1, 0.1}},
		{"a bin", append(steady(15, 100), append([]int64{50}, steady(15, 100)...)...), Dip{0.1, 0.5, 0.05}},
		{"two in a row and one apart", []int64{100, 80, 89, 100, 0, 100}, Dip{0.2, 1, 0}},
		{"a second", append(steady(5, 100), append(steady(10, 20), steady(5, 100)...)...), Dip{1, 0.8, 0.8}},
		{"more than usual", steady(30, 300), Dip{}},
	} {
		got := dipOf(tt.bins, 100)
		round := func(d Dip) string {
			return fmt.Sprintf("%.3f %.3f %.3f", d.LongestSeconds, d.DepthShare, d.SecondShare)
		}
		if round(got) != round(tt.want) {
			t.Errorf("%s: got %s, want %s", tt.name, round(got), round(tt.want))
		}
	}
}

func TestMeasure(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * 1e9)) }
	b := &bulk{start: start}
	for i := range 80 {
		n := int64(1e6)
		switch i {
		case 25: // before the first upgrade
			n = 8e5
		case 41, 42, 43: // after the second
			n = 5e5
		}
		b.bins = append(b.bins, n)
	}
	r := Result{Upgrades: make([]Replay, 2)}
	r.measure(b, at(1.05), []time.Time{at(3.05), at(4.1)}, at(7), time.Second)
	if *r.GoodputBps != 80e6 || r.Quiet.LongestSeconds != 0.1 || r.Upgrades[0].Dip.LongestSeconds != 0 ||
		fmt.Sprintf("%.1f", r.Upgrades[1].Dip.LongestSeconds) != "0.3" || *r.Worst != *r.Upgrades[1].Dip {
		t.Errorf("%+v", r)
	}
	// Without goodput there is no base to compare with.
	r = Result{Upgrades: make([]Replay, 1)}
	r.measure(&bulk{start: start, bins: make([]int64, 80)}, at(1), []time.Time{at(3)}, at(7), time.Second)
	if r.GoodputBps != nil || r.Quiet != nil || r.Worst != nil || r.Upgrades[0].Dip != nil {
		t.Errorf("%+v", r)
	}
}

func TestCount(t *testing.T) {
	upgrade := time.Unix(1000, 0)
	at := func(seconds float64, stage string, err error) visit {
		return visit{began: upgrade.Add(time.Duration(seconds * 1e9)), first: time.Duration(1+seconds*seconds) * time.Second, stage: stage, err: err}
	}
	c := &crowd{openMost: 3, all: []visit{
		at(-2, "", nil), at(-0.5, "connect", fmt.Errorf("dial: %w", syscall.ECONNREFUSED)), at(0.9, "connect", context.DeadlineExceeded),
		at(0.5, "first echo", syscall.ECONNRESET), at(3, "end", errors.New("1 bytes")), at(0.1, "echo", errWrong), at(0.2, "connect", syscall.ECONNRESET),
	}}
	var r Result
	r.count(c, &bulk{flows: []*bulkFlow{{}, {began: upgrade, err: syscall.ECONNRESET}}}, []time.Time{upgrade})
	want := Result{Flows: 7, OpenMost: 3, Refused: 2, Reset: 4, Wrong: 1, FirstEchoNear: Spread{5, 1, 1, 1}, FirstEchoElse: Spread{2, 5, 5, 10},
		FirstError: "-0.500 s from the first upgrade, connect: dial: connection refused"}
	if fmt.Sprintf("%+v", r) != fmt.Sprintf("%+v", want) {
		t.Errorf("%+v, want %+v", r, want)
	}
}
