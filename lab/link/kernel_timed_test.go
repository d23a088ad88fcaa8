//go:build timed

package link_test

import (
	"fmt"
	"testing"
	"time"

	"longhaul/lab/link"
	"longhaul/lab/linktest"
	"longhaul/test/nettest"
)

// A running emulator reads the packets of a bottleneck before a veth port's
// ring is full.
func TestVethPortLosesNothing(t *testing.T) {
	s := link.Settings{Delay: time.Millisecond, RateBps: 200_000_000, QueueBytes: 30_000}
	nettest.MostOf(t, func() error {
		a, b, l := linktest.New(t, linktest.Kinds[1], 1500, s, s)
		transfer(t, a, b, b.V4, 16<<20)
		transfer(t, b, a, a.V6, 16<<20)
		ab, ba := settled(t, linktest.Kinds[1], l)
		if ab.DeviceDrops+ba.DeviceDrops > 0 {
			return fmt.Errorf("lost beside the settings: %+v, %+v", ab, ba)
		}
		return nil
	})
}
