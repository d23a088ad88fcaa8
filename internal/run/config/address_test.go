package config

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"longhaul/internal/words/portrange"
)

// TestAddressesInBraces reads bracketed lists within braces, where the YAML
// parser takes host:port for a mapping.
func TestAddressesInBraces(t *testing.T) {
	for text, want := range map[string][]string{
		`[10.30.30.2:6000, b:6000]`:                {"10.30.30.2:6000", "b:6000"},
		`[b:6000, {to: c:6000, weight: 2}]`:        {"b:6000", "c:6000"},
		`["[2001:db8::1]:6000", 'd.example:6000']`: {"[2001:db8::1]:6000", "d.example:6000"},
		`[{to: "b:6000"}]`:                         {"b:6000"},
		`b:6000`:                                   {"b:6000"},
	} {
		for _, whole := range []string{
			"tunnels: [{name: a, listen: \"10.0.0.1:6000\", forward: " + text + "}]\n",
			"tunnels:\n  - name: a\n    listen: \"10.0.0.1:6000\"\n    forward: " + text + "\n",
		} {
			c, err := testLoader().Parse(t.Context(), "x.yaml", []byte(whole))
			if err != nil {
				t.Errorf("%s: %v", whole, err)
				continue
			}
			var got []string
			for _, f := range c.Tunnels[0].Forward {
				got = append(got, f.String())
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %q", whole, got)
			}
		}
	}
	for _, bad := range []string{`[b: 6000]`, `["b":6000]`, `[b:{to: c:1}]`} {
		if c, err := testLoader().Parse(t.Context(), "x.yaml", []byte("tunnels: [{name: a, listen: \"10.0.0.1:6000\", forward: "+bad+"}]\n")); err == nil {
			t.Errorf("%s is read as %v", bad, c.Tunnels[0].Forward)
		}
	}
}

// TestFirstClashes compares random addresses each with each.
func TestFirstClashes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	addrs := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	for _, a := range []string{"10.0.0.1", "10.0.0.2", "2001:db8::1", "fe80::1%lo", "fe80::1%eth0"} {
		addrs = append(addrs, netip.MustParseAddr(a))
	}
	clashes := 0
	for range 2000 {
		all := make([]placedListen, random.IntN(12))
		for i := range all {
			first := uint16(1 + random.IntN(12))
			all[i].Listen = Listen{addrs[random.IntN(len(addrs))], portrange.Range{First: first, Last: first + uint16(random.IntN(4))}}
			if random.IntN(2) == 0 {
				all[i].tunnel = new(string)
			}
		}
		for i, got := range firstClashes(all) {
			want := slices.IndexFunc(all[:i+1], func(o placedListen) bool { return all[i].overlaps(o) })
			if got != want {
				t.Fatalf("%v: address %d clashes first with %d, want %d", all, i, got, want)
			}
			if got != i {
				clashes++
			}
		}
	}
	if clashes < 1000 {
		t.Errorf("only %d clashes", clashes)
	}
}

// TestRangesCostAsPorts holds that a file with ranges of ports takes no more memory than one with as many single
// ports.
func TestRangesCostAsPorts(t *testing.T) {
	allocated := func(width int) uint64 {
		var file strings.Builder
		file.WriteString("tunnels:\n")
		for i := range 15 {
			ports := portrange.Range{First: uint16(1 + i*maxRange), Last: uint16(i*maxRange + width)}
			fmt.Fprintf(&file, "  - {name: t%d, listen: '127.0.0.1:%s', forward: '10.0.0.2:%s'}\n", i, ports, ports)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := testLoader().Parse(t.Context(), "x.yaml", []byte(file.String()))
		runtime.ReadMemStats(&after)
		if err != nil {
			t.Fatal(err)
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	allocated(1)
	if one, many := allocated(1), allocated(maxRange); many > 2*one {
		t.Errorf("15 ranges of %d ports take %d bytes, and 15 ports %d", maxRange, many, one)
	}
}
