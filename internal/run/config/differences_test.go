package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"longhaul/test/nettest"
)

func TestDifferences(t *testing.T) {
	const tunnel = "tunnels:\n- {name: a, listen: ':1', forward: 'h:1'"
	for _, tt := range []struct {
		name, before, after string
		flags               []Flag
		want                []string // "TUNNEL DIFFERENCE"
	}{
		{"nothing", tunnel + "}", tunnel + "} # a comment", nil, nil},
		{"a list of one", tunnel + ", allow: 10.0.0.0/8}", tunnel + ", allow: [10.0.0.0/8]}", nil, nil},
		{"a value", tunnel + "}", "tunnels:\n- {name: a, listen: ':1', forward: 'h:2'}", nil, []string{"a forward: h:1 -> h:2"}},
		{"nested and new keys", tunnel + ", wan: {rate: 1Gbit, dscp: ef}}", tunnel + ", wan: {rate: 2Gbit}, idle_timeout: 5m}", nil,
			[]string{"a idle_timeout: not set -> 5m", "a wan.dscp: ef -> not set", "a wan.rate: 1Gbit -> 2Gbit"}},
		{"items of a list", tunnel + ", allow: [10.0.0.0/8, 10.1.0.0/16]}", tunnel + ", allow: [10.1.0.0/16, 10.2.0.0/16]}", nil,
			[]string{"a allow: without 10.0.0.0/8, with 10.2.0.0/16"}},
		{"an item more", tunnel + ", allow: 10.0.0.0/8}", tunnel + ", allow: [10.0.0.0/8, 10.1.0.0/16]}", nil, []string{"a allow: with 10.1.0.0/16"}},
		{"an item less", tunnel + ", allow: [10.0.0.0/8, 10.1.0.0/16]}", tunnel + ", allow: 10.0.0.0/8}", nil, []string{"a allow: without 10.1.0.0/16"}},
		{"another order", tunnel + ", allow: [10.0.0.0/8, 10.1.0.0/16]}", tunnel + ", allow: [10.1.0.0/16, 10.0.0.0/8]}", nil,
			[]string{"a allow: [10.0.0.0/8, 10.1.0.0/16] -> [10.1.0.0/16, 10.0.0.0/8]"}},
		{"hops", "tunnels:\n- {name: a, listen: ':1', forward: [{to: 'h:1', weight: 2}, 'i:1']}", "tunnels:\n- {name: a, listen: ':1', forward: [{to: 'h:1', weight: 3}, 'i:1']}", nil,
			[]string{"a forward: without {to: h:1, weight: 2}, with {to: h:1, weight: 3}"}},
		{"the process and defaults", "defaults: {wan: {rate: 1Gbit}}\n" + tunnel + "}", "defaults: {wan: {rate: 2Gbit}}\nlog: {level: debug}\n" + tunnel + "}", nil,
			[]string{" defaults.wan.rate: 1Gbit -> 2Gbit", " log.level: not set -> debug"}},
		{"a flag wins", "workers: 1\n" + tunnel + "}", "workers: 2\n" + tunnel + "}", []Flag{{"--workers", "workers", []string{"3"}}}, nil},
		{"tunnels that only one has", tunnel + "}", "tunnels:\n- {name: b, listen: ':1', forward: 'h:1'}", nil, nil},
		{"a value of a terminal's language", tunnel + "}", tunnel + ", check: {key_file: \"/a\\e[2J\"}}", nil, []string{`a check.key_file: not set -> /a\x1b[2J`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parse := func(text string) *Config {
				c, err := testLoader().Parse(t.Context(), "f.yaml", []byte(text), tt.flags...)
				nettest.Must(t, err)
				return c
			}
			var got []string
			for _, d := range Differences(parse(tt.before), parse(tt.after), tt.flags...) {
				got = append(got, d.Tunnel+" "+d.String())
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	fromFlags, err := testLoader().Load(t.Context(), "", Flag{"--listen", "tunnel.listen", []string{":1"}}, Flag{"--forward", "tunnel.forward", []string{"h:1"}})
	nettest.Must(t, err)
	if all := Differences(fromFlags, fromFlags); all != nil {
		t.Errorf("flags alone differ in %v", all)
	}
}

// TestDifferencesCoverTheCases holds for every good file that it differs from one without its tunnels'
// keys in words that the file has.
func TestDifferencesCoverTheCases(t *testing.T) {
	n := 0
	for _, c := range fileCases(t, "good") {
		loaded, err := testLoader().Parse(t.Context(), c.file(), c.yaml)
		nettest.Must(t, err)
		bare := *loaded
		bare.Files = Files{{c.file(), []byte("tunnels: []\n")}}
		for _, d := range Differences(&bare, loaded) {
			last := d.Key[strings.LastIndexByte(d.Key, '.')+1:]
			if d.Before != "" || d.After == "" || !slices.Contains(strings.FieldsFunc(string(c.yaml), func(r rune) bool { return !(r == '_' || r >= 'a' && r <= 'z') }), last) {
				t.Errorf("%s: %+v", c.name, d)
			}
			n++
		}
	}
	if n < 50 {
		t.Errorf("%d differences in all", n)
	}
}
