//go:build timed

package faults

import (
	"fmt"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// Flows that stand hardly notice that new ones are shed, and new ones are admitted
// soon after there is room.
func TestTimedSheds(t *testing.T) {
	for _, tt := range []struct {
		name string
		run  func(*testing.T) shedTimes
	}{
		{"descriptors", shedBeforeDescriptorsAreUsedUp},
		{"TCP memory", func(t *testing.T) shedTimes { return shedWhenTCPMemoryRunsShort(t, 64<<20) }},
		{"memory", shedWhenTheProcessRunsShortOfMemory},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nettest.MostOf(t, func() error {
				times := tt.run(t)
				_, _, slowest := spread(times.echoes)
				t.Logf("every client was served or reset within %v; new flows were admitted %v after there was room; the slowest echo of a flow that stood took %v",
					times.flood.Round(time.Millisecond), times.recovery.Round(time.Millisecond), slowest.Round(time.Millisecond))
				switch {
				case times.flood > 2*time.Second:
					return fmt.Errorf("the flood took %v, more than 2 s", times.flood)
				case times.recovery > 4*time.Second:
					return fmt.Errorf("new flows were admitted %v after there was room, more than 4 s", times.recovery)
				case slowest > time.Second:
					return fmt.Errorf("an echo of a flow that stood took %v, more than 1 s", slowest)
				}
				return nil
			})
		})
	}
}
