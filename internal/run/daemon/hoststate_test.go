package daemon

import (
	"slices"
	"testing"
	"time"

	"longhaul/internal/carry/intercept"
)

// Some looks need no pause; after them looking takes one part in lookShare of the time.
func TestPace(t *testing.T) {
	var p pace
	now := time.Unix(1000, 0)
	const look = 2 * time.Millisecond
	began, looks := now, 0
	for now.Sub(began) < time.Minute {
		p.took(look, now)
		looks++
		if p.at.Sub(now) > look+maxPace {
			t.Fatalf("look %d puts the next one off by %v", looks, p.at.Sub(now))
		}
		now = p.at
	}
	if most := int(lookCredit/look+time.Minute/lookShare/look) + 2; looks > most || looks < most/2 {
		t.Errorf("%d looks of %v in a minute, want at most %d, and half of them", looks, look, most)
	}
}

// The opponent is who the kernel names, or else runs here and removes such parts.
func TestOpponent(t *testing.T) {
	rule := []intercept.Missing{{Part: intercept.PartRoutingRule}}
	table := []intercept.Missing{{Part: intercept.PartTable}}
	running := runningHere()
	for _, tt := range []struct {
		missing []intercept.Missing
		by      string
		want    string
	}{
		{rule, "systemd-network", suspects[0].name},
		{table, "nft", "nft, as nftables.service or a script runs it"},
		{table, "custom", "custom"},
		{rule, "", "a program that manages routing rules"},
		{table, "", "nftables.service, or a script with nft flush ruleset"},
	} {
		if tt.by == "" && slices.ContainsFunc(suspects, func(s suspect) bool { return slices.Contains(running, s.comm) }) {
			continue // one runs here
		}
		if got := opponent(tt.missing, tt.by); got != tt.want {
			t.Errorf("%v by %q: %q, want %q", tt.missing, tt.by, got, tt.want)
		}
	}
}
