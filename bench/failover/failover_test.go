package main

import (
	"errors"
	"testing"
	"time"

	"longhaul/bench/kit"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// TestNobodyIsRefused looks at counts: a test does not measure how long something takes.
func TestNobodyIsRefused(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	r, err := suite().Run(t.Context(), kit.Options{Program: nettest.Longhaul(t), Cases: []string{"plain"}, Through: []string{killed, cutOff, upgraded}, Repeat: 1, Quick: true})
	if err != nil {
		t.Fatal(err)
	}
	some := []string{"new connections", "by the other relay", "standing on the other relay", "standing on the relay that failed"}
	none := []string{"failed, begun later", "of them ended", "not ended of these", "ends that look whole", "requests that reached two targets"}
	for _, c := range r.Cases {
		for _, way := range []string{killed, cutOff, upgraded} {
			for _, name := range some {
				for _, v := range c.Of(way, name) {
					if v == 0 && (name != "by the other relay" || way != upgraded) {
						t.Errorf("%s, %s: %s: none", c.Name, way, name)
					}
				}
			}
			for _, name := range none {
				for _, v := range c.Of(way, name) {
					if v > 0 {
						t.Errorf("%s, %s: %s: %v", c.Name, way, name, v)
					}
				}
			}
		}
		if len(c.Errors) > 0 {
			t.Error(c.Errors)
		}
	}
}

func TestCountNew(t *testing.T) {
	at := time.Unix(1000, 0)
	back := at.Add(2 * time.Second)
	one := func(seconds float64, relay byte, err error) attempt {
		return attempt{began: at.Add(time.Duration(seconds * 1e9)), took: 20 * time.Millisecond, relay: relay, err: err}
	}
	broken := errors.New("broken")
	got, held := map[string]float64{}, map[string]bool{}
	countNew([]attempt{one(-1, 2, nil), one(-0.001, 0, broken), one(0, 0, broken), one(0.999, 0, broken), one(1, 0, broken), one(1.5, 2, nil), one(3, 1, nil)},
		killed, true, at, back, func(string) string { return "" }, func(m kit.Measured) {
			got[m.Name] = m.Value
			var c kit.CaseResult
			c.Add("", m)
			held[m.Name] = c.Figures[0].OK == nil || *c.Figures[0].OK
		})
	for name, want := range map[string]float64{"new connections": 7, "by the other relay": 1, "by the relay that is back": 1, "failed, begun before": 1,
		"failed, begun in the 1st second": 2, "failed, begun later": 1, "slowest, begun before": 0.02, "slowest, begun after": 0.02, "served of those begun after": 40} {
		if got[name] != want {
			t.Errorf("%s: %v, want %v", name, got[name], want)
		}
	}
	for name, want := range map[string]bool{"failed, begun before": true, "failed, begun later": false, "slowest, begun after": true, "served of those begun after": false} {
		if held[name] != want {
			t.Errorf("%s: the bound holds %t, want %t", name, held[name], want)
		}
	}
}

func TestTwice(t *testing.T) {
	if n := (&target{requests: map[uint64]int{1: 1, 2: 2, 3: 3}}).twice(); n != 2 {
		t.Errorf("%d requests reached two targets, want 2", n)
	}
}
