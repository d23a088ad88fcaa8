package soak

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"longhaul/internal/nettest"
)

// The lab needs namespaces. The test binary is the relay that lies, too.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "relay" && os.Args[2] == "--config" {
		if err := lie(os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	nettest.Main(m)
}

// options are those of a run that takes little time.
func options(part string) Options {
	return Options{Parts: []string{part}, Seed: 1, Time: 20 * time.Second, Flows: 32, Slow: 5 * time.Second, Connections: 2000, Reloads: 100}
}

// runPart runs a part with the real program, and fails the test on a violation.
func runPart(t *testing.T, o Options) Result {
	t.Helper()
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	o.Program = nettest.Longhaul(t)
	var said []string
	o.Say = func(line string) { said = append(said, line) }
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(said, "\n"))
	}
	var table strings.Builder
	r.Write(&table)
	t.Logf("\n%s", &table)
	if n := r.Violations(); n > 0 {
		t.Errorf("%d violations, seed %d", n, o.Seed)
	}
	return r
}

func TestMixed(t *testing.T) {
	o := options(PartMixed)
	o.Seed = uint64(time.Now().UnixNano())%1_000_000 + 1
	if testing.Short() {
		o.Time = 10 * time.Second
	}
	m := runPart(t, o).Mixed
	whole := 0
	for _, e := range m.Endings {
		whole += e.Whole
		if e.Flows == 0 {
			t.Errorf("no flow was of the ending %q", e.Ending)
		}
	}
	if whole == 0 || m.Bytes == 0 {
		t.Error("no flow arrived whole")
	}
	if testing.Short() {
		return // under the race detector others use the machine as well, and not everything may have its turn
	}
	for _, k := range eventKinds {
		if m.Events[k.kind] == 0 {
			t.Errorf("no %s", k.kind)
		}
	}
	if m.CutOff == 0 || len(m.Samples) == 0 || m.Strangers.SYNs == 0 || m.Strangers.Silent == 0 || m.Strangers.Garbled == 0 {
		t.Errorf("%d clients were cut off, %d samples, strangers %+v: each must be above 0", m.CutOff, len(m.Samples), m.Strangers)
	}
}

func TestSlowReader(t *testing.T) {
	if s := runPart(t, options(PartSlow)).Slow; s.Bytes == 0 {
		t.Error("nothing was read")
	}
}

func TestChurn(t *testing.T) {
	o := options(PartChurn)
	if testing.Short() {
		o.Connections, o.Reloads = 500, 30
	}
	if c := runPart(t, o).Churn; c.Connections < o.Connections || c.Reloads != o.Reloads {
		t.Errorf("%d connections, %d reloads", c.Connections, c.Reloads)
	}
}

func TestOptions(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"time": func(o *Options) { o.Time = 0 }, "flows": func(o *Options) { o.Flows = -1 }, "slow": func(o *Options) { o.Slow = -1 },
		"connections": func(o *Options) { o.Connections = 0 }, "reloads": func(o *Options) { o.Reloads = 0 },
	} {
		o := options(PartMixed)
		change(&o)
		if _, err := Run(t.Context(), o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestGrowth holds the rule against series of which the answer is known.
func TestGrowth(t *testing.T) {
	series := func(bytes, descriptors, goroutines func(i int) int) []Sample {
		var all []Sample
		for i := range 20 {
			all = append(all, Sample{Seconds: float64(10 * i), ResidentBytes: int64(bytes(i)), Descriptors: descriptors(i), Goroutines: goroutines(i), Flows: int64(i % 7)})
		}
		return all
	}
	flat := func(n int) func(int) int { return func(i int) int { return n + i%3 } }
	ofFlows := func(i int) int { return 30 + 2*(i%7) } // two for each
	for _, c := range []struct {
		name    string
		samples []Sample
		want    string
	}{
		{"flat", series(flat(50e6), ofFlows, flat(12)), ""},
		{"memory", series(func(i int) int { return 50e6 + i*1e6 }, ofFlows, flat(12)), "resident memory"},
		{"descriptors", series(flat(50e6), func(i int) int { return ofFlows(i) + 4*i }, flat(12)), "descriptors"},
		{"goroutines", series(flat(50e6), ofFlows, func(i int) int { return 12 + i }), "goroutines"},
		{"too short", series(func(i int) int { return 50e6 + i*1e6 }, ofFlows, flat(12))[:6], ""},
		{"too few", series(func(i int) int { return i * 1e9 }, ofFlows, flat(1))[:3], ""},
	} {
		got := strings.Join(growth(c.samples), "; ")
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

func TestLoggedReasons(t *testing.T) {
	w := &world{reasons: map[netip.AddrPort][]string{}}
	w.nearSays(`time=2026-01-02T03:04:05Z level=INFO msg=flow tunnel=main client=10.10.10.10:4711 target=10.30.30.2:6000 bytes_up=3 end=target-reset ended_by=target error="connection reset by peer"`)
	w.nearSays(`time=2026-01-02T03:04:05Z level=INFO msg=flow tunnel=main client=10.10.10.10:4712 end=end ended_by=both`)
	w.nearSays(`time=2026-01-02T03:04:05Z level=INFO msg=listening tunnel=main client=10.10.10.10:4713 end=idle-timeout`)
	for port, want := range map[string]string{"4711": `target-reset ended_by=target error="connection reset by peer"`, "4712": "", "4713": ""} {
		client := netip.MustParseAddrPort("10.10.10.10:" + port)
		if why, ok := w.logged(client); why != want || ok != (want != "") {
			t.Errorf("port %s: %q, %v", port, why, ok)
		}
		if why, ok := w.logged(client); ok {
			t.Errorf("port %s: %q again", port, why)
		}
	}
}
