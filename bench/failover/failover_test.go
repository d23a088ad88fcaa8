package main

import (
	"errors"
	"testing"
	"time"

	"longhaul/bench/kit"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

func TestNobodyIsRefused(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	r, err := suite().Run(t.Context(), kit.Options{Program: nettest.Longhaul(t), Cases: suite().CaseNames(), Through: suite().Ways(), Repeat: 1, Quick: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Cases[0].Figures {
		some := f.Name == "new connections" || f.Name == "by the other relay" || f.Name == "standing on the other" || f.Name == "reset on the dead one" && f.Way == byProcess
		none := f.Name == "failed later" || f.Name == "of them disturbed"
		if some && f.Median == 0 || none && f.Median > 0 {
			t.Errorf("%s: %s: %v (%s)", f.Way, f.Name, f.Median, f.First)
		}
	}
	if len(r.Cases[0].Errors) > 0 {
		t.Error(r.Cases[0].Errors)
	}
}

func TestCount(t *testing.T) {
	death := time.Unix(1000, 0)
	at := func(seconds float64, err error) attempt {
		return attempt{began: death.Add(time.Duration(seconds * 1e9)), took: 20 * time.Millisecond, relay: 2, err: err}
	}
	broken := errors.New("broken")
	got := map[string]float64{}
	count([]attempt{at(-1, nil), at(-0.001, broken), at(0, broken), at(0.999, broken), at(1, broken), at(3, nil)}, death,
		func(m kit.Measured) { got[m.Name] = m.Value })
	for name, want := range map[string]float64{"new connections": 6, "by the other relay": 2, "failed before": 1, "failed in the 1st second": 2,
		"failed later": 1, "slowest before": 20, "slowest in the 1st second": 0, "slowest later": 20} {
		if got[name] != want {
			t.Errorf("%s: %v, want %v", name, got[name], want)
		}
	}
}
