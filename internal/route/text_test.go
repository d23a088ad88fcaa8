package route

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
)

func TestParseDestination(t *testing.T) {
	for text, want := range map[string]string{"default": "0.0.0.0/0", "default6": "::/0", "203.0.113.9": "203.0.113.9/32"} {
		if got, err := ParseDestination(text); err != nil || got.String() != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}

func TestSettingText(t *testing.T) {
	s := Setting{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Metrics: map[Metric]*Done{
		RTOMin: {Set: Value{Number: 50, Locked: true}},
		MTU:    {Set: Value{Number: 1400}, Former: Value{Number: 1500}},
	}}
	var out bytes.Buffer
	if err := s.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	if want := "203.0.113.0/24  mtu 1400, rto_min 50ms locked\n    before: mtu 1500\n"; out.String() != want {
		t.Errorf("%s\nwant\n%s", out.String(), want)
	}
	if got, want := s.UndoneText(), "the route to 203.0.113.0/24 has the former mtu, rto_min again"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	s.Made = true
	if got, want := s.UndoneText(), "the route to 203.0.113.0/24 is gone again"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestNotes(t *testing.T) {
	c := Change{Metrics: map[Metric]Value{MTU: {Number: 1400, Locked: true}, CongestionControl: {Name: "haul"}}}
	got := c.Notes()
	if len(got) != 2 || !strings.Contains(got[0], "without DF") || !strings.Contains(got[1], "--lock") {
		t.Errorf("%q", got)
	}
	prefix := netip.MustParsePrefix("203.0.113.0/24")
	r := Result{Setting: Setting{Prefix: prefix}, Elsewhere: []netip.Prefix{netip.MustParsePrefix("203.0.113.9/32")}}
	if got := r.Notes(); len(got) != 2 || !strings.HasSuffix(got[0], ": 203.0.113.9/32") || !strings.Contains(got[1], "main table") {
		t.Errorf("%q", got)
	}
}
