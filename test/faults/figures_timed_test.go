//go:build timed

package faults

import (
	"testing"
	"time"

	"longhaul/test/nettest"
)

// spread is the median, the 99th percentile and the longest of times in order.
func spread(took []time.Duration) (median, p99, longest time.Duration) {
	n := len(took)
	return took[n/2], took[n*99/100], took[n-1]
}

// cpuTime is the processor time of a process, to 10 ms.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := nettest.Stat(pid)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(stat.UTime+stat.STime) * 10 * time.Millisecond
}
