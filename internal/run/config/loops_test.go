package config

import (
	"net/netip"
	"strings"
	"testing"
)

func TestLoops(t *testing.T) {
	loader := Loader{OwnAddresses: func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("192.0.2.7")} }, Resolve: PlaceholderResolver()}
	for name, c := range map[string]struct{ tunnels, want string }{
		"itself":                            {"listen: 10.0.0.1:6000, forward: 10.0.0.1:6000", "f:2:48: 10.0.0.1:6000 leads back into this tunnel"},
		"itself by a wildcard and loopback": {"listen: ':6000', forward: 127.0.0.1:6000", "leads back into this tunnel"},
		"itself by localhost":               {"listen: ':6000', forward: localhost:6000", "leads back into this tunnel"},
		"itself by a wildcard and IPv6":     {"listen: '[::]:6000', forward: '[::1]:6000'", "leads back into this tunnel"},
		"itself by an own address":          {"listen: ':6000', forward: 192.0.2.7:6000", "leads back into this tunnel"},
		"itself by a name":                  {"listen: relay-a:6000, forward: Relay-A.:6000", "leads back into this tunnel"},
		"itself by a second hop":            {"listen: ':6000', forward: ['far:6000', '127.0.0.1:6000']", "127.0.0.1:6000 leads back into this tunnel"},
		"a range":                           {"listen: ':6000-6010', forward: 127.0.0.1:6000-6010", "127.0.0.1:6000-6010 leads back into this tunnel"},
		"two": {"listen: ':6000', forward: 127.0.0.1:7000\nlisten: 127.0.0.1:7000, forward: 127.0.0.1:6000",
			"f:3:49: 127.0.0.1:6000 leads back in a loop: t0 -> t1 -> t0; let one of these tunnels forward to another host"},
		"three, by an address of the file": {"listen: 10.0.0.1:1, forward: 10.0.0.1:2\nlisten: ':2', forward: localhost:3\nlisten: ':3', forward: 10.0.0.1:1",
			"10.0.0.1:1 leads back in a loop: t0 -> t1 -> t2 -> t0"},
		"a pair": {"listen: '127.0.0.1:6000-6003', forward: 127.0.0.1:7000, pair: b\nlisten: ':7000', forward: 127.0.0.1:6000-6003, pair_from: a",
			"127.0.0.1:6000-6003 leads back in a loop: t0 -> t1 -> t0"},
		"part of the range of a pair": {"listen: '127.0.0.1:6000-6003', forward: 127.0.0.1:7000, pair: b\nlisten: ':7000', forward: 127.0.0.1:8000-8003, pair_from: a\nlisten: 127.0.0.1:8003, forward: 127.0.0.1:6003",
			"127.0.0.1:6003 leads back in a loop: t0 -> t1 -> t2 -> t0"},
		"part of a range": {"listen: ':6000-6003', forward: 127.0.0.1:7002-7005\nlisten: ':7005', forward: 127.0.0.1:6003",
			"127.0.0.1:6003 leads back in a loop: t0 -> t1 -> t0"},

		"a chain":                     {"listen: ':6000', forward: 127.0.0.1:7000\nlisten: ':7000', forward: far:7000", ""},
		"two to one":                  {"listen: ':6000', forward: 127.0.0.1:8000\nlisten: ':7000', forward: 127.0.0.1:8000\nlisten: ':8000', forward: far:7000", ""},
		"the same port elsewhere":     {"listen: ':6000', forward: 192.0.2.8:6000", ""},
		"the same port of a name":     {"listen: ':6000', forward: far:6000", ""},
		"another address":             {"listen: 10.0.0.1:6000, forward: 10.0.0.2:6000", ""},
		"another loopback address":    {"listen: 127.0.0.1:6000, forward: 127.0.0.2:6000", ""},
		"IPv6 to a wildcard of IPv4":  {"listen: 0.0.0.0:6000, forward: '[::1]:6000'", ""},
		"a range to the next ports":   {"listen: ':6000-6010', forward: 127.0.0.1:6011-6021", ""},
		"a range that leaves at last": {"listen: ':6000-6010', forward: 127.0.0.1:6001-6011", ""},
		"a range, and another port":   {"listen: ':6000-6003', forward: 127.0.0.1:7002-7005\nlisten: ':7005', forward: 127.0.0.1:6009", ""},
		"a pair to the next ports":    {"listen: '127.0.0.1:6000-6003', forward: 127.0.0.1:7000, pair: b\nlisten: ':7000', forward: 127.0.0.1:6001-6004, pair_from: a", ""},
		"back to another port of a":   {"listen: ':6000-6001', forward: 127.0.0.1:7000-7001\nlisten: ':7000', forward: 127.0.0.1:6001", ""},
	} {
		var file strings.Builder
		file.WriteString("tunnels:\n")
		for i, line := range strings.Split(c.tunnels, "\n") {
			file.WriteString("  - {name: t" + string(rune('0'+i)) + ", " + line + ", allow: 10.0.0.0/8}\n")
		}
		_, err := loader.Parse(t.Context(), "f", []byte(file.String()))
		switch {
		case (err == nil) != (c.want == ""):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		case err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")):
			t.Errorf("%s: %v, want only %q", name, err, c.want)
		}
	}
}
