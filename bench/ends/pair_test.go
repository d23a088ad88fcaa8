//go:build linux

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// TestPair runs scripts through paired relays, and through those that outlive them in outages, in
// upgrades, and over a longer path.
func TestPair(t *testing.T) {
	nettest.RequireSandbox(t)
	for _, tt := range []struct {
		name    string
		scripts uint64
		Options
	}{
		{"calm", 15, Options{Through: pairNames(), Lanes: 8}},
		{"outages", 15, Options{Through: lastingNames(), Outages: true, Lanes: 8}},
		{"upgrades", 40, Options{Through: []string{"pair", "pair-chain"}, Upgrades: true, Outages: true, Lanes: 4}},
		{"long path", 15, Options{Through: []string{"pair", "pair-chain"}, RTT: 20 * time.Millisecond, Lanes: 8}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nettest.CheckLeaks(t)
			tt.scripts *= uint64(*manyScripts)
			tt.Seed, tt.Scripts, tt.Program = 3, tt.scripts, nettest.Longhaul(t)
			r, err := Run(t.Context(), tt.Options)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Ways) != len(tt.Through) {
				t.Fatalf("%d ways", len(r.Ways))
			}
			met := 0 // in all: the scripts of one way may all fall between its outages
			for _, w := range r.Ways {
				met += w.Met
				if w.Scripts != int(tt.scripts) || w.Violations > 0 || !tt.Outages && w.Met > 0 || tt.Upgrades != (w.Upgraded > 0) {
					t.Errorf("%s: %d scripts, %d violations: %v; faults %q, upgrades %q", w.Name, w.Scripts, w.Violations, w.Kinds, w.Faults, w.Upgrades)
				}
				for _, f := range w.Findings {
					t.Errorf("script %d: %s\n%s%s", f.Script, f.Text, f.Shortest, f.Says)
				}
			}
			if tt.Outages && met == 0 {
				t.Error("no script met an outage")
			}
		})
	}
}

func TestDelay(t *testing.T) {
	at := func(seconds float64) time.Time { return time.Unix(1000, int64(seconds*1e9)) }
	w := &weather{record: record{spells: []spell{{from: at(0), to: at(2)}, {from: at(10), to: at(11)}, {from: at(20), to: at(23)}}}}
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
	if w.counts = map[string]int{string(faultReset): 2, string(faultOutage): 1}; w.String() != "1 × outage, 2 × reset of connections" {
		t.Error(w)
	}
}

// What a flow has met: what lasted when it began, and what began since.
func TestMet(t *testing.T) {
	at := func(seconds int64) time.Time { return time.Unix(1000+seconds, 0) }
	r := &record{spells: []spell{{at(0), at(2), "outage"}, {at(10), at(11), "reset"}, {at(20), time.Time{}, "outage"}}}
	for _, tt := range []struct {
		since int64
		want  string
	}{
		{1, "outage from -1.000 s to +1.000 s, reset from +9.000 s to +10.000 s, outage from +19.000 s to now"},
		{5, "reset from +5.000 s to +6.000 s, outage from +15.000 s to now"},
		{15, "outage from +5.000 s to now"},
	} {
		if got := strings.Join(r.met(at(tt.since)), ", "); got != tt.want {
			t.Errorf("since %d s: %s, want %s", tt.since, got, tt.want)
		}
	}
	r.spells[2].to = at(21)
	if got := r.met(at(22)); got != nil {
		t.Error(got)
	}
}

// Each tunnel has ports of its own, and lanes have targets of every family.
func TestPairTunnels(t *testing.T) {
	p := &pair{targets: make([]*lane, maxLanes)}
	used, targets := map[string]bool{}, map[Family]bool{}
	for i := range p.targets {
		p.targets[i] = &lane{}
		for _, refused := range []bool{false, true} {
			tunnel := p.tunnel(i, refused)
			targets[tunnel.target] = true
			for _, one := range []string{tunnel.name, fmt.Sprint("far ", tunnel.far), fmt.Sprint("near ", tunnel.listen[0].Port())} {
				if used[one] {
					t.Errorf("%s twice", one)
				}
				used[one] = true
			}
			if port := tunnel.far; port < farPorts || port >= farPorts+mostPorts {
				t.Errorf("%+v", tunnel)
			}
		}
	}
	if len(targets) != int(families) {
		t.Errorf("targets of %d families", len(targets))
	}
}
