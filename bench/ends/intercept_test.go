//go:build linux

package main

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"longhaul/lab/sandbox"
	"longhaul/test/nettest"
)

// TestIntercept runs scripts through routers that intercept.
func TestIntercept(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	through := slices.Sorted(maps.Keys(interceptModes))
	if os.Geteuid() != 0 || sandbox.UserNamespace() { // refuse: mirror loads BPF programs
		through = slices.DeleteFunc(through, func(way string) bool { return strings.Contains(way, "mirror") })
	}
	scripts := 100 * *manyScripts
	r, err := Run(t.Context(), Options{Seed: 5, Scripts: uint64(scripts), Through: through, Lanes: 4, Program: nettest.Longhaul(t)})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Ways) != len(through) {
		t.Fatalf("%d ways", len(r.Ways))
	}
	for _, w := range r.Ways {
		if w.Scripts != scripts || w.Violations > 0 {
			t.Errorf("%s: %d scripts, %d violations: %v", w.Name, w.Scripts, w.Violations, w.Kinds)
		}
		for _, f := range w.Findings {
			t.Errorf("script %d: %s\n%s%s", f.Script, f.Text, f.Shortest, f.Says)
		}
	}
}
