package main

import (
	"slices"
	"strings"
	"testing"

	"longhaul/internal/find/doctor"
)

func TestPaths(t *testing.T) {
	seen := map[string]bool{}
	all := paths()
	if len(all) < 24 {
		t.Errorf("%d paths", len(all))
	}
	for _, p := range all {
		if seen[p.name] {
			t.Errorf("two paths are named %s", p.name)
		}
		seen[p.name] = true
		if p.what == "" || (p.local == "") == (p.remote == "") || p.start == nil {
			t.Errorf("%s lacks a description, an end of doctor's, or programs", p.name)
		}
		for _, name := range p.needs {
			if packages[name] == "" {
				t.Errorf("%s: no package of %s is known", p.name, name)
			}
		}
	}
}

func TestChoose(t *testing.T) {
	all := paths()
	for _, test := range []struct {
		text string
		want []string
		err  string
	}{
		{"", nil, ""},
		{"nagle,1", []string{"nagle", all[0].name}, ""},
		{"0", nil, `no path "0"`},
		{"1x", nil, `no path "1x"`},
		{"nothing", nil, `no path "nothing"`},
	} {
		got, err := choose(all, test.text)
		var names []string
		for _, p := range got {
			names = append(names, p.name)
		}
		switch {
		case test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)):
			t.Errorf("%q: %v, want %q", test.text, err, test.err)
		case test.err == "" && err != nil:
			t.Errorf("%q: %v", test.text, err)
		case test.want != nil && !slices.Equal(names, test.want):
			t.Errorf("%q chooses %v", test.text, names)
		}
	}
}

func TestJudge(t *testing.T) {
	loss := path{truth: []doctor.Cause{doctor.RandomLoss}}
	starved := path{truth: []doctor.Cause{doctor.CPU}, starved: true}
	for _, test := range []struct {
		name string
		path path
		v    verdict
		want judgement
	}{
		{"the truth", loss, verdict{Cause: doctor.RandomLoss, Strength: doctor.Certain}, right},
		{"the truth, not certain", loss, verdict{Cause: doctor.RandomLoss, Strength: "not certain"}, right},
		{"another", loss, verdict{Cause: doctor.Congestion, Strength: doctor.Certain}, wrong},
		{"another, not certain", loss, verdict{Cause: doctor.Healthy, Strength: "not certain"}, wrong},
		{"nothing", loss, verdict{Cause: doctor.Unexplained}, cautious},
		{"a refusal", loss, verdict{Refusal: "no data moved"}, cautious},
		{"a refusal where nothing moves", path{}, verdict{Refusal: "no data moved"}, right},
		{"a cause where nothing moves", path{}, verdict{Cause: doctor.Application, Strength: doctor.Certain}, wrong},
		{"anything not certain on a starved host", starved, verdict{Cause: doctor.Congestion, Strength: "not certain"}, right},
		{"a refusal on a starved host", starved, verdict{Refusal: "no data moved"}, cautious},
		{"anything certain on a starved host", starved, verdict{Cause: doctor.Congestion, Strength: doctor.Certain}, wrong},
	} {
		if got := test.path.judge(test.v); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
	o := outcome{
		Watched: verdict{Cause: doctor.RandomLoss, Strength: doctor.Certain}, Tested: verdict{Cause: doctor.RandomLoss, Strength: "not certain"},
		Top: []string{"-", "random-loss", "congestion", "congestion"},
	}
	o.judge(loss)
	if want := []string{"congestion"}; !slices.Equal(o.TopContradicted, want) || !slices.Equal(o.TopWrong, want) {
		t.Errorf("top: contradicted %v, wrong %v", o.TopContradicted, o.TopWrong)
	}
}
