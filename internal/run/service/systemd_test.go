package service

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUnitAsSystemdShowsIt(t *testing.T) {
	for name, test := range map[string]struct {
		show string
		want Unit
	}{
		"running": {"LoadState=loaded\nActiveState=active\nSubState=running\nUnitFileState=enabled\nMainPID=42\nFragmentPath=/etc/systemd/system/a.service\nDropInPaths=/etc/x/a.conf /etc/x/b.conf\nStatusText=1 tunnel, 0 flows\n",
			Unit{Loaded: true, Active: "active", Sub: "running", Enabled: true, PID: 42, File: "/etc/systemd/system/a.service", DropIns: []string{"/etc/x/a.conf", "/etc/x/b.conf"}, Status: "1 tunnel, 0 flows"}},
		"absent": {"LoadState=not-found\nActiveState=inactive\nSubState=dead\nUnitFileState=\nMainPID=0\nFragmentPath=\nDropInPaths=\nStatusText=\n",
			Unit{Active: "inactive", Sub: "dead", DropIns: []string{}}},
		"masked": {"LoadState=masked\nActiveState=inactive\nUnitFileState=masked\n", Unit{Masked: true, Active: "inactive"}},
	} {
		if diff := cmp.Diff(test.want, parseUnit(test.show)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestExposureLine(t *testing.T) {
	got, err := parseExposure("✓ UMask=   Files are fine\n\n→ Overall exposure level for longhaul.service: 1.3 OK :-)\n")
	if err != nil || got != 1.3 {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := parseExposure("Unit longhaul.service not found.\n"); err == nil {
		t.Error("a figure out of nothing")
	}
}

func TestCapabilities(t *testing.T) {
	unit := []byte("[Service]\nAmbientCapabilities=CAP_KILL\n")
	for name, test := range map[string]struct {
		dropIn string
		want   []string
	}{
		"one more": {"AmbientCapabilities=CAP_NET_ADMIN CAP_BPF\nCapabilityBoundingSet=CAP_SYS_TIME", []string{"CAP_KILL", "CAP_NET_ADMIN", "CAP_BPF"}},
		"none":     {"AmbientCapabilities=\n", nil},
		"anew":     {"AmbientCapabilities=\nAmbientCapabilities=CAP_BPF\n", []string{"CAP_BPF"}},
	} {
		if got := Capabilities(unit, []byte(test.dropIn)); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
