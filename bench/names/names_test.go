package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"longhaul/bench/kit"
	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) {
	nettest.AtOnce(2)
	nettest.Main(m)
}

// TestJoin runs some dozen flows through every way, and some pairs of clients with one identifier.
func TestJoin(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	r, err := suite().Run(t.Context(), kit.Options{Program: nettest.Longhaul(t), Cases: suite().CaseNames(), Through: suite().Ways(), Repeat: 1, Seed: 1, Flows: 60})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Cases {
		for _, f := range c.Errors {
			t.Errorf("%s through %s: %s", c.Name, f.Way, f.Error)
		}
		for _, f := range c.Figures {
			if f.OK != nil && !*f.OK {
				t.Errorf("%s through %s: %s: %v, like %s", c.Name, f.Way, f.Name, f.Runs, f.First)
			}
		}
	}
}

// TestJoinAll joins histories with a mistake each.
func TestJoinAll(t *testing.T) {
	at := netip.MustParseAddrPort
	one, other := flow.NewName(), flow.NewName()
	first := &client{kind: ends, token: token{1}, address: at("10.0.0.1:1")}
	second := &client{kind: refused, token: token{2}, address: at("10.0.0.1:2")}
	record := func(n flow.Name, c *client, peer string) monitor.Record {
		return monitor.Record{Record: flow.Record{Name: n, Client: flow.Address{AddrPort: c.address}, Peer: peer}}
	}
	sights := func(n flow.Name, c *client) map[token][]sight {
		return map[token][]sight{first.token: {{c.address, n}}}
	}
	good := func() []account {
		return []account{
			{"a", "site-b", []monitor.Record{record(one, first, "site-b"), record(other, second, "site-b")}},
			{"b", "site-a", []monitor.Record{record(other, second, "site-a"), record(one, first, "site-a")}},
		}
	}
	for _, tt := range []struct {
		name   string
		change func([]account)
		seen   map[token][]sight
		want   string // the counts: lost, false, twice, nameless, strange, peers
		joined int
	}{
		{"right", func([]account) {}, sights(one, first), "000000", 2},
		{"exchanged", func(a []account) { r := a[1].records; r[0].Name, r[1].Name = one, other }, sights(one, first), "020000", 0},
		{"exchanged at the target", func([]account) {}, sights(other, first), "010000", 1},
		{"missing at the last", func(a []account) { a[1].records = a[1].records[:1] }, sights(one, first), "100000", 1},
		{"missing at the first", func(a []account) { a[0].records = a[0].records[:1] }, sights(one, first), "100010", 1},
		{"another name", func(a []account) { a[1].records[0].Name = flow.NewName() }, sights(one, first), "100010", 1},
		{"no name", func(a []account) { a[1].records[0].Name = flow.Name{} }, sights(one, first), "100100", 1},
		{"twice", func(a []account) { a[1].records = append(a[1].records, a[1].records[0]) }, sights(one, first), "001000", 1},
		{"another peer", func(a []account) { a[0].records[0].Peer = "site-c" }, sights(one, first), "000001", 2},
		{"no peer", func(a []account) { a[0].records[0].Peer = "" }, sights(one, first), "000001", 2},
		{"a peer without pairs", func(a []account) { a[0].peer, a[0].records[1].Peer = "", "" }, sights(one, first), "000001", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all := good()
			tt.change(all)
			got := joinAll([]*client{first, second}, tt.seen, all)
			var counts strings.Builder
			for _, c := range []count{got.lost, got.false, got.twice, got.nameless, got.strange, got.peers} {
				counts.WriteByte('0' + byte(c.n))
			}
			if counts.String() != tt.want || got.joined != tt.joined || got.expected != 2 {
				t.Errorf("%s, %d of %d joined; want %s, %d of 2: %+v", counts.String(), got.joined, got.expected, tt.want, tt.joined, got)
			}
		})
	}
}

func TestNoteTwins(t *testing.T) {
	id := []byte("an identifier")
	given, other, third := flow.NameOf(id), flow.NewName(), flow.NewName()
	for _, tt := range []struct {
		a, b flow.Name
		want float64
	}{{given, other, 0}, {other, given, 0}, {given, given, 1}, {other, third, 1}, {other, other, 1}} {
		a, b := &client{id: id}, &client{id: id}
		noteTwins([][2]*client{{a, b}}, map[*client]flow.Name{a: tt.a, b: tt.b}, func(m kit.Measured) {
			if strings.HasPrefix(m.Name, "of these") && m.Value != tt.want {
				t.Errorf("%v and %v: %v, want %v", tt.a, tt.b, m.Value, tt.want)
			}
		})
	}
}

func TestReadLog(t *testing.T) {
	file := filepath.Join(t.TempDir(), "haproxy.log")
	name := flow.NewName()
	nettest.Must(t, os.WriteFile(file, []byte("[NOTICE] (1) : New worker\nflow "+name.String()+" 10.10.10.10 10001\n"), 0o600))
	lines, err := readLog(file)
	if err != nil || len(lines) != 1 || lines[netip.MustParseAddrPort("10.10.10.10:10001")] != name.String() {
		t.Errorf("%v: %v", lines, err)
	}
	for _, wrong := range []struct {
		said string
		want float64
	}{{name.String(), 0}, {flow.NewName().String(), 1}} {
		c := &client{address: netip.MustParseAddrPort("10.10.10.10:10001")}
		noteHAProxy([]*client{c}, map[netip.AddrPort]string{c.address: wrong.said}, map[*client]flow.Name{c: name}, func(m kit.Measured) {
			if strings.HasPrefix(m.Name, "names") && m.Value != wrong.want {
				t.Errorf("%v, want %v", m.Value, wrong.want)
			}
		})
	}
}
