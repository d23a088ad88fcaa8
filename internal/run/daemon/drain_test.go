package daemon

import (
	"net/netip"
	"strings"
	"testing"

	"longhaul/internal/carry/flow"
	"longhaul/internal/run/config"
	"longhaul/internal/words/portrange"
	"longhaul/internal/words/remedy"
)

func TestFindNamed(t *testing.T) {
	forward := func(host string, low, high uint16) config.Forward {
		return config.Forward{Host: host, Ports: portrange.Range{First: low, Last: high}}
	}
	listen := func(addr string, low, high uint16) config.Listen {
		return config.Listen{Addr: netip.MustParseAddr(addr), Ports: portrange.Range{First: low, Last: high}}
	}
	tunnels := []config.Tunnel{
		{Name: "range", Listen: []config.Listen{listen("::", 6000, 6010)}, Forward: []config.Forward{forward("far", 6000, 6010)}},
		{Name: "one", Listen: []config.Listen{listen("127.0.0.1", 7000, 7000), listen("::1", 7000, 7000)},
			Forward: []config.Forward{forward("far", 7000, 7000), forward("127.0.0.1", 7001, 7001)}},
		{Name: "next", Listen: []config.Listen{listen("127.0.0.1", 7001, 7001)}, Forward: []config.Forward{forward("far", 7000, 7000)}},
	}
	for name, want := range map[string]named{
		"range":               {tunnel: "range"},
		":6000-6010":          {tunnel: "range"},
		"[::]:6000-6010":      {tunnel: "range"},
		"far:6000-6010":       {hop: "far:6000-6010"},
		"range/far:6000-6010": {"range", "far:6000-6010"},
		"127.0.0.1:7000":      {tunnel: "one"},
		"[::1]:7000":          {tunnel: "one"},
		"far:7000":            {hop: "far:7000"},
		"next/far:7000":       {"next", "far:7000"},
		"one/127.0.0.1:7001":  {"one", "127.0.0.1:7001"},
		"127.0.0.1:7001":      {}, // the hop of one, and the tunnel next
		":6000":               {}, // drains no part of a tunnel
		":7000":               {}, // one listens on no wildcard
		"far:6000":            {},
		"range/far:7000":      {},
		"0.0.0.0:6000-6010":   {},
		"range/":              {},
		"":                    {},
	} {
		got, err := findNamed(tunnels, name)
		if got != want || (err != nil) != (want == named{}) || err != nil && remedy.Of(err) == "" {
			t.Errorf("%q: %+v, %v; want %+v", name, got, err, want)
		}
	}
	_, err := findNamed(tunnels, "nobody")
	if fix := remedy.Of(err); !strings.Contains(fix, "tunnels: range, one, next") || !strings.Contains(fix, "far:6000-6010") {
		t.Errorf("the hint is %q", fix)
	}
}

func TestFindHost(t *testing.T) {
	hop := func(name, host string) flow.Hop {
		return flow.Hop{Name: name, Pair: &flow.PairHop{Taking: flow.Taking{Peer: "site-b", Host: host}}}
	}
	tunnels := []flow.Tunnel{
		{Name: "one", Hops: []flow.Hop{hop("far-1:6000", "site-b/b1"), hop("far-2:6000", "site-b/b2"), hop("far-3:6000", "")}},
		{Name: "two", Hops: []flow.Hop{hop("far-1:6000", "site-b/b1"), hop("far-2:6001", "site-b/b2"), {Name: "plain:1"}}},
	}
	for name, want := range map[string]named{
		"site-b/b1": {hop: "far-1:6000"},
		"site-b/b2": {}, // at two hops
		"site-b":    {},
		"":          {},
	} {
		if got, has := findHost(tunnels, name); got != want || has != (want != named{}) {
			t.Errorf("%q: %+v, %v; want %+v", name, got, has, want)
		}
	}
}
