package config

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what loading the files gives into the archives")

// testLoader resolves only a few names.
func testLoader() Loader {
	names := map[string][]netip.Addr{
		"relay-a": {netip.MustParseAddr("10.10.10.20")},
		"dual":    {netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("::ffff:192.0.2.1")},
	}
	return Loader{Resolve: func(_ context.Context, host string) ([]netip.Addr, error) {
		if a, ok := names[host]; ok {
			return a, nil
		}
		return nil, fmt.Errorf("no such host %s", host)
	}}
}

func TestEveryMistakeHasItsMessage(t *testing.T) {
	for _, c := range fileCases(t, "bad") {
		t.Run(c.subject+"/"+c.name, func(t *testing.T) {
			loaded, err := c.load(t)
			if err == nil {
				t.Fatalf("loaded as %+v", loaded)
			}
			checkErrors(t, err)
			c.check(t, err.Error()+"\n")
			var all Errors
			if !errors.As(err, &all) {
				t.Fatalf("%T has no positions", err)
			}
			if n := len(all); n != 1 && c.name != "several" {
				t.Errorf("one mistake gives %d errors:\n%v", n, err)
			}
		})
	}
}

// checkErrors checks properties of every mistake: it has a position and a fix,
// and has the common form.
func checkErrors(t *testing.T, err error) {
	t.Helper()
	var all Errors
	if !errors.As(err, &all) || len(all) == 0 {
		t.Fatalf("%T is not a list of mistakes: %v", err, err)
	}
	for _, e := range all {
		if e.At.Flag == "" && (e.At.File == "" || e.At.Line < 1 || e.At.Column < 1) {
			t.Errorf("no position: %v", e)
		}
		if e.Problem == "" || e.Fix == "" {
			t.Errorf("no problem or no fix: %v", e)
		}
		if strings.Contains(e.Problem, "\n") || strings.HasSuffix(e.Fix, ".") {
			t.Errorf("not in the style of a message: %q", e.Error())
		}
	}
}

func TestGoodFilesLoad(t *testing.T) {
	for _, c := range fileCases(t, "good") {
		t.Run(c.subject+"/"+c.name, func(t *testing.T) {
			loaded, err := c.load(t)
			if err != nil {
				t.Fatal(err)
			}
			c.check(t, differences(loaded))
		})
	}
}

// TestDefaults holds every default that is not zero.
func TestDefaults(t *testing.T) {
	for _, c := range fileCases(t, "defaults") {
		loaded, err := c.load(t)
		if err != nil {
			t.Fatal(err)
		}
		c.check(t, listing{}.of(loaded, Config{}))
	}
}

func TestFlagsAreReadLikeAFile(t *testing.T) {
	flags := []Flag{
		{"--listen", "tunnel.listen", []string{"10.10.10.20:6000"}},
		{"--forward", "tunnel.forward", []string{"rhel-vm-2:6000", "rhel-vm-3:6000"}},
		{"--allow", "tunnel.allow", []string{"10.10.0.0/16"}},
		{"--wan-cc", "tunnel.wan.congestion_control", []string{"bbr"}},
		{"--wan-rate", "tunnel.wan.rate", []string{"1Gbit"}},
		{"--drain-timeout", "drain_timeout", []string{"5s"}},
		{"--log-format", "log.format", []string{"json"}},
	}
	got, err := testLoader().Load(t.Context(), "", flags...)
	if err != nil {
		t.Fatal(err)
	}
	want, err := testLoader().Parse(t.Context(), "f.yaml", []byte(`
drain_timeout: 5s
log: {format: json}
tunnels:
  - name: main
    listen: 10.10.10.20:6000
    forward: [rhel-vm-2:6000, rhel-vm-3:6000]
    allow: 10.10.0.0/16
    wan: {congestion_control: bbr, rate: 1Gbit}
`))
	if err != nil {
		t.Fatal(err)
	}
	opts := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	addrs := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	ports := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
	if diff := cmp.Diff(want, got, opts, addrs, ports); diff != "" {
		t.Errorf("flags and file differ (-file +flags):\n%s", diff)
	}
}

func TestBadFlags(t *testing.T) {
	listen := Flag{"--listen", "tunnel.listen", []string{"10.10.10.20:6000"}}
	forward := Flag{"--forward", "tunnel.forward", []string{"rhel-vm-2:6000"}}
	tests := []struct {
		name  string
		flags []Flag
		want  string
	}{
		{"bad address", []Flag{{"--listen", "tunnel.listen", []string{"10.10.10.20"}}, forward},
			`--listen: "10.10.10.20" has no port; write "10.10.10.20:PORT"`},
		{"no forward", []Flag{listen},
			`command line: --forward is missing; add where it leads, such as --forward rhel-vm-2:6000`},
		{"no listen", []Flag{forward},
			`command line: --listen is missing; add where it listens, such as --listen 10.10.10.20:6000`},
		{"bad value", []Flag{listen, forward, {"--wan-rate", "tunnel.wan.rate", []string{"fast"}}},
			`--wan-rate: rate cannot be "fast"; write it in bits per second, like 64kbit, 100Mbit or 2.5Gbit`},
		{"several for one", []Flag{listen, forward, {"--max-flows", "tunnel.max_flows", []string{"1", "2"}}},
			`--max-flows: max_flows must be a single value, not a list; give the flag once`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := testLoader().Load(t.Context(), "", tt.flags...)
			if err == nil || err.Error() != tt.want {
				t.Errorf("got %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestFlagsOverrideAFile(t *testing.T) {
	file := []byte("drain_timeout: 5s\nlog: {format: json, level: debug}\ntunnels: [{name: a, listen: ':1', forward: 'h:1'}]\n")
	c, err := testLoader().Parse(t.Context(), "f.yaml", file,
		Flag{"--log-level", "log.level", []string{"warn"}},
		Flag{"--drain-timeout", "drain_timeout", []string{"7s"}},
		Flag{"--workers", "workers", []string{"3"}})
	if err != nil {
		t.Fatal(err)
	}
	if c.Log != (Log{"json", "warn"}) || c.DrainTimeout.Seconds() != 7 || c.Workers != 3 {
		t.Errorf("got %+v", c)
	}
	_, err = testLoader().Parse(t.Context(), "f.yaml", file, Flag{"--workers", "workers", []string{"none"}})
	if want := `--workers: workers must be a whole number, not "none"; use a number from 1 to 1024`; err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

func TestLocalhostIsResolvedBySystem(t *testing.T) {
	c, err := Loader{}.Parse(t.Context(), "f.yaml", []byte("tunnels: [{name: a, listen: 'localhost:6000', forward: 'h:1'}]"))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range c.Tunnels[0].Listen {
		if !l.Addr.IsLoopback() {
			t.Errorf("localhost is %s", l.Addr)
		}
	}
}

func TestWithoutIPv6WildcardIsIPv4(t *testing.T) {
	l := testLoader()
	l.NoIPv6 = true
	c, err := l.Parse(t.Context(), "f.yaml", []byte("tunnels: [{name: a, listen: ':6000', forward: 'h:1'}]"))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Tunnels[0].Addresses(); len(got) != 1 || got[0].String() != "0.0.0.0:6000" {
		t.Errorf("listens on %v", got)
	}
}

func TestFileThatCannotBeRead(t *testing.T) {
	_, err := Loader{}.Load(t.Context(), filepath.Join(t.TempDir(), "absent.yaml"))
	if err == nil || !strings.Contains(err.Error(), "absent.yaml: cannot be read: no such file or directory; ") {
		t.Errorf("got %v", err)
	}
}

func FuzzLoad(f *testing.F) {
	for _, dir := range []string{"good", "bad"} {
		for _, c := range fileCases(f, dir) {
			f.Add(c.yaml)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := testLoader().Parse(context.Background(), "f.yaml", data)
		if err != nil {
			checkErrors(t, err)
			return
		}
		names := map[string]bool{}
		for _, tun := range c.Tunnels {
			intercepts := tun.Intercept.Enabled()
			original := tun.Original.Enabled()
			dialsOriginal := original || intercepts && !tun.Pair.Paired()
			if tun.Name == "" || names[tun.Name] || (len(tun.Listen) == 0) != intercepts || tun.LeadsAsDialed() && !intercepts && !original ||
				intercepts && len(tun.Intercept.To) == 0 || (tun.Source == "") == dialsOriginal || original && !tun.PairFrom.Paired() ||
				original && tun.Source == SourceClient && len(tun.Original.From) == 0 {
				t.Errorf("an invalid tunnel was accepted: %+v", tun)
			}
			names[tun.Name] = true
			for _, fw := range tun.Forward {
				want := tun.portCount()
				if tun.Pair.Paired() {
					want = 1
				}
				if fw.Ports.Len() != want || fw.Host == "" || fw.Ports.First == 0 {
					t.Errorf("ports do not map one to one: %+v", tun)
				}
			}
			if tun.PairFrom.Paired() && tun.Listen[0].Ports.Len() != 1 {
				t.Errorf("a pair has more than one port: %+v", tun)
			}
		}
	})
}

func TestExampleLoads(t *testing.T) {
	c, err := testLoader().Parse(t.Context(), "example.yaml", Example)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Tunnels) != 3 {
		t.Errorf("the example has %d tunnels", len(c.Tunnels))
	}
}

func TestDiff(t *testing.T) {
	parse := func(s string) *Config {
		c, err := testLoader().Parse(t.Context(), "f.yaml", []byte(s))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	before := parse("workers: 1\ntunnels:\n- {name: same, listen: ':1', forward: 'h:1', wan: {dscp: ef}}\n- {name: gone, listen: ':2', forward: 'h:1'}\n- {name: other, listen: ':3', forward: 'h:1'}\n")
	after := parse("workers: 2\ntunnels:\n- {name: new, listen: ':2', forward: 'h:1'}\n- {name: other, listen: ':3', forward: 'h:2'}\n- {listen: ':1', forward: 'h:1', name: same, wan: {dscp: 46}}\n")
	want := Changes{Added: []string{"new"}, Changed: []string{"other"}, Removed: []string{"gone"}, Unchanged: []string{"same"}}
	if diff := cmp.Diff(want, Diff(before, after)); diff != "" {
		t.Error(diff)
	}
	if got := NeedsRestart(before, after); len(got) != 1 || got[0] != "workers" {
		t.Errorf("needs a restart for %v", got)
	}
}
