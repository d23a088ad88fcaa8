package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"longhaul/test/nettest"
)

// withoutRules is a simulator in which all is well but for haul beyond 100 ms, without "far"
// beyond 50 ms, and without "near" nowhere.
func withoutRules(rule string) runner {
	limit := map[string]float64{"": 100, "same": 100, "far": 50, "near": 1e9}[rule]
	return func(_ context.Context, p path, over ...window) (outcome, error) {
		f := flowFigures{goodputBps: 95e6, arrivedBps: 95e6, sent: 1000, delivered: 1000}
		if p.rttMs() > limit && p.flows[0].control == "haul" {
			f.goodputBps, f.arrivedBps = 1e6, 1e6
		}
		return flat(f, 1, 96e6)(p, over...)
	}
}

func TestSearchRules(t *testing.T) {
	nettest.CheckLeaks(t)
	var notes strings.Builder
	s := search{kinds: []kind{alone}, seed: 5, paths: 200, workers: 3, progress: func(int, int) {}, notes: &notes}
	rules := []rule{{"same", "changes nothing"}, {"far", "helps beyond 50 ms"}, {"near", "does harm"}}
	r, err := s.searchRules(t.Context(), rules, withoutRules)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := errors.Join(writeJSON(&text, r), r.writeText(&text)); err != nil {
		t.Fatal(err)
	}
	e := r.Effects
	if len(e) != 4 || e[0].Paths != 200 || e[0].Broken == 0 || e[0].New != 0 || e[0].Mended != 0 {
		t.Fatalf("%+v", e)
	}
	if e[1].Broken != e[0].Broken || e[1].New != 0 || e[1].Mended != 0 {
		t.Errorf("a rule that changes nothing: %+v", e[1])
	}
	if e[2].New == 0 || e[2].Mended != 0 || e[2].Broken != e[0].Broken+e[2].New || e[2].Cells["short"] > 0.02 {
		t.Errorf("a rule that helps: %+v", e[2])
	}
	if e[3].Broken != 0 || e[3].Mended != e[0].Broken || e[3].Cells["geo"] < 0.9 {
		t.Errorf("a rule that does harm: %+v", e[3])
	}
	said := strings.Split(strings.TrimSpace(notes.String()), "\n")
	if len(said) != 4 || !strings.HasPrefix(said[0], "1 of 4, off: (none): ") || !strings.HasPrefix(said[3], "4 of 4, off: near: 0 paths ") {
		t.Errorf("notes %q", said)
	}
	for i, line := range said {
		if strings.Contains(line, ", about ") != (i < 3) {
			t.Errorf("of the time that is left: %q", line)
		}
	}
	_, shown, _ := strings.Cut(text.String(), "\n}\n")
	if !strings.Contains(shown, "=") || strings.Contains(shown, "NaN") {
		t.Error(shown)
	}
	for line := range strings.Lines(shown) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > columns {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	t.Log(shown)
}

// TestSearchRulesEnds: an interrupt leaves the rules that are whole.
func TestSearchRulesEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := search{kinds: []kind{alone}, seed: 5, paths: 20, workers: 2, progress: func(paths, _ int) {
		if paths == 30 {
			cancel()
		}
	}}
	r, err := s.searchRules(ctx, []rule{{"same", ""}, {"far", ""}}, withoutRules)
	if err != nil || !r.Interrupted || len(r.Effects) != 1 {
		t.Errorf("%v: %+v", err, r)
	}
}

// TestSimulatorRules: the simulator of this tree lists its rules, each can be switched off,
// and without probes a path looks otherwise.
func TestSimulatorRules(t *testing.T) {
	nettest.RequireProgram(t, "gcc", "gcc")
	s, err := buildSimulator(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	rules, err := s.rules(t.Context())
	if err != nil || len(rules) < 10 {
		t.Fatalf("%v: %d rules", err, len(rules))
	}
	p := cellPath(2, 40, 1, 0.02, 0, "haul")
	over := window{10, 60}
	measure := func(rule string) windowFigures {
		t.Helper()
		o, err := s.without(rule)(t.Context(), p, over)
		if err != nil {
			t.Fatal(err)
		}
		return o.over[0]
	}
	all, differ := measure(""), 0
	for _, rule := range rules {
		if rule.name == "" || rule.says == "" {
			t.Errorf("rule %+v", rule)
		}
		if w := measure(rule.name); w.flows[0] != all.flows[0] {
			differ++
		}
	}
	if differ == 0 || differ == len(rules) {
		t.Errorf("%d of %d rules change a path that loses 2 %%", differ, len(rules))
	}
	if _, err := s.without("no-such-rule")(t.Context(), p, over); err == nil || !strings.Contains(err.Error(), "no such rule: no-such-rule") {
		t.Errorf("an unknown rule: %v", err)
	}
}
