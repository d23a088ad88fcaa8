//go:build timed

package faults

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// spread is the median, the 99th percentile and the longest of times in order.
func spread(took []time.Duration) (median, p99, longest time.Duration) {
	n := len(took)
	return took[n/2], took[n*99/100], took[n-1]
}

// cpuTime is the processor time of a process, to 10 ms.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	var sum time.Duration
	for _, field := range strings.Fields(after)[11:13] { // utime and stime
		ticks, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		sum += time.Duration(ticks) * 10 * time.Millisecond
	}
	return sum
}
