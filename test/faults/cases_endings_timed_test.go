//go:build timed

package faults

import (
	"fmt"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// Case 11: a million writes of one byte, after which the relay uses no processor time.
func TestTimedOneByteWrites(t *testing.T) {
	const watched, most = 500 * time.Millisecond, 50 * time.Millisecond
	nettest.MostOf(t, func() (err error) {
		oneByteWrites(t, 1_000_000, func(relay *daemon, when string) {
			before := cpuTime(t, relay.cmd.Process.Pid)
			time.Sleep(watched) // the time over which is measured
			used := cpuTime(t, relay.cmd.Process.Pid) - before
			t.Logf("%s: %v of CPU time in %v", when, used, watched)
			if used > most {
				err = fmt.Errorf("%s, the relay used %v of the processor in %v, more than %v", when, used, watched, most)
			}
		})
		return err
	})
}
