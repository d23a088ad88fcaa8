package main

import (
	"os"
	"testing"

	"longhaul/bench/kit"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// TestChanges makes some changes with each name server of this machine, under flows.
func TestChanges(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.RequireProgram(t, "knotd", "knot")
	nettest.CheckLeaks(t)
	var ways []string
	for _, way := range suite().Ways() {
		if why := missing(way); why != "" {
			if os.Getenv("CI") == "true" {
				t.Fatal("CI must be able to run this: " + why)
			}
			t.Logf("not through %s: %s", way, why)
			continue
		}
		ways = append(ways, way)
	}
	r, err := suite().Run(t.Context(), kit.Options{Program: nettest.Longhaul(t), Cases: suite().CaseNames(), Through: ways, Repeat: 1, Seed: 1, Flows: 60})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Cases {
		for _, f := range c.Errors {
			t.Errorf("%s through %s: %s", c.Name, f.Way, f.Error)
		}
		for _, f := range c.Figures {
			if f.Name != "slowest change after its TTL" && f.OK != nil && !*f.OK { // tests measure no time
				t.Errorf("%s through %s: %s: %v, like %s", c.Name, f.Way, f.Name, f.Runs, f.First)
			}
		}
	}
}
