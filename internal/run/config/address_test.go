package config

import (
	"slices"
	"testing"
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
