//go:build linux

package ends

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"longhaul/internal/nettest"
)

// TestPair runs scripts through paired relays, and in outages through those that outlive
// them.
func TestPair(t *testing.T) {
	nettest.RequireSandbox(t)
	for _, tt := range []struct {
		name    string
		through []string
		outages bool
	}{
		{"calm", slices.Sorted(maps.Keys(pairModes)), false},
		{"outages", []string{"pair", "pair-clear", "pair-lanes", "pair-paths"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nettest.CheckLeaks(t)
			r, err := Run(t.Context(), Options{Seed: 3, Scripts: 30, Through: tt.through, Outages: tt.outages, Lanes: 8, Program: nettest.Longhaul(t)})
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Ways) != len(tt.through) {
				t.Fatalf("%d ways", len(r.Ways))
			}
			for _, w := range r.Ways {
				if w.Scripts != 30 || w.Violations > 0 || tt.outages != (w.Met > 0) {
					t.Errorf("%s: %d scripts, %d violations: %v; faults %q", w.Name, w.Scripts, w.Violations, w.Kinds, w.Faults)
				}
				for _, f := range w.Findings {
					t.Errorf("script %d: %s\n%s%s", f.Script, f.Text, f.Shortest, f.Says)
				}
			}
		})
	}
}

func TestDelay(t *testing.T) {
	at := func(seconds float64) time.Time { return time.Unix(1000, int64(seconds*1e9)) }
	w := &weather{spells: []spell{{at(0), at(2)}, {at(10), at(11)}, {at(20), at(23)}}}
	for _, tt := range []struct{ since, seconds float64 }{
		{0, 2 + 1 + 3 + 3*aftermath.Seconds()},
		{1, 1 + 1 + 3 + 3*aftermath.Seconds()},
		{5, 1 + 3 + 3*aftermath.Seconds()}, // the first one's aftermath lasts
		{12, 3 + 2*aftermath.Seconds()},
		{30, 0},
	} {
		if got := w.delay(at(tt.since)); got.Seconds() != tt.seconds {
			t.Errorf("since %v s: %v, want %v s", tt.since, got, tt.seconds)
		}
	}
	if w.counts = map[faultKind]int{faultReset: 2, faultOutage: 1}; w.String() != "1 × outage, 2 × reset of connections" {
		t.Error(w)
	}
}

// A tunnel of each lane and family has ports of its own.
func TestPairTunnels(t *testing.T) {
	p := &pair{targets: []*lane{{}, {}}}
	names := map[string]bool{}
	for i := range p.targets {
		for f := range families {
			for _, refused := range []bool{false, true} {
				tunnel := p.tunnel(i, f, refused)
				if names[tunnel.name] || names[tunnel.far.String()] || !strings.HasPrefix(tunnel.far.String(), "10.1.0.2:200") {
					t.Errorf("%+v", tunnel)
				}
				names[tunnel.name], names[tunnel.far.String()] = true, true
			}
		}
	}
}
