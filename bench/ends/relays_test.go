//go:build linux

package main

import (
	flags "flag"
	"testing"

	"longhaul/test/nettest"
)

var manyScripts = flags.Int("scripts", 1, "run so many times as many scripts")

func TestMain(m *testing.M) { nettest.Main(m) }

// TestRelays runs scripts over direct connections, through one relay and through two. At 1818be3
// a thousand find streams cut short behind urgent data and for clients that were there before the
// relay, and urgent bytes that vanish.
func TestRelays(t *testing.T) {
	nettest.CheckLeaks(t)
	scripts := 400 * *manyScripts
	r, err := Run(t.Context(), Options{Seed: 1, Scripts: uint64(scripts), Relays: []int{0, 1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Ways) != 3 || r.Scripts != uint64(scripts) {
		t.Errorf("%d scripts through %d ways", r.Scripts, len(r.Ways))
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
