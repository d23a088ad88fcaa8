package examine

import (
	"context"
	"net/netip"
	"testing"

	"longhaul/internal/find/doctor"
)

func TestPairs(t *testing.T) {
	at := netip.MustParseAddrPort
	up := func(name string, near bool, remote, listen string) PairedTunnel {
		return PairedTunnel{Pair: doctor.Pair{Tunnel: name, Peer: "site-b", Up: true}, Near: near, Remote: EndOf(at(remote)), Listen: []netip.AddrPort{at(listen)}}
	}
	down := func(name string, near bool, remote, listen string) PairedTunnel {
		p := up(name, near, remote, listen)
		p.Up, p.Problem, p.Text = false, "path-down", "site-b cannot be reached"
		return p
	}
	near, lost := up("files", true, "192.0.2.2:6000", "127.0.0.1:9000"), down("files", true, "192.0.2.2:6000", "127.0.0.1:9000")
	far := up("from-a", false, "192.0.2.1:40000", "0.0.0.0:6000")
	for name, one := range map[string]struct {
		pairs         []PairedTunnel
		local, remote string
		tunnel        string // of the pair that has the connection
		lane, up      bool
	}{
		"a lane at the near end":        {[]PairedTunnel{near}, "192.0.2.1:41000", "192.0.2.2:6000", "files", true, true},
		"a lane at the far end":         {[]PairedTunnel{far}, "192.0.2.2:6000", "192.0.2.1:41000", "from-a", true, true},
		"another port of the far relay": {[]PairedTunnel{near}, "192.0.2.1:41000", "192.0.2.2:6001", "", false, false},
		"a client of the near end":      {[]PairedTunnel{near}, "127.0.0.1:9000", "127.0.0.1:40000", "", false, false},
		"a client, without a session":   {[]PairedTunnel{lost}, "127.0.0.1:9000", "127.0.0.1:40000", "files", false, false},
		"after an upgrade":              {[]PairedTunnel{lost, near}, "192.0.2.1:41000", "192.0.2.2:6000", "files", true, true},
		"no pair":                       {nil, "192.0.2.1:41000", "192.0.2.2:6000", "", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := &Examiner{Pairs: func(context.Context) []PairedTunnel { return one.pairs }}
			got := e.pairOf(t.Context(), at(one.local), at(one.remote))
			if (got != nil) != (one.tunnel != "") {
				t.Fatalf("pair %+v", got)
			}
			if got != nil && (got.Tunnel != one.tunnel || got.Lane != one.lane || got.Up != one.up) {
				t.Errorf("pair %+v", got)
			}
		})
	}
	end := func(text string) End {
		if text == "" {
			return End{}
		}
		e, err := ParseEnd(t.Context(), text)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	for name, one := range map[string]struct {
		pairs         []PairedTunnel
		local, remote string
		found         bool
	}{
		"the far relay":                  {[]PairedTunnel{lost}, "", "192.0.2.2:6000", true},
		"its host":                       {[]PairedTunnel{lost}, "", "192.0.2.2", true},
		"its port":                       {[]PairedTunnel{lost}, "", ":6000", true},
		"the clients' port":              {[]PairedTunnel{lost}, ":9000", "", true},
		"another host":                   {[]PairedTunnel{lost}, "", "192.0.2.3:6000", false},
		"another port":                   {[]PairedTunnel{lost}, "", "192.0.2.2:6001", false},
		"any connection of a process":    {[]PairedTunnel{lost}, "", "", false},
		"it has a session":               {[]PairedTunnel{near}, "", "192.0.2.2:6000", false},
		"it has another session":         {[]PairedTunnel{lost, near}, "", "192.0.2.2:6000", false},
		"the far end knows no problem":   {[]PairedTunnel{down("from-a", false, "192.0.2.1:40000", "0.0.0.0:6000")}, ":6000", "", false},
		"a far relay without an address": {[]PairedTunnel{{Pair: lost.Pair, Near: true}}, "", "192.0.2.2:6000", false},
	} {
		t.Run("down/"+name, func(t *testing.T) {
			e := &Examiner{Pairs: func(context.Context) []PairedTunnel { return one.pairs }}
			if got := e.pairDown(t.Context(), end(one.local), end(one.remote)); (got != nil) != one.found {
				t.Errorf("pair %+v", got)
			}
		})
	}
	if got := (&Examiner{}).pairOf(t.Context(), at("127.0.0.1:1"), at("127.0.0.1:2")); got != nil {
		t.Errorf("a pair without relays: %+v", got)
	}
}
