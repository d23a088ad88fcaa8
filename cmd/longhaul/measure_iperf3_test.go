//go:build linux

package main

import (
	"strings"
	"testing"
)

// TestIperf3CommandLines holds the message for options of iperf3 that measure has under another name.
func TestIperf3CommandLines(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"--cntl-ka=10/5/3 far", "hint: use --timeout DURATION"},
		{"--server-max-duration 10", "hint: use --max-time DURATION"},
		{"--use-pkcs1-padding far", "hint: use --token FILE"},
		{"--json-stream-full-output far", "hint: use --csv"},
		{"--length 1K far", "--length of iperf3 is no flag of longhaul measure\nlonghaul: hint: use --write SIZE"},
		{"-b 10M/16 far", "--pacing-rate 10M/16 asks for bursts of 16 writes: the kernel paces, without bursts\nlonghaul: hint: write 10M\n"},
		{"-b 10M/x far", "invalid rate \"10M/x\""},
	} {
		code, out, errs := grammarRun(append([]string{"measure"}, strings.Fields(test.args)...)...)
		if code != exitUsage || out != "" || !strings.Contains(errs, test.want) || !mistake.MatchString(errs) {
			t.Errorf("%s: status %d, output %q, error %q, want %q", test.args, code, out, errs, test.want)
		}
	}
}
