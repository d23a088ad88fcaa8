package route

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"longhaul/internal/sys/ledger"
)

func TestSettingText(t *testing.T) {
	claims := []ledger.Claim{{By: ledger.By{Owner: "alice"}}, {By: ledger.By{Owner: "bob"}}}
	s := Setting{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Metrics: map[Metric]*Done{
		RTOMin: {Set: Value{Number: 50, Locked: true}, Claims: claims[:1]},
		MTU:    {Set: Value{Number: 1400}, Former: Value{Number: 1500}, Claims: claims},
	}}
	var out bytes.Buffer
	if err := s.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	if want := "203.0.113.0/24  mtu 1400, rto_min 50ms locked\n    set by alice, bob; before: mtu 1500\n"; out.String() != want {
		t.Errorf("%s\nwant\n%s", out.String(), want)
	}
}

func TestUndoneText(t *testing.T) {
	bob := []ledger.Claim{{By: ledger.By{Owner: "bob"}}}
	metric := func(left []ledger.Claim, was, now uint32, kept bool) UndoneMetric {
		return UndoneMetric{Metric: MTU, Left: left, Was: Value{Number: was}, Now: Value{Number: now}, Kept: kept}
	}
	for want, u := range map[string]Undone{
		"the route to 203.0.113.0/24 is gone again\n":                                       {Deleted: true, Metrics: []UndoneMetric{metric(nil, 1400, 0, false)}},
		"the route to 203.0.113.0/24 is gone: another program has deleted it\n":             {Missing: true, Metrics: []UndoneMetric{metric(nil, 1400, 0, false)}},
		"the route to 203.0.113.0/24 has the former mtu again\n":                            {Metrics: []UndoneMetric{metric(nil, 1400, 1500, false)}},
		"the route to 203.0.113.0/24 has mtu 1300 again, set by bob\n":                      {Metrics: []UndoneMetric{metric(bob, 1400, 1300, false)}},
		"the route to 203.0.113.0/24 keeps mtu 1300, set by bob\n":                          {Metrics: []UndoneMetric{metric(bob, 1300, 1300, false)}},
		"the route to 203.0.113.0/24 keeps mtu 1280, which another program has set since\n": {Metrics: []UndoneMetric{metric(bob, 1400, 1280, true)}},
	} {
		u.Prefix = netip.MustParsePrefix("203.0.113.0/24")
		var out bytes.Buffer
		if err := u.WriteText(&out); err != nil || out.String() != want {
			t.Errorf("%v: %s, want %s", err, out.String(), want)
		}
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
