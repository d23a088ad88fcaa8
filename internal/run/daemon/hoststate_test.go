package daemon

import (
	"errors"
	"log/slog"
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

// TestSettingsStay: settings that could not be looked at are as they were found before.
func TestSettingsStay(t *testing.T) {
	h := hostFaults{log: slog.New(slog.DiscardHandler)}
	h.foundSettings([]error{errors.New("a setting is wrong")}, nil)
	h.foundSettings(nil, errors.New("no descriptor"))
	if len(h.settings) != 1 {
		t.Errorf("after a look that failed, the settings are %v", h.settings)
	}
	h.foundSettings(nil, nil)
	if len(h.settings) != 0 {
		t.Errorf("after a look without a finding, the settings are %v", h.settings)
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
