package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"longhaul/bench/kit"
	"longhaul/bench/peers"
	"longhaul/test/nettest"
)

// The test binary is the program too: in the sandbox, and as target and copy
// loop.
func TestMain(m *testing.M) {
	if role := os.Getenv("COST_TEST_ROLE"); role != "" {
		main()
		return
	}
	nettest.Main(m)
}

// Every measure yields plausible figures. What they are is not tested: that is
// what the program is for.
func TestMeasures(t *testing.T) {
	t.Setenv("COST_TEST_ROLE", "program")
	var stdout, stderr bytes.Buffer
	args := []string{"--json", "--repeat", "1", "--time", "100ms", "--idle-flows", "100", "--relays", "direct,longhaul", "--longhaul", nettest.Longhaul(t)}
	if err := run(t.Context(), args, &stdout, &stderr); err != nil {
		t.Fatal(err, stderr.String())
	}
	var res result
	if err := json.Unmarshal(stdout.Bytes(), &res); err != nil {
		t.Fatal(err, stdout.String())
	}
	if len(res.Measures) != len(measures) || len(res.Relays) != 2 {
		t.Fatalf("%d measures of %d relays", len(res.Measures), len(res.Relays))
	}
	for _, m := range res.Measures {
		for _, row := range m.Relays {
			for k, metric := range m.Metrics {
				values := row.Values[k]
				// What is read of a relay's processes has no value without one,
				// CPU time is counted in steps of 10 ms, and a hundred idle flows may
				// fit into memory that the relay has already.
				if row.Name == "direct" || strings.HasPrefix(metric.Name, "cpu") || strings.HasSuffix(metric.Name, "_B_per_flow") {
					continue
				}
				if len(values) != 1 || !(values[0] > 0) {
					t.Errorf("%s of %s: %s is %v", m.Name, row.Name, metric.Name, values)
				}
			}
		}
		if m.Name != "idle" {
			continue
		}
		for _, row := range m.Relays {
			if d := row.Values[len(m.Metrics)-1]; row.Name == "longhaul" && (d[0] < 1.9 || d[0] > 2.1) {
				t.Errorf("an idle flow of longhaul has %v descriptors, want 2", d)
			}
		}
	}
}

// Relays with many tunnels reload and are scraped: those that intercept, and those that listen.
func TestMany(t *testing.T) {
	t.Setenv("COST_TEST_ROLE", "program")
	var stdout, stderr bytes.Buffer
	args := []string{"--json", "--repeat", "1", "--tunnels", "5", "--measures", "reload-one,reload-intercept-one,reload-intercept-from,scrape-gzip,scrape-detail", "--longhaul", nettest.Longhaul(t)}
	if err := run(t.Context(), args, &stdout, &stderr); err != nil {
		t.Fatal(err, stderr.String())
	}
	var res result
	if err := json.Unmarshal(stdout.Bytes(), &res); err != nil {
		t.Fatal(err, stdout.String())
	}
	if len(res.Measures) != 5 {
		t.Fatalf("%d measures", len(res.Measures))
	}
	for _, m := range res.Measures {
		if v := m.valuesOf("longhaul", "s_each"); len(v) != 1 || v[0] <= 0 {
			t.Errorf("%s: %v", m.Name, v)
		}
	}
}

func TestHistogram(t *testing.T) {
	var h histogram
	if q := h.quantile(0.5); q != 0 {
		t.Errorf("the median of nothing is %v", q)
	}
	for i := 1; i <= 1000; i++ {
		h.add(time.Duration(i) * time.Microsecond)
	}
	for q, want := range map[float64]time.Duration{0: time.Microsecond, 0.5: 500 * time.Microsecond, 0.99: 990 * time.Microsecond, 0.999: time.Millisecond} {
		got := h.quantile(q)
		if off := float64(got)/float64(want) - 1; off > 0.002 || off < -1.0/64 {
			t.Errorf("quantile %v is %v, want %v to 1/64", q, got, want)
		}
	}
	for _, ns := range []uint64{0, 1, 63, 64, 65, 127, 128, 1 << 20, 1<<40 + 12345} {
		b := bucket(ns)
		if low, next := lowest(b), lowest(b+1); ns < low || ns >= next {
			t.Errorf("%d ns is in the bucket from %d to %d", ns, low, next)
		}
	}
}

func TestTables(t *testing.T) {
	b := &bench{repeat: 3, time: time.Second, threads: 1, measures: []measure{{name: "bulk", title: "One flow", metrics: []metric{goodput, cpuPerGB}}}}
	r := newResult(b)
	r.Machine, r.Kernel, r.CPUs = "machine", "6.18", 2
	r.addRelay(peers.Relay{Name: "a", Note: "-x"}, peers.Program{Version: "1.2"})
	for _, gb := range []int64{2e9, 1e9, 3e9} {
		r.add(0, 0, b.measures[0], sample{counted: counted{bytes: gb}, elapsed: time.Second, cpu: 500 * time.Millisecond, flows: 1})
	}
	var out strings.Builder
	if err := r.writeMarkdown(&out); err != nil {
		t.Fatal(err)
	}
	want := `**One flow**

| relay | GB/s | CPU s/GB |
|---|---|---|
| a 1.2 (-x) | 2.00 (1.00–3.00) | 0.250 (0.167–0.500) |

machine, 2 CPUs, Linux 6.18, relay threads 1, loopback; medians of 3 runs of 1 s (least–most).
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"--relays envoy":        `unknown relay "envoy": choose from direct, longhaul`,
		"--measures x":          `unknown measure "x": choose from bulk, bulk16`,
		"--repeat 0":            "take 1 or more",
		"--time 1ms":            "too short",
		"--tunnels -1":          "takes 1 to 5000",
		"--base x":              "--base goes with it",
		"--tunnels 5 --growth":  "goes with neither",
		"--growth --measures x": `unknown measure "x": choose from 100-flows-1-threads`,
		"extra":                 `unknown argument "extra"`,
	} {
		var stdout, stderr bytes.Buffer
		err := run(t.Context(), strings.Fields(args), &stdout, &stderr)
		if err == nil || errors.Is(err, kit.ErrReported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: err = %v, want %s", args, err, want)
		}
	}
}

func TestMedianInterval(t *testing.T) {
	for _, tc := range []struct {
		values    []float64
		low, high float64
	}{
		{[]float64{3}, 3, 3},
		{[]float64{5, 1, 3}, 1, 5},
		{[]float64{6, 5, 4, 3, 2, 1}, 1, 6},              // 97 %
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8}, 1, 8},        // 2 to 7 would be 93 %
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8, 9}, 2, 8},     // 96 %
		{[]float64{10, 9, 8, 7, 6, 5, 4, 3, 2, 1}, 2, 9}, // 98 %
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 4, 12},
	} {
		if low, high := medianInterval(tc.values); low != tc.low || high != tc.high {
			t.Errorf("%v: %v to %v, want %v to %v", tc.values, low, high, tc.low, tc.high)
		}
	}
}

func TestChanges(t *testing.T) {
	b := &bench{repeat: 3, time: time.Second, threads: 1, measures: []measure{{name: "bulk", metrics: []metric{goodput, p99}}}}
	r := newResult(b)
	r.addRelay(peers.Relay{Name: "without"}, peers.Program{})
	r.addRelay(peers.Relay{Name: "monitored"}, peers.Program{})
	r.Measures[0].Relays[0].Values = [][]float64{{100, 200, 400}, {1, 1, 1}}
	r.Measures[0].Relays[1].Values = [][]float64{{97, 202, 392}, {1, 1, 1}}
	p := pair{"without", "monitored"}
	got := r.changes([]pair{p, {"without", "nobody"}})
	if len(got) != 1 || got[0].pair != p || got[0].Metric != "goodput_Bps" {
		t.Fatalf("%+v", got)
	}
	r.Changes = got
	for _, form := range []struct {
		write func(io.Writer) error
		want  string
	}{
		{r.writeMarkdown, "| measure | figure | monitored, not without |\n|---|---|---|\n| bulk | goodput_Bps | -2.0 % (-3.0 to +1.0) |\n\n"},
		{r.writeText, "  measure  figure       monitored, not without\n  bulk     goodput_Bps  -2.0 % (-3.0 to +1.0)\n\n"},
	} {
		var text strings.Builder
		if err := form.write(&text); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text.String(), form.want) {
			t.Errorf("%q has not %q", text.String(), form.want)
		}
	}
}

// TestRate has clients that could do more keep to what they are told.
func TestRate(t *testing.T) {
	t.Setenv("COST_TEST_ROLE", "program")
	to := peers.Address{Host: "127.0.0.1", Port: freePort(t)}
	target, err := startTarget(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	defer target.stop()
	for name, l := range map[string]load{
		"same connections": {clients: 20, reply: requestSize, rate: 1000},
		"new connections":  {clients: 20, reply: requestSize, rate: 500, renew: true},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := connect(l, to)
			if err != nil {
				t.Fatal(err)
			}
			defer c.close()
			nettest.Eventually(t, time.Minute, func() bool {
				if err := c.run(100 * time.Millisecond); err != nil {
					t.Fatal(err)
				}
				return c.requests >= int64(2*l.clients)
			}, func() string { return fmt.Sprintf("%d requests of %d clients, want 2 of each", c.requests, l.clients) })
			d := time.Since(c.base)
			// All begin at once, and a hundredth of a second may be made up for.
			if most := int64(d.Seconds()*float64(l.rate)) + int64(l.rate/100+l.clients); c.requests > most {
				t.Errorf("%d requests in %v, want at most %d", c.requests, d, most)
			}
			if len(c.waiting) > l.clients {
				t.Errorf("%d of %d clients wait", len(c.waiting), l.clients)
			}
		})
	}
}

// freePort is a port of the loopback address that nobody has at the moment.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
