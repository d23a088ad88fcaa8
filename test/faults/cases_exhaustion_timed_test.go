//go:build timed

package faults

import (
	"fmt"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// Case 20: a relay that waits for descriptors uses little processor time.
func TestTimedOutOfDescriptors(t *testing.T) {
	const watched, most = time.Second, 200 * time.Millisecond
	nettest.MostOf(t, func() (err error) {
		outOfDescriptors(t, func(relay *daemon) {
			before := cpuTime(t, relay.cmd.Process.Pid)
			time.Sleep(watched) // the time over which is measured
			if used := cpuTime(t, relay.cmd.Process.Pid) - before; used > most {
				err = fmt.Errorf("the relay used %v of CPU time in %v of waiting, more than %v", used, watched, most)
			}
		})
		return err
	})
}
