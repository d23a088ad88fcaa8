//go:build timed

package main

import (
	"fmt"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// Everything that can happen has its turn in 20 s, and no flow is lied to.
func TestMixedMeetsEverything(t *testing.T) {
	nettest.MostOf(t, func() error {
		o := options(PartMixed)
		o.Seed, o.Time = uint64(time.Now().UnixNano())%1_000_000+1, 20*time.Second
		m := runPart(t, o).Mixed
		if len(m.Violations) > 0 {
			return fmt.Errorf("%d violations with seed %d; the first: %s", len(m.Violations), o.Seed, m.Violations[0])
		}
		for _, e := range m.Endings {
			if e.Flows == 0 {
				return fmt.Errorf("no flow was of the ending %q", e.Ending)
			}
		}
		for _, k := range eventKinds {
			if m.Events[k.kind] == 0 {
				return fmt.Errorf("no %s", k.kind)
			}
		}
		if m.CutOff == 0 || len(m.Samples) == 0 || m.Strangers.SYNs == 0 || m.Strangers.Silent == 0 || m.Strangers.Garbled == 0 {
			return fmt.Errorf("%d clients were cut off, %d samples, strangers %+v: each must be above 0", m.CutOff, len(m.Samples), m.Strangers)
		}
		return nil
	})
}

// The relays' memory stays as it is while their queues are full.
func TestSlowReaderKeepsMemoryFlat(t *testing.T) {
	nettest.MostOf(t, func() error {
		o := options(PartSlow)
		o.Slow = 5 * time.Second
		if s := runPart(t, o).Slow; len(s.Violations) > 0 {
			return fmt.Errorf("%d violations; the first: %s", len(s.Violations), s.Violations[0])
		}
		return nil
	})
}
