package main

import (
	"bytes"
	"fmt"
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

// runPart runs a part as the command does, and fails the test on a violation.
func runPart(t *testing.T, o options) result {
	t.Helper()
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	var progress bytes.Buffer
	r, err := run(t.Context(), o, &progress)
	if err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	var table strings.Builder
	r.write(&table)
	t.Logf("\n%s", &table)
	if n := r.violations(); n > 0 {
		t.Errorf("%d violations, seed %d", n, o.seed)
	}
	return r
}

func TestMixed(t *testing.T) {
	o := options{parts: []string{partMixed}, seed: uint64(time.Now().UnixNano()) % 1_000_000, time: 20 * time.Second, flows: 32}
	if testing.Short() {
		o.time = 10 * time.Second
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
	for _, k := range eventKinds {
		if m.Events[k.kind] == 0 {
			t.Errorf("no %s", k.kind)
		}
	}
}

func TestSlowReader(t *testing.T) {
	o := options{parts: []string{partSlow}, seed: 1, slow: 5 * time.Second}
	if s := runPart(t, o).Slow; s.Bytes == 0 {
		t.Error("nothing was read")
	}
}

func TestChurn(t *testing.T) {
	o := options{parts: []string{partChurn}, seed: 1, connections: 2000, reloads: 100}
	if testing.Short() {
		o.connections, o.reloads = 500, 30
	}
	if c := runPart(t, o).Churn; c.Connections < o.connections || c.Reloads != o.reloads {
		t.Errorf("%d connections, %d reloads", c.Connections, c.Reloads)
	}
}

func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"--parts slow":      `there is no part "slow": use mixed, slow-reader, churn, or all`,
		"--time 0s":         "times and numbers must be above 0",
		"--flows 0":         "times and numbers must be above 0",
		"--seed 1 whatever": `"whatever" is no flag: see --help`,
	} {
		var stderr bytes.Buffer
		if _, err := parse(strings.Fields(args), &stderr); err == nil || err.Error() != want {
			t.Errorf("%s: err = %v, want %s", args, err, want)
		}
	}
}
