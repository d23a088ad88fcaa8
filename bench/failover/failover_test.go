package main

import (
	"fmt"
	"testing"
	"time"

	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

func TestNobodyIsRefused(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	program := nettest.Longhaul(t)
	for _, name := range Cases() {
		t.Run(name, func(t *testing.T) {
			r, err := Run(t.Context(), name, Options{Program: program, PerSecond: 50, Standing: 10, Before: time.Second, After: 2 * time.Second, Patience: 3 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", r)
			if r.Flows == 0 || r.FlowsOnB2 == 0 || r.Standing == 0 {
				t.Errorf("nothing was measured: %+v", r)
			}
			if r.FailedLater > 0 || r.Disturbed > 0 {
				t.Errorf("%d connections failed after the first second, %d standing ones were disturbed: %s", r.FailedLater, r.Disturbed, r.FirstError)
			}
			if name == CaseProcess && r.Lost == 0 {
				t.Error("no connection of the dead relay was reset")
			}
		})
	}
}

func TestCount(t *testing.T) {
	death := time.Unix(1000, 0)
	at := func(seconds float64, err error) attempt {
		return attempt{began: death.Add(time.Duration(seconds * 1e9)), took: 20 * time.Millisecond, relay: 2, err: err}
	}
	broken := fmt.Errorf("broken")
	var r Result
	r.count([]attempt{at(-1, nil), at(-0.001, broken), at(0, broken), at(0.999, broken), at(1, broken), at(3, nil)}, death)
	want := Result{Flows: 6, FlowsOnB2: 2, FailedBefore: 1, FailedFirstSecond: 2, FailedLater: 1,
		SlowestBeforeSeconds: 0.02, SlowestLaterSeconds: 0.02, FirstError: "-0.001 s: broken"}
	if r != want {
		t.Errorf("%+v, want %+v", r, want)
	}
}
