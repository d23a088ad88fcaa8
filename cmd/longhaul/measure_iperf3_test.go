//go:build linux

package main

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"longhaul/test/nettest"
)

// TestIperf3CommandLines holds the message for each option of iperf3 that measure lacks.
func TestIperf3CommandLines(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"-m far", "-m of iperf3 is no flag of longhaul measure\nlonghaul: hint: leave it out: longhaul measures plain TCP"},
		{"--mptcp far", "--mptcp of iperf3 is no flag of longhaul measure\nlonghaul: hint: leave it out: longhaul measures plain TCP"},
		{"--skip-rx-copy far", "hint: leave it out: longhaul always copies what it receives"},
		{"--gsro far", "hint: leave it out: the kernel offloads TCP by itself"},
		{"--cntl-ka=10/5/3 far", "hint: use --timeout DURATION"},
		{"--server-max-duration 10", "hint: use --max-time DURATION"},
		{"--use-pkcs1-padding far", "hint: use --token FILE"},
		{"--json-stream-full-output far", "hint: use --csv"},
		// iperf3 takes the beginning of a name.
		{"--len 1K far", "--length of iperf3 is no flag of longhaul measure\nlonghaul: hint: use --write SIZE"},
		{"--rev far", "hint: use --receive"},
		{"--json-stream-f far", "hint: use --csv"},
		{"-b 10M/16 far", "--pacing-rate 10M/16 asks for bursts of 16 writes: the kernel paces, without bursts\nlonghaul: hint: write 10M\n"},
		{"-b 10M/x far", "invalid rate \"10M/x\""},
	} {
		code, out, errs := grammarRun(append([]string{"measure"}, strings.Fields(test.args)...)...)
		if code != exitUsage || out != "" || !strings.Contains(errs, test.want) || !mistake.MatchString(errs) {
			t.Errorf("%s: status %d, output %q, error %q, want %q", test.args, code, out, errs, test.want)
		}
	}
}

// TestIperf3FlagsAreKnown holds that measure knows each flag of the installed iperf3, or says what to do
// instead.
func TestIperf3FlagsAreKnown(t *testing.T) {
	help, err := exec.Command(nettest.RequireProgram(t, "iperf3", "iperf3"), "--help").CombinedOutput()
	nettest.Must(t, err)
	known := map[string]bool{"h": true}
	for _, f := range iperf3Flags {
		known[f.letter], known[f.name] = true, true
	}
	for name, letter := range iperf3Letters {
		known[letter], known[name] = true, true
	}
	lines := regexp.MustCompile(`(?m)^  +(?:-(\w), )?--([a-z0-9-]+)|^  +-(\w)\b`).FindAllStringSubmatch(string(help), -1)
	if len(lines) < 40 {
		t.Fatalf("%d flags in iperf3's help", len(lines))
	}
	cmd := subcommand(testRoot(t), "measure")
	for _, line := range lines {
		for _, flag := range line[1:] {
			if flag != "" && !known[flag] && cmd.Flags().Lookup(flag) == nil && flag != "help" && flag != "version" {
				t.Errorf("iperf3's %s is not known", flag)
			}
		}
	}
}
