package daemon

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/names"
	"longhaul/internal/run/config"
	"longhaul/test/nettest"
)

// TestHopsOfTargets: ranks for priorities, ratios for weights, and as many hops as a tunnel may have.
func TestHopsOfTargets(t *testing.T) {
	target := func(host string, priority, weight uint16) names.Target {
		return names.Target{Host: host, Port: 6000, Priority: priority, Weight: weight}
	}
	for name, c := range map[string]struct {
		targets []names.Target
		want    string // host/priority/weight
	}{
		"none":                      {nil, ""},
		"one":                       {[]names.Target{target("a", 65535, 0)}, "a/1/1"},
		"priorities":                {[]names.Target{target("a", 0, 1), target("b", 0, 1), target("c", 7, 1), target("d", 65535, 1)}, "a/1/1 b/1/1 c/2/1 d/3/1"},
		"weights of hops":           {[]names.Target{target("a", 1, 1000), target("b", 1, 7)}, "a/1/1000 b/1/7"},
		"large weights":             {[]names.Target{target("a", 1, 65535), target("b", 1, 32768), target("c", 1, 1)}, "a/1/1000 b/1/500 c/1/1"},
		"zero is the least":         {[]names.Target{target("a", 1, 3), target("b", 1, 1), target("c", 1, 0)}, "a/1/999 b/1/333 c/1/1"},
		"zero beside a large one":   {[]names.Target{target("a", 1, 40000), target("b", 1, 0)}, "a/1/1000 b/1/1"},
		"only zeros":                {[]names.Target{target("a", 1, 0), target("b", 1, 0)}, "a/1/1 b/1/1"},
		"each priority by itself":   {[]names.Target{target("a", 1, 50000), target("b", 1, 25000), target("c", 2, 10)}, "a/1/1000 b/1/500 c/2/10"},
		"one host with other ports": {[]names.Target{{Host: "a", Port: 6000, Weight: 1}, {Host: "a", Port: 6001, Weight: 1}}, "a/1/1 a:6001/1/1"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, f := range hopsOf(c.targets).hops {
				if !strings.Contains(f.Host, ".") || f.Ports.Len() != 1 {
					t.Errorf("%+v", f)
				}
				got = append(got, fmt.Sprintf("%s/%d/%d", strings.TrimSuffix(f.String(), ":6000"), f.Priority, f.Weight))
			}
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("got %s, want %s", text, c.want)
			}
		})
	}
	var many []names.Target
	for i := range uint16(256) {
		many = append(many, target(fmt.Sprintf("h%03d", i), i, 1))
	}
	d := hopsOf(many)
	if len(d.hops) != config.MaxHops || d.hops[63].Priority != 64 || len(d.leftOut) != maxLeftOut || d.leftOut[0] != "h064:6000" || d.ignored != 256-64-maxLeftOut {
		t.Errorf("%d hops, %v and %d more", len(d.hops), d.leftOut, d.ignored)
	}
	if d := hopsOf(many[:17]); len(d.hops) != 17 || d.leftOut != nil {
		t.Errorf("17 targets give %d hops, %v", len(d.hops), d.leftOut)
	}
}

// TestFilled: the names of hops are found, and the configuration in force stays as it is.
func TestFilled(t *testing.T) {
	found := hopsOf([]names.Target{{Host: "relay-b.example.net", Port: 6000}})
	found.service = "_x._tcp.example.net"
	d := &discovery{current: map[string]discovered{"a": found}, names: names.New(nil)}
	defer d.names.Close()
	tunnels := []config.Tunnel{{Name: "a", Service: found.service}, {Name: "b", Forward: []config.Forward{{Host: "c"}}}}
	named, err := findNamed(d.filled(tunnels), "relay-b.example.net:6000")
	if err != nil || named.hop != "relay-b.example.net:6000" {
		t.Errorf("%+v, %v", named, err)
	}
	if tunnels[0].Forward != nil {
		t.Errorf("the configuration has %v", tunnels[0].Forward)
	}
	shown := []flow.Tunnel{{Name: "a"}, {Name: "b"}}
	if d.add(shown); shown[0].Service == nil || shown[0].Service.Name != found.service || shown[1].Service != nil {
		t.Errorf("%+v", shown)
	}
	if !slices.Equal(found.hops, d.current["a"].hops) {
		t.Error("the hops have changed")
	}
}

// TestWithoutTargets: a reload needs targets of a service that is new; a start, and going back, do not.
func TestWithoutTargets(t *testing.T) {
	cache := names.New(nil)
	t.Cleanup(cache.Close)
	for _, tt := range []struct{ begun, back, refused bool }{{}, {begun: true, refused: true}, {begun: true, back: true}} {
		d := newDiscovery(slog.New(slog.DiscardHandler), cache)
		d.begun = tt.begun
		// No name server has an answer for a name that ends with invalid (RFC 6761).
		p := &plan{Config: &config.Config{Tunnels: []config.Tunnel{{Name: "t", Service: "_x._tcp.b.invalid"}}}, back: tt.back}
		change, err := d.Prepare(t.Context(), p)
		if (err != nil) != tt.refused {
			t.Errorf("%+v: %v", tt, err)
		}
		if err == nil {
			change.Abort()
		}
		d.close()
	}
}

// TestBadAnswersAreEvents: a service that loses its targets makes one event.
func TestBadAnswersAreEvents(t *testing.T) {
	cache := names.New(nil)
	t.Cleanup(cache.Close)
	d := newDiscovery(slog.New(slog.DiscardHandler), cache)
	defer d.close()
	var told []string
	d.note = func(kind, tunnel, name, state, _ string) { told = append(told, kind+" "+tunnel+name+" "+state) }
	change, err := d.Prepare(t.Context(), &plan{Config: &config.Config{Tunnels: []config.Tunnel{{Name: "t", Service: "_x._tcp.b.invalid"}}}})
	nettest.Must(t, err)
	change.Commit()
	nettest.Eventually(t, time.Minute, func() bool { d.look(); return len(told) > 0 }, func() string { return "no event" })
	d.look()
	if state := string(cache.Service("_x._tcp.b.invalid").State); len(told) != 1 || told[0] != "service _x._tcp.b.invalid "+state {
		t.Errorf("told is %q, the state %q", told, state)
	}
}
