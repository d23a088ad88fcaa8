package main

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"longhaul/lab/progress"
	"longhaul/test/nettest"
)

// The lab needs namespaces. The test binary is also the lying relay.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "relay" && os.Args[2] == "--config" {
		if err := lie(os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	nettest.AtOnce(3) // they mostly wait
	nettest.MainWithoutLeaks(m)
}

// options are those of a run that takes little time.
func options(part string) Options {
	return Options{Parts: []string{part}, Seed: 1, Time: 3 * time.Second, Flows: 32, Slow: 500 * time.Millisecond, Connections: 400, Reloads: 30}
}

// shorten has flows wait less and end sooner until the test ends.
func shorten(t *testing.T) {
	idle, read, late, flows, looks := longestIdle, longestRead, lateTarget, slowFlows, fillLooks
	longestIdle, longestRead, slowFlows, fillLooks = 300*time.Millisecond, 500*time.Millisecond, 2, 1
	t.Cleanup(func() {
		longestIdle, longestRead, lateTarget, slowFlows, fillLooks = idle, read, late, flows, looks
	})
}

// runPart runs a part with the real program.
func runPart(t *testing.T, o Options) Result {
	t.Helper()
	nettest.RequireSandbox(t)
	o.Program = nettest.Longhaul(t)
	var said []string
	o.Report = func(r progress.Report) { said = append(said, r.Text) }
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(said, "\n"))
	}
	var table strings.Builder
	nettest.Must(t, r.WriteText(&table))
	t.Logf("\n%s", &table)
	return r
}

// The parts hold in short runs, each in a lab of its own.
func TestParts(t *testing.T) {
	shorten(t)
	t.Run(PartMixed, mixed)
	t.Run(PartSlow, slowReader)
	t.Run(PartChurn, churn)
}

// Most of what can happen happens to the relays of a short mixed run, and no flow
// is lied to. How long a closed way keeps a flow from its target, which lines a
// relay that is killed has not yet written, and whether everything has its turn are
// matters of time: a run of 20 s under the tag timed and `go run ./bench/soak`
// hold them.
func mixed(t *testing.T) {
	t.Parallel()
	o := options(PartMixed)
	o.Seed = uint64(time.Now().UnixNano())%1_000_000 + 1
	o.without = []eventKind{outageEvent, drainEvent, drainHopEvent, killNearEvent}
	m := runPart(t, o).Mixed
	if len(m.Violations) > 0 {
		t.Errorf("%d violations with seed %d; the first: %s", len(m.Violations), o.Seed, m.Violations[0])
	}
	whole := 0
	for _, e := range m.Endings {
		whole += e.Whole
	}
	if whole == 0 || m.Bytes == 0 {
		t.Error("no flow arrived whole")
	}
	for _, kind := range o.without {
		if m.Events[kind] > 0 {
			t.Errorf("%d × %s, which was left out", m.Events[kind], kind)
		}
	}
}

// Every byte comes through full queues to readers that are slow. How flat the
// relays' memory is meanwhile is measured by `go run ./bench/soak`.
func slowReader(t *testing.T) {
	t.Parallel()
	s := runPart(t, options(PartSlow)).Slow
	for _, v := range s.Violations {
		if !strings.Contains(v, "varies by") {
			t.Error(v)
		}
	}
	if s.Bytes == 0 || len(s.Relays) != 3 {
		t.Errorf("%d bytes were read; %d relays were watched, want 3", s.Bytes, len(s.Relays))
	}
}

func churn(t *testing.T) {
	t.Parallel()
	o := options(PartChurn)
	c := runPart(t, o).Churn
	if len(c.Violations) > 0 {
		t.Errorf("%d violations; the first: %s", len(c.Violations), c.Violations[0])
	}
	if c.Connections < o.Connections || c.Reloads != o.Reloads {
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
