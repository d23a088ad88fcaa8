//go:build timed

package lab

import (
	"fmt"
	"testing"

	"longhaul/internal/nettest"
)

// The end hosts of the report fill their window, and a TCP without that bound
// goes beyond it.
func TestOnlyClassicEndHostsAreHeldToTheirWindow(t *testing.T) {
	nettest.MostOf(t, func() error {
		c, window := classicPath()
		other := goodput(t, c, 16<<20)
		c.ClassicEndHost = true
		switch classic := goodput(t, c, 16<<20); {
		case classic < 0.8*window:
			return fmt.Errorf("classic hosts reach %.1f Mb/s, want just below %.1f", classic/1e6, window/1e6)
		case other < 1.5*window:
			return fmt.Errorf("other hosts reach %.1f Mb/s, want far above the classic ones' window of %.1f", other/1e6, window/1e6)
		}
		return nil
	})
}

// The headline, far below what an idle machine gives.
func TestMitreGain(t *testing.T) {
	privateRun(t)
	binary := nettest.Longhaul(t)
	nettest.MostOf(t, func() error {
		result, err := mitre().Run(t.Context(), RunOptions{Program: binary, Quick: true, Cases: []string{"direct", "relay"}, Seed: 7})
		if err != nil {
			return err
		}
		direct, relay := result.Cases[0].GoodputBps, result.Cases[1].GoodputBps
		t.Logf("direct %.1f Mb/s, relay %.1f Mb/s", direct/1e6, relay/1e6)
		if relay < 5*direct {
			return fmt.Errorf("the relays bring %.1f Mb/s, the direct path %.1f: want five times as much", relay/1e6, direct/1e6)
		}
		return nil
	})
}

// A secondary's question takes three round trips at least: connect, SOA,
// transfer. What is timed begins when the program sees the first packet, and is
// close to that. A path that is too slow carries some of a zone.
func TestZoneTransferIsTimed(t *testing.T) {
	nettest.RequireProgram(t, "knotd", "knot")
	privateRun(t)
	nettest.MostOf(t, func() error {
		z := quickZone()
		z.Cases = []string{"direct-cubic"}
		result, err := z.Run(t.Context())
		if err != nil {
			return err
		}
		if c := result.Cases[0]; *c.AXFRSeconds < 0.06 || *c.IXFRSecondsP50 < 0.06 {
			return fmt.Errorf("AXFR in %v s, IXFR in %v s, want 0.06 s or more", *c.AXFRSeconds, *c.IXFRSecondsP50)
		}
		slow(&z)
		if result, err = z.Run(t.Context()); err != nil {
			return err
		}
		if c := result.Cases[0]; c.AXFRBps < 10e3 {
			return fmt.Errorf("100 kB over 400 kb/s for a second: %.0f bit/s, want 10000 or more", c.AXFRBps)
		}
		return nil
	})
}
