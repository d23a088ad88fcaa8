package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadKnown(t *testing.T) {
	for _, c := range []struct{ content, want string }{
		{`[]`, ""},
		{`[{"kind": "group", "bound": "jain", "share": 0.3}]`, ""},
		{`[{"kind": "group", "bound": "gain", "share": 0.3}]`, `unknown bound "gain" of kind "group"`},
		{`[{"kind": "group", "bound": "jain", "share": 0}]`, "share of group jain is 0, not above 0 and at most 1"},
		{`[{"kind": "group", "bound": "jain", "part": 0.3}]`, `unknown field "part"`},
		{`[] []`, "more than one list"},
		{`[`, "unexpected EOF"},
	} {
		name := filepath.Join(t.TempDir(), "known.json")
		if err := os.WriteFile(name, []byte(c.content), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := readKnown(name)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", c.content, err)
		}
	}
	if _, err := readKnown("missing.json"); err == nil {
		t.Error("a missing file is read")
	}
	if _, err := readKnown("known.json"); err != nil {
		t.Error(err)
	}
}

func TestWorseThanKnown(t *testing.T) {
	list := []known{{"group", "jain", 0.3}}
	for _, c := range []struct {
		bound   string
		allowed float64
		list    []known
		failed  int
		want    bool
	}{
		{"jain", seldom, list, 1, false}, {"jain", seldom, list, 44, false}, {"jain", seldom, list, 45, true},
		{"goodput", seldom, list, 4, false}, {"goodput", seldom, list, 5, true},
		{"stuck", never, list, 0, false}, {"stuck", never, list, 1, true},
		{"jain", seldom, nil, 1, false}, {"jain", seldom, nil, 2, true},
	} {
		count := tally{Kind: "group", Bound: c.bound, Paths: 100, Failures: c.failed, Allowed: c.allowed, bound: boundJain}
		if got := count.finish().worse(c.list); got != c.want {
			t.Errorf("%s, %d of 100, %v known: %v", c.bound, c.failed, c.list, got)
		}
	}
}
